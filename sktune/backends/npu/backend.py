"""The npu backend (Atlas A3 and A2): TorchAir compiles the decode step in max-autotune, scopes become SuperKernels.

Each trial has a separate process, whose working folder has everything that GE writes: ``kernel_meta``, compile cache
and logs. TorchAir's dump of the GE graph shows which operators each scope has marked.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sktune.ascend.cann_log import explain_files
from sktune.ascend.fusion import RealisedFusion, describe, fused_scopes, realised_fusion
from sktune.ascend.ge_graph import GeGraph, read_ge_graph
from sktune.ascend.scope_check import CheckedScope, check_scopes, operators_of_graph
from sktune.ascend.unit_kernels import unit_kernels, units_plan
from sktune.backends.base import Compiled, CompileError, OnScope, Step, ignore
from sktune.backends.npu.marked_steps import MarkedStepBackend
from sktune.backends.npu.options import OPTIONS, keeps_order
from sktune.backends.npu.scope_profile import profile_interleaved, scope_parts
from sktune.backends.options import step_options
from sktune.core.errors import BackendError, SktuneError
from sktune.core.layout import Kernel, Layout
from sktune.core.outcome import ScopeTime
from sktune.core.plan import Plan
from sktune.core.scope_times import scope_times
from sktune.measure.devices import import_torch_npu
from sktune.targets.base import Inputs, Target
from sktune.targets.marks import torchair_scope

logger = logging.getLogger(__name__)

DUMPS = Path("ge_graphs")
"""Folder for TorchAir's graph dumps, relative to the worker's."""

PROFILE = Path("profile")
"""Folder for torch_npu's profiles of scope times, relative to the worker's."""


class NpuBackend(MarkedStepBackend):
    """Compiles plans of one target; see ``sktune.backends.base.Backend``.

    Args:
        target, layout, inputs: as for every backend.
        dumps: folder for TorchAir's graph dumps.

    Raises:
        BackendError: torch_npu, CANN or an NPU is missing.
    """

    def __init__(self, target: Target, layout: Layout, inputs: Inputs, dumps: Path = DUMPS) -> None:
        self._torchair, self._dumps = _import_torchair(), dumps
        super().__init__(target, layout, inputs)
        self._baseline: Step | None = None

    def compile(self, plan: Plan, on_scope: OnScope = ignore) -> Compiled:  # noqa: ARG002 - plog names the scope
        """See ``Backend.compile``."""
        earlier = _ge_dumps()
        step, graphs = self._convert(plan, self.configuration(plan))
        fusion = _fusion(graphs, plan, earlier)
        if plan.is_baseline:
            self._baseline = step
        marked = {label: [each.name for each in operators] for label, operators in _joined(graphs).by_scope().items()}
        return Compiled(
            step, len(plan.scopes), 0, _digest(graphs), fusion=tuple(describe(fusion)), fused=fused_scopes(fusion),
            fusion_digest=fusion.digest_under(step_options(OPTIONS, plan)),
            observe=partial(self._observe, plan, step, marked) if plan.scopes else None,
        )  # fmt: skip

    def _observe(
        self, plan: Plan, step: Step, marked: Mapping[str, Sequence[str]], begin: Callable[[], Inputs]
    ) -> tuple[ScopeTime, ...]:
        assert self._baseline is not None
        kernels = profile_interleaved(import_torch_npu(), self._baseline, step, begin(), PROFILE)
        return scope_times(self._layout, scope_parts(kernels, plan, marked))

    def graph_of(self, plan: Plan) -> GeGraph:
        """Return the graph that TorchAir builds for GE, without using GE: the FX graph runs eagerly, once.

        Raises:
            CompileError: TorchAir cannot convert the step.
        """
        config = self.configuration(plan)
        config.debug.run_eagerly = True
        _, graphs = self._convert(plan, config)
        return _joined(graphs)

    def kernels(self) -> Sequence[tuple[str | None, Kernel]]:
        """Return the kernels of the unfused step in execution order, each with its unit, as TorchAir converts it.

        Nothing is compiled for the device. Empty if the step cannot be converted.
        """
        try:
            return tuple(unit_kernels(self.graph_of(units_plan(self._layout)), self._layout))
        except (CompileError, SktuneError) as failure:
            logger.warning("the search does without the operators of the step: %s", failure)
            return ()

    def with_operators(self, layout: Layout) -> Layout:
        """See ``Backend.with_operators``."""
        return layout.with_kernels(self.kernels())

    def check(self, plan: Plan) -> tuple[CheckedScope, ...]:
        """See ``SuperKernelBackend.check``: over the graph that TorchAir builds of the marked step."""
        labels = [scope.label for scope in plan.scopes]
        return check_scopes(operators_of_graph(self.graph_of(plan)), labels, keeps_order=keeps_order(plan))

    def _convert(self, plan: Plan, config: Any) -> tuple[Step, list[GeGraph]]:
        before = set(self._dumps.glob("*.txt"))
        compiler = self._torchair.get_npu_backend(compiler_config=config)
        try:
            step = self._compiled_step(plan, torchair_scope, backend=compiler)
        except CompileError:
            from torchair.scope import _scope_attr

            # TorchAir would mark the next graph with the scopes that the failed conversion left open.
            while _scope_attr.has_scope_attr():
                _scope_attr.scope_exit()
            raise
        return step, [read_ge_graph(path) for path in sorted(set(self._dumps.glob("*.txt")) - before)]

    def configuration(self, plan: Plan) -> Any:
        """Return TorchAir's ``CompilerConfig`` for a plan."""
        config = self._torchair.CompilerConfig()
        config.mode = "max-autotune"
        for name, value in step_options(OPTIONS, plan).items():
            setattr(config.experimental_config, name, value)
        self._dumps.mkdir(exist_ok=True)
        config.debug.graph_dump.type = "txt"
        config.debug.graph_dump.path = str(self._dumps)
        return config


