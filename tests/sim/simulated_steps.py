"""Small simulated steps: operators of a given time, in units called u0, u1, ..."""

from collections.abc import Sequence
from dataclasses import replace

from sktune.core.layout import Layout, Unit
from sktune.core.plan import Options, Plan, Scope
from sktune.sim.constants import Constants, load_constants
from sktune.sim.model import SimulatedFailure, SimulatedStep, StepModel
from sktune.sim.operators import Core, Operator, numbered

CONSTANTS = load_constants()
SMALL, LARGE = 1.0, 500.0


def vector(time_us: float = SMALL, kind: str = "Mul", blocks: int = 48, **values: object) -> Operator:
    """Return a vector operator that is busy for ``time_us`` on all cores."""
    return operator("vector", time_us, kind, blocks, **values)


def cube(time_us: float = SMALL, kind: str = "MatMulV2", blocks: int = 24, **values: object) -> Operator:
    """Return a cube operator that is busy for ``time_us`` on all cores."""
    return operator("cube", time_us, kind, blocks, **values)


def operator(core: Core, time_us: float, kind: str, blocks: int, **values: object) -> Operator:
    """Return an operator that is bound by memory."""
    moved = time_us * 1e6 * CONSTANTS["hbm_tbps"] * CONSTANTS["hbm_efficiency"]
    plain = Operator(name=kind, type=kind, core=core, bytes_moved=moved, blocks=blocks)
    return replace(plain, **values)  # type: ignore[arg-type]


def step_of(*units: list[Operator]) -> tuple[tuple[Operator, ...], Layout]:
    """Return operators and layout of a step with the given units, called u0, u1, ..."""
    operators = [
        replace(each, unit=f"u{index}", name=f"u{index}/{each.type}_{place}")
        for index, inside in enumerate(units)
        for place, each in enumerate(inside)
    ]
    names = tuple(Unit(f"u{index}", f"u{index}") for index in range(len(units)))
    return numbered(operators), Layout(names, ())


def step_latency(
    operators: Sequence[Operator], plan: Plan, layout: Layout, constants: Constants
) -> SimulatedStep | SimulatedFailure:
    """Return the simulated step of one plan."""
    return StepModel(operators, layout, constants).step(plan)


def with_values(constants: Constants, **values: float) -> Constants:
    """Return a copy with other values, marked as assumed."""
    origin = {"source": "", "assumed": True, "fitted": False, "reason": "set by a test"}
    return constants.with_constants(
        {
            name: constants.constants[name].model_copy(update={"value": value, **origin})
            for name, value in values.items()
        }
    )


def simulate(plan: Plan, *units: list[Operator]) -> SimulatedStep:
    """Return the step, which must not fail."""
    operators, layout = step_of(*units)
    step = step_latency(operators, plan, layout, CONSTANTS)
    assert isinstance(step, SimulatedStep), step
    return step


def gain_us(*units: list[Operator], options: Options = ()) -> float:
    """Return what one scope over all units saves."""
    scope = Scope("u0", f"u{len(units) - 1}", options)
    return simulate(Plan(), *units).total_us - simulate(Plan((scope,)), *units).total_us
