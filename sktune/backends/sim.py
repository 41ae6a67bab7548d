"""The sim backend: a plan's latency on a simulated Atlas A3, and outputs that are computed on the CPU.

It compiles nothing: the target's own step runs as it is, so outputs are equal by construction. On the device ``meta``
there are shapes only, and nothing is verified.
"""

from collections.abc import Callable

from sktune.backends.base import Compiled, CompileError, Step
from sktune.layout import Layout
from sktune.plan import Plan
from sktune.sim.constants import load_constants
from sktune.sim.deployment import deploy, deployment_notes
from sktune.sim.model import SimulatedFailure, StepModel
from sktune.sim.trace import trace_operators
from sktune.targets.base import Inputs, Target


class SimBackend:
    """Answers for plans of one target; see ``sktune.backends.base.Backend``."""

    def __init__(self, target: Target, layout: Layout, inputs: Inputs) -> None:  # noqa: ARG002 - a backend's signature
        constants = load_constants()
        traced = trace_operators(target, layout, constants)
        self._step = Step(target.decode_step)
        self._model = StepModel(deploy(traced, constants), layout, constants)
        self.notes = deployment_notes(traced, constants) or "simulated"

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