def _import_torchair() -> Any:
    import_torch_npu()
    import torchair

    if dict(torchair.scope.super_kernel(None).attrs)["_super_kernel_scope"] is None:
        raise BackendError("this torchair is too old for None as a scope; install a torch_npu with torchair 7.3.0+")
    return torchair


def _fusion(graphs: Sequence[GeGraph], plan: Plan, earlier: Mapping[Path, int]) -> RealisedFusion:
    """Return how the scopes were fused: TorchAir's marks, and GE's dumps and logs if the environment enables them.

    All trials share the folder of the dumps, so those that were there ``earlier`` and have not changed do not count.
    """
    fused = [read_ge_graph(path) for path, written_ns in _ge_dumps().items() if earlier.get(path) != written_ns]
    labels = [scope.label for scope in plan.scopes]
    logs = _files("ASCEND_PROCESS_LOG_PATH", ("*.log",))
    # What names no scope may be of another trial, as the logs of all of them are in one folder.
    explanations = [each for each in explain_files(logs, labels) if each.scope]
    return realised_fusion(marked=_joined(graphs), fused=fused, explanations=explanations, labels=labels)


def _joined(graphs: Sequence[GeGraph]) -> GeGraph:
    return GeGraph("step", tuple(operator for graph in graphs for operator in graph.operators))


def _ge_dumps() -> dict[Path, int]:
    """Return GE's dumps after fusion with the time in ns when each was written."""
    paths = _files("DUMP_GRAPH_PATH", ("*AfterSkGraph*", "*super_kernel_sub_graph*"))
    return {path: path.stat().st_mtime_ns for path in paths}


def _files(variable: str, patterns: Sequence[str]) -> list[Path]:
    folder = os.environ.get(variable)
    return sorted(path for pattern in patterns for path in Path(folder).rglob(pattern)) if folder else []


def _digest(graphs: Sequence[GeGraph]) -> str:
    """Return the identity of TorchAir's graph; labels do not count, only which operators share one."""
    text = []
    for graph in graphs:
        labels: dict[str, int] = {"": 0}
        for operator in graph.operators:
            scope = labels.setdefault(operator.scope, len(labels))
            text.append(f"{operator.type} {operator.inputs} {operator.output_specs} {scope} {operator.options}")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()
