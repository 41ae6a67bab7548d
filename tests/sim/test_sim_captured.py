"""The simulated npugraph_ex: captured graphs are split by graph-autofusion's rules, with options of the whole step."""

from pathlib import Path

import pytest

import sktune
from sktune.core.errors import SimulationError
from sktune.core.fused_scopes import FusedPart
from sktune.core.plan import Options, Plan, Scope
from sktune.core.plan_file import read_plan_file
from sktune.core.scope_flavour import ScopeFlavour
from sktune.sim.captured import CapturedPath
from sktune.sim.model import SimulatedStep, StepModel
from sktune.sim.operators import Operator, numbered
from tests.builders import sktune_command
from tests.releases import shapes_only
from tests.sim.simulated_steps import CONSTANTS, cube, operator, step_of, vector

BOTH = Plan((Scope("u0", "u1"),))


def simulate(plan: Plan, *units: list[Operator]) -> SimulatedStep:
    """Return the step, which must not fail."""
    operators, layout = step_of(*units)
    step = StepModel(operators, layout, CONSTANTS, CapturedPath).step(plan)
    assert isinstance(step, SimulatedStep), step
    return step


def parts_of(plan: Plan, *units: list[Operator]) -> tuple[FusedPart, ...]:
    """Return what became of the operators of the plan's only scope."""
    (span,) = [span for span in simulate(plan, *units).spans if span.label]
    return span.parts


def test_a_scope_becomes_one_superkernel_and_saves_gaps_and_heads() -> None:
    """As for GE; without scopes the figures of both ways are the same."""
    units = [vector(), cube()], [vector(), vector()]
    step, baseline = simulate(BOTH, *units), simulate(Plan(), *units)
    assert step.tasks == 1 and step.total_us < baseline.total_us
    operators, layout = step_of(*units)
    assert StepModel(operators, layout, CONSTANTS).step(Plan()) == baseline


@pytest.mark.parametrize(
    "between",
    [
        vector(kind="Odd", can_fuse=False),
        operator("aicpu", 1.0, "Odd", 1),
        operator("communication", 1.0, "Odd", 1),  # one that GE would fuse
        vector(kind="Odd", is_dynamic=True),
    ],
)
def test_what_cannot_be_captured_into_a_superkernel_cuts_the_scope(between: Operator) -> None:
    """A kernel that is not built for it, and any task that is no kernel."""
    parts = parts_of(BOTH, [vector(), vector(), between], [cube(), vector()])
    assert [(part.operators, bool(part.superkernel)) for part in parts] == [(2, True), (1, False), (2, True)]
    (span,) = [span for span in simulate(BOTH, [vector(), vector(), between], [cube()]).spans if span.label]
    assert span.cuts == (("Odd", "kernel not built for SuperKernels"),)


def test_a_kernel_that_synchronizes_fewer_cores_begins_another_superkernel() -> None:
    """GE would hang there, or feed it."""
    parts = parts_of(BOTH, [vector(blocks=48)], [vector(blocks=8, calls_sync_all=True), vector(blocks=8)])
    assert [part.operators for part in parts] == [1, 2]


def test_options_are_of_the_whole_step() -> None:
    """Early start is off unless it is set, and then hides a part of borders of the kernels that have its hooks."""

    def saved_us(options: Options) -> float:
        plan = Plan(BOTH.scopes, options)
        return simulate(plan, [cube(kind="GroupedMatmul")] * 3, [vector()]).terms["early_start"]

    assert saved_us(()) == saved_us((("early_start", 1),)) == 0  # stream_fusion is on, and without hooks
    assert saved_us((("early_start", 1), ("stream_fusion", 0))) < 0


def test_options_are_those_of_ge_under_other_names() -> None:
    """With the defaults of npugraph_ex; the others cost nothing."""
    operators, _ = step_of([vector()])
    path, scope = CapturedPath(operators, CONSTANTS), BOTH.scopes[0]
    usual = {"stream-fusion": 1, "early-start": 0, "preload-code": "per-func", "split-mode": 4}
    assert path.options(BOTH, scope) == usual
    given = Plan(BOTH.scopes, (("constant_codegen", 1), ("preload_code", 0), ("split_mode", 3)))
    assert path.options(given, scope) == usual | {"preload-code": "max", "split-mode": 3}
    none = simulate(Plan(BOTH.scopes, (("preload_code", 2),)), [vector(), cube()], [vector()])
    assert none.terms["icache"] > simulate(BOTH, [vector(), cube()], [vector()]).terms["icache"]


def test_a_step_on_several_streams_is_refused() -> None:
    """In one line that says what to do."""
    operators = numbered([vector(unit="u0"), vector(unit="u0", stream=1)])
    _, layout = step_of([vector()])
    with pytest.raises(SimulationError, match="simulate it with --backend sim"):
        StepModel(operators, layout, CONSTANTS, CapturedPath)


def test_names_of_scopes_beyond_the_limit_fail_nothing_else() -> None:
    """graph-autofusion reads 1,024 of them; the other scopes are not fused."""
    units = [[vector(), vector()] for _ in range(1026)]
    plan = Plan(tuple(Scope(f"u{index}", f"u{index}") for index in range(len(units))))
    step = simulate(plan, *units)
    assert step.tasks == 1024 + 2 * 2


@shapes_only
@pytest.mark.slow
def test_a_search_finds_a_plan_for_npugraph_ex_without_hardware(tmp_path: Path) -> None:
    """The plan says for which way it is; everything says that it is simulated."""
    result = sktune.search("llama", backend="sim-npugraph-ex", scale="full", trials=6, runs=tmp_path / "runs")
    assert result.winner and result.winner.speedup.ratio > 1.0
    assert "simulated" in str(result)
    (path,) = (tmp_path / "runs").glob("*/best_plan.yaml")
    plan = read_plan_file(path)
    assert plan.backend is ScopeFlavour.CAPTURED
    assert all(not scope.options for scope in result.winner.plan.scopes)
    done = sktune_command(
        "check", str(path), "--model", "llama", "--scale", "full", "--backend", "sim-npugraph-ex", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
