"""The npugraph-ex backend: a captured graph of static kernels, whose marked operators become SuperKernels.

A scope is a pair of operators in the graph, ``super_kernel_scope_begin`` and ``_end``, which run while it is captured.
The baseline has the same static kernels. Each trial has a separate process, as installed kernels stay in theirs.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sktune.ascend.scope_check import CheckedScope
from sktune.backends.base import Compiled, OnScope, Step, ignore
from sktune.backends.npu.marked_steps import MarkedStepBackend
from sktune.backends.npugraph_ex.captured import captured_operators, checked_scopes, digest
from sktune.backends.npugraph_ex.options import compile_options
from sktune.core.errors import BackendError, first_line
from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.measure.devices import import_torch_npu
from sktune.program.sktune_program.npugraph_ex import NPUGRAPH_EX
from sktune.targets.base import Inputs, Target
from sktune.targets.marks import npugraph_ex_scope


class NpugraphExBackend(MarkedStepBackend):
    """Compiles plans of one target; see ``sktune.backends.base.Backend``.

    Raises:
        BackendError: torch_npu or its npugraph_ex is missing.
    """

    def __init__(self, target: Target, layout: Layout, inputs: Inputs) -> None:
        import_torch_npu()
        with _signals_kept():
            try:
                import npugraph_ex  # noqa: F401
            except ImportError as failure:
                raise BackendError(
                    f"this torch_npu has no npugraph_ex ({first_line(failure)}); "
                    "see `sktune doctor` for one that has it"
                ) from failure
        super().__init__(target, layout, inputs)

    def compile(self, plan: Plan, on_scope: OnScope = ignore) -> Compiled:  # noqa: ARG002 - the whole graph at once
        """See ``Backend.compile``."""
        step, graphs = self._captured(plan)
        operators = [operator for graph in graphs for operator in captured_operators(graph)]
        return Compiled(step, len(plan.scopes), code_digest=digest(operators))

    def check(self, plan: Plan) -> tuple[CheckedScope, ...]:
        """See ``SuperKernelBackend.check``: over the graph that npugraph_ex captures of the marked step."""
        labels = [scope.label for scope in plan.scopes]
        _, graphs = self._captured(plan)
        return tuple(scope for graph in graphs for scope in checked_scopes(graph, labels))

    def _captured(self, plan: Plan) -> tuple[Step, list[torch.fx.Graph]]:
        graphs: list[torch.fx.Graph] = []

        def record(module: torch.fx.GraphModule, inputs: Any = None, config: Any = None) -> None:  # noqa: ARG001
            graphs.append(module.graph)

        options = compile_options(plan) | {"post_grad_custom_post_pass": record}
        return self._compiled_step(plan, npugraph_ex_scope, backend=NPUGRAPH_EX, options=options), graphs

    def with_operators(self, layout: Layout) -> Layout:
        """See ``Backend.with_operators``: which kernels run is known only on the device."""
        return layout


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the handlers of signals: those that npugraph_ex installs let a process outlive the signal that ends it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
