"""The backend sim: a plan's latency on a simulated Atlas A3, whose SuperKernels are GE's.

Its operators are those of TorchAir's GE graph if torch_npu is installed, else those of a traced step. Nothing is
compiled: the target's step runs unchanged, on the CPU or only on shapes (device ``meta``), so there is nothing to
verify.
"""

import importlib.util
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from sktune.ascend.ge_graph import GeGraph
from sktune.ascend.scope_check import CheckedScope
from sktune.ascend.superkernel_pass import cuts_text
from sktune.ascend.unit_kernels import units_plan
from sktune.backends.base import Compiled, CompileError, OnScope, Step, ignore
from sktune.core.errors import BackendError, SimulationError
from sktune.core.fused_scopes import FusedScope, alike_together
from sktune.core.layout import Kernel, KernelCore, Layout
from sktune.core.plan import Plan
from sktune.core.scope_times import Part, scope_times
from sktune.sim.constants import ATLAS_A3, load_constants
from sktune.sim.deployment import deploy, deployment_notes
from sktune.sim.ge import from_ge_graph
from sktune.sim.model import SimulatedFailure, StepModel
from sktune.sim.operators import Operator, from_kernel_table
from sktune.sim.paths import GePath, SuperKernelPath
from sktune.sim.superkernel import core_in_superkernel
from sktune.sim.trace import trace_operators
from sktune.targets.base import Inputs, Target

logger = logging.getLogger(__name__)


class SimBackend:
    """Simulates plans for GE; see ``sktune.backends.base.Backend``.

    Args:
        target, layout, inputs: as for every backend.
        constants: file with the device's constants; None for those shipped with sktune.
        profile: of the baseline; its kernels' measured times then replace the modelled ones.
    """

    _path: ClassVar[type[SuperKernelPath]] = GePath

    def __init__(
        self,
        target: Target,
        layout: Layout,
        inputs: Inputs,
        constants: str | None = None,
        profile: str | None = None,
    ) -> None:
        values = load_constants(Path(constants) if constants else ATLAS_A3)
        self._step, self._layout = Step(target.decode_step), layout
        self.notes = "simulated"
        if profile:
            from sktune.profiling.analysis import analyse
            from sktune.profiling.readers.reading import read_profile

            measured = analyse(read_profile(Path(profile))).certain(Path(profile))
            if len(measured.layer_kinds) != len(layout.layers):
                raise SimulationError(
                    f"the profile has {len(measured.layer_kinds)} layers and the model {len(layout.layers)}; "
                    "give a profile of this model, or leave it out"
                )
            operators = from_kernel_table(measured.kernels, values, layout)
            self.notes = "simulated on a profile's measured kernels"
        elif self._path is GePath and (graph := _converted(target, layout, inputs)):
            operators = from_ge_graph(graph, layout, values)
            self.notes = "simulated over TorchAir's GE graph"
        else:
            operators = trace_operators(target, layout, values)
            if any(parameter.is_meta for parameter in target.module.parameters()):
                self.notes = deployment_notes(operators, values) or self.notes
                operators = deploy(operators, values)
        self._operators = operators
        self._model = StepModel(operators, layout, values, self._path)

    def time_shares(self) -> dict[str, float]:
        """Return each unit's share of the simulated baseline, 0 to 1."""
        return self._model.time_shares()

    def kernels(self) -> list[tuple[str | None, Kernel]]:
        """Return the kernels of the unfused step in execution order, each with its unit."""
        return [
            (operator.unit, Kernel(operator.type, _core(operator), operator.can_fuse, busy_us=round(time_us, 3)))
            for operator, time_us in zip(self._operators, self._model.busy_us, strict=True)
        ]

    def with_operators(self, layout: Layout) -> Layout:
        """See ``Backend.with_operators``."""
        return layout.with_kernels(self.kernels())

    def compile(self, plan: Plan, on_scope: OnScope = ignore) -> Compiled:  # noqa: ARG002 - it returns immediately
        """See ``Backend.compile``."""
        step = self._model.step(plan)
        if isinstance(step, SimulatedFailure):
            raise CompileError(step.detail, step.reason, step.blamed)
        fused = alike_together(FusedScope((span.label,), span.parts) for span in step.spans if span.label is not None)
        scopes = {scope.label: scope for scope in plan.scopes}
        cuts = {span.label: span.cuts for span in step.spans}
        parts = [Part(scopes.get(span.label or ""), span.baseline_us / 1e3, span.time_us / 1e3) for span in step.spans]
        return Compiled(
            self._step, sum(len(scope.labels) * scope.superkernels for scope in fused), 0, code_digest=plan.digest,
            simulated_ms=step.total_us / 1e3, observe=lambda begin: scope_times(self._layout, parts),
            fusion=tuple(_line(scope, cuts[scope.labels[0]]) for scope in fused), fused=fused,
        )  # fmt: skip

    def check(self, plan: Plan) -> tuple[CheckedScope, ...]:
        """See ``SuperKernelBackend.check``; a plan that fails has its first failure alone."""
        step = self._model.step(plan)
        if isinstance(step, SimulatedFailure):
            return (CheckedScope(step.blamed, 0, refusal=step.detail, is_certain=True),)
        return tuple(
            CheckedScope(span.label, span.operators, sum(bool(part.superkernel) for part in span.parts), span.cuts)
            for span in step.spans
            if span.label is not None
        )

    def written(self) -> Mapping[str, Any]:
        """See ``Backend.written``: nothing is compared."""
        return {}

    def check_machine(self) -> None:
        """See ``Backend.check_machine``: nothing is compiled."""

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """See ``Backend.references``: nothing else is simulated."""
        return {}


def _line(scope: FusedScope, cuts: Sequence[tuple[str, str]]) -> str:
    """Return what a scope became and why it was cut, for people."""
    kinds = Counter(part.superkernel for part in scope.parts if part.superkernel)
    more = f" and {len(scope.labels) - 1} like it" if len(scope.labels) > 1 else ""
    operators = sum(part.operators for part in scope.parts)
    count = "1 SuperKernel" if kinds.total() == 1 else f"{kinds.total()} SuperKernels"
    formed = f"{count} ({', '.join(f'{times} {kind}' for kind, times in kinds.items())})" if kinds else "no SuperKernel"
    split = f"; {'split at' if kinds else 'not fused because of'} {cuts_text(cuts)}" if cuts else ""
    return f"{scope.labels[0]}{more}: {operators} operator{'s' * (operators != 1)}; {formed}{split}; simulated"


def _core(operator: Operator) -> KernelCore:
    """Return the cores that it runs on in a SuperKernel."""
    if operator.core == "aicpu" or (operator.core == "communication" and not operator.can_fuse):
        return "other"
    return core_in_superkernel(operator)


def _converted(target: Target, layout: Layout, inputs: Inputs) -> GeGraph | None:
    """Return the GE graph in which each unit is a scope; None if TorchAir is missing or cannot convert the step."""
    if importlib.util.find_spec("torch_npu") is None or any(value.is_meta for value in target.module.parameters()):
        return None
    from sktune.backends.npu.backend import NpuBackend  # only where torch_npu is installed

    with TemporaryDirectory() as folder:
        try:
            return NpuBackend(target, layout, inputs, Path(folder)).graph_of(units_plan(layout))
        except (BackendError, CompileError) as failure:
            logger.warning("simulating a traced step, as TorchAir cannot convert it: %s", failure)
            return None
