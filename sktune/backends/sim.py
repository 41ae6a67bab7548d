"""The sim backend: a plan's latency on a simulated Atlas A3, and outputs that are computed on the CPU.

It compiles nothing: the target's own step runs as it is, so outputs are equal by construction. On the device ``meta``
there are shapes only, and nothing is verified.
"""

from collections.abc import Callable
from pathlib import Path

from sktune.backends.base import Compiled, CompileError, Step
from sktune.layout import Layout
from sktune.plan import Plan
from sktune.profiling.analysis import analyse
from sktune.profiling.reading import read_profile
from sktune.sim.constants import ATLAS_A3, load_constants
from sktune.sim.deployment import deploy, deployment_notes
from sktune.sim.model import SimulatedFailure, StepModel
from sktune.sim.operators import from_kernel_table
from sktune.sim.trace import trace_operators
from sktune.targets.base import Inputs, Target


class SimBackend:
    """Answers for plans of one target; see ``sktune.backends.base.Backend``.

    Args:
        target, layout, inputs: as for any backend.
        constants: file with the device's constants; None for those that are shipped.
        profile: of the baseline, whose kernels' times then stand for the model's own.
    """

    def __init__(
        self,
        target: Target,
        layout: Layout,
        inputs: Inputs,  # noqa: ARG002 - a backend's signature
        constants: str | None = None,
        profile: str | None = None,
    ) -> None:
        values = load_constants(Path(constants) if constants else ATLAS_A3)
        self._step = Step(target.decode_step)
        self.notes = "simulated"
        if profile:
            kernels = analyse(read_profile(Path(profile))).kernels
            operators = from_kernel_table(kernels, values, layout)
            self.notes = "simulated on a profile's measured kernels"
        else:
            operators = trace_operators(target, layout, values)
            if any(parameter.is_meta for parameter in target.module.parameters()):
                self.notes = deployment_notes(operators, values) or self.notes
                operators = deploy(operators, values)
        self._model = StepModel(operators, layout, values)

    def time_shares(self) -> dict[str, float]:
        """Return each unit's share of the simulated baseline, 0 to 1."""
        return self._model.time_shares()

    def compile(self, plan: Plan) -> Compiled:
        """See ``Backend.compile``."""
        step = self._model.step(plan)
        if isinstance(step, SimulatedFailure):
            raise CompileError(step.detail, step.reason)
        superkernels = [name for span in step.spans for name in span.superkernels]
        return Compiled(
            self._step, len(superkernels), 0, code_digest=plan.digest, simulated_ms=step.total_us / 1e3,
        )  # fmt: skip

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """See ``Backend.references``: nothing else is simulated."""
        return {}
