"""The cost model of Atlas A3: its formulas and constants. No figure here was measured on a device."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sktune.core.errors import SimulationError
from sktune.core.fused_scopes import FusedPart
from sktune.core.plan import Options, Plan, Scope
from sktune.sim.constants import ATLAS_A3, load_constants
from sktune.sim.launch import launch_us
from sktune.sim.model import SimulatedStep, StepModel
from sktune.sim.operators import Core, Operator, numbered
from tests.builders import one_line_error
from tests.sim.simulated_steps import (
    CONSTANTS,
    LARGE,
    SMALL,
    cube,
    gain_us,
    operator,
    simulate,
    step_latency,
    step_of,
    vector,
    with_values,
)

OPERATORS = st.builds(
    lambda core, time_us, can_fuse, blocks: operator(
        core, time_us, "MatMulV2" if core == "cube" else "Mul", blocks, can_fuse=can_fuse
    ),
    st.sampled_from(["cube", "vector"]),
    st.floats(1.0, 300.0),
    st.booleans(),
    st.integers(1, 24),
)
UNITS = st.lists(st.lists(OPERATORS, min_size=1, max_size=5), min_size=1, max_size=5)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "early-start": st.sampled_from([0, 1, 2]),
        "preload-code": st.sampled_from(["per-func", "max", "none"]),
        "split-mode": st.sampled_from([1, 2, 4, 8]),
        "stream-fusion": st.sampled_from([0, 1]),
    },
).map(lambda options: tuple(sorted(options.items())))


def test_the_baseline_pays_a_head_and_a_gap_for_every_task() -> None:
    """Without scopes there are no barriers."""
    step = simulate(Plan(), [vector()] * 3, [cube(LARGE)])
    assert step.tasks == 4
    assert step.terms["barrier"] == step.terms["early_start"] == 0
    assert step.terms["gap"] == pytest.approx(3 * CONSTANTS["dispatch_gap_us"])
    heads = 3 * launch_us("vector", 48, CONSTANTS) + launch_us("cube", 24, CONSTANTS)
    assert step.terms["head"] == pytest.approx(heads)
    assert step.terms["icache"] == 2 * CONSTANTS["first_use_us"]  # of two kernels
    assert step.total_us == pytest.approx(3 * SMALL + LARGE + step.terms["gap"] + heads + step.terms["icache"])


def test_a_gap_depends_on_the_cores_of_both_tasks() -> None:
    """As on A2: about 0.03 us between tasks on one kind of core, more than 1 us before and after one on both."""
    mix = operator("mix", LARGE, "FusedInferAttentionScore", 24)
    gap, into, out = (CONSTANTS[name] for name in ("dispatch_gap_us", "gap_into_mix_us", "gap_out_of_mix_us"))
    for tasks, expected in (
        ([vector(), cube()], gap),
        ([vector(), mix], gap + into),
        ([mix, vector()], gap + out),
        ([mix, mix], gap + into + out),
    ):
        assert simulate(Plan(), tasks).terms["gap"] == pytest.approx(expected)


def test_a_superkernel_with_cube_operators_is_launched_as_mix() -> None:
    """As on A2, where one follows the other after 2.6 to 3.2 us. No profile shows the gaps around one without."""
    both = CONSTANTS["gap_into_mix_us"] + CONSTANTS["gap_out_of_mix_us"]
    plan = Plan((Scope("u0", "u0"), Scope("u1", "u1")))
    for inside, longer in (([vector(), cube(), vector()], both), ([vector(), vector()], 0.0)):
        units = [inside, inside, [vector()]]
        gaps = simulate(plan, *units).terms["gap"] - 2 * CONSTANTS["dispatch_gap_us"]
        assert gaps == pytest.approx(longer + (CONSTANTS["gap_out_of_mix_us"] if longer else 0.0))
    assert 2.5 < CONSTANTS["dispatch_gap_us"] + both < 3.2


def test_a_measured_gap_grows_where_a_superkernel_replaces_a_cube_operator() -> None:
    """The measured one is between the operators; a SuperKernel of MIX operators has theirs."""
    plan = Plan((Scope("u1", "u1"),))
    cores: tuple[tuple[Core, float], ...] = (("cube", CONSTANTS["gap_into_mix_us"]), ("mix", 0.0))
    for core, longer in cores:
        inside = [operator(core, SMALL, "X", 24, duration_us=20.0, wait_us=0.5) for _ in range(2)]
        assert simulate(plan, [vector()], inside).terms["gap"] == pytest.approx(0.5 + longer)


def test_a_head_grows_with_the_blocks_that_are_launched() -> None:
    """As on A2: 0.54 us on 1 to 3 AIV, 2.4 us on 36."""
    heads = [simulate(Plan(), [vector(blocks=blocks)]).terms["head"] for blocks in (2, 36)]
    assert heads == pytest.approx([0.54, 2.42], abs=0.1)


def test_the_first_run_of_a_kernel_costs_more_and_preloading_hides_it() -> None:
    """Later runs in the same step cost less; a SuperKernel preloads the code of all but its first operator."""
    first = CONSTANTS["first_use_us"]
    inside = [vector(50, kind) for kind in ("Mul", "Sub")]
    assert simulate(Plan(), inside, inside).terms["icache"] == pytest.approx(2 * first)
    scope = Plan((Scope("u0", "u1"),))
    assert simulate(scope, inside, inside).terms["icache"] == pytest.approx(first)
    without = Plan((Scope("u0", "u1", (("preload-code", "none"),)),))
    assert simulate(without, inside, inside).terms["icache"] > 2 * first


@given(UNITS, OPTIONS, st.data())
def test_the_terms_add_up_and_every_operator_stays_busy(
    units: list[list[Operator]], options: Options, data: st.DataObject
) -> None:
    """Under any plan, scopes change only overheads, and the result is deterministic."""
    first = data.draw(st.integers(0, len(units) - 1))
    last = data.draw(st.integers(first, len(units) - 1))
    plan = Plan((Scope(f"u{first}", f"u{last}", options),))
    step = simulate(plan, *units)
    assert sum(step.terms.values()) == pytest.approx(step.total_us)
    assert step.terms["busy"] == pytest.approx(simulate(Plan(), *units).terms["busy"])
    assert sum(span.operators for span in step.spans) == sum(map(len, units))
    assert sum(span.time_us for span in step.spans) == pytest.approx(step.total_us)
    assert sum(span.baseline_us for span in step.spans) == pytest.approx(simulate(Plan(), *units).total_us)
    assert step == simulate(plan, *units)


@given(UNITS)
def test_one_operator_in_a_scope_gains_nothing(units: list[list[Operator]]) -> None:
    """A SuperKernel over one operator is equal to the operator."""
    assert gain_us(units[0][:1]) == pytest.approx(0)


def test_the_gain_grows_with_the_number_of_small_operators() -> None:
    """Each additional operator saves one more dispatch."""
    gains = [gain_us([vector()] * count) for count in (1, 2, 4, 8, 16)]
    assert gains == sorted(gains)
    assert gains[-1] > 10 * gains[1] > 0


def test_the_gain_vanishes_with_large_operators() -> None:
    """The absolute gain does not depend on how long operators compute, so its share of the step decreases."""
    shares = [gain_us([vector(t)] * 8) / simulate(Plan(), [vector(t)] * 8).total_us for t in (1, 10, 100, 1000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.003 < 0.3 < shares[0]


def test_an_operator_that_cannot_be_fused_splits_the_scope() -> None:
    """It remains a task between two SuperKernels, and the span names its type."""
    cast = vector(kind="Cast", can_fuse=False)
    step = simulate(Plan((Scope("u0", "u0"),)), [vector(), vector(), cast, vector(), vector()])
    (span,) = step.spans
    assert step.tasks == 3
    own = FusedPart(1, types=("Cast",))
    assert [part for part in span.parts if not part.superkernel] == [own]
    assert [part.superkernel for part in span.parts] == ["MIX_AIV_1_0", "", "MIX_AIV_1_0"]
    assert gain_us([vector(), vector(), cast, vector(), vector()]) < gain_us([vector()] * 5)


def test_operators_between_two_units_belong_to_the_scope_around_them() -> None:
    """Residual additions, for example, are between units."""
    operators, layout = step_of([vector(), vector()], [vector(), vector()])
    operators = numbered([*operators[:2], vector(unit=None), *operators[2:]])
    one = step_latency(operators, Plan((Scope("u0", "u1"),)), layout, CONSTANTS)
    two = step_latency(operators, Plan((Scope("u0", "u0"), Scope("u1", "u1"))), layout, CONSTANTS)
    assert isinstance(one, SimulatedStep) and one.tasks == 1
    assert isinstance(two, SimulatedStep) and [span.operators for span in two.spans] == [2, 1, 2]


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ([vector(), vector()], "MIX_AIV_1_0"),
        ([cube(), cube()], "MIX_AIC_1_0"),
        ([cube(), vector(blocks=24)], "MIX_AIC_1_1"),
        ([cube(blocks=8), vector(blocks=48)], "MIX_AIC_1_2"),
    ],
)
def test_kernel_types_merge_as_graph_autofusion_merges_them(inside: list[Operator], kind: str) -> None:
    """Facts 2.3."""
    assert simulate(Plan((Scope("u0", "u0"),)), inside).spans[0].parts == (FusedPart(len(inside), kind),)


def test_mixed_borders_cost_more_than_borders_of_one_type() -> None:
    """All cores synchronise where vector work follows cube work."""
    scope = Plan((Scope("u0", "u0"),))
    sorted_by_type = simulate(scope, [cube(), cube(), cube(), vector(), vector(), vector()])
    alternating = simulate(scope, [cube(), vector(), cube(), vector(), cube(), vector()])
    assert alternating.terms["barrier"] > sorted_by_type.terms["barrier"]


def test_time_shares_are_those_of_the_simulated_baseline() -> None:
    """If nothing was computed, a layout's shares come from the model."""
    operators, layout = step_of([vector(96)], [cube(296)])
    shares = StepModel(operators, layout, CONSTANTS).time_shares()
    first = 96 + launch_us("vector", 48, CONSTANTS) + CONSTANTS["first_use_us"]
    second = CONSTANTS["dispatch_gap_us"] + 296 + launch_us("cube", 24, CONSTANTS) + CONSTANTS["first_use_us"]
    assert shares == pytest.approx({"u0": first / (first + second), "u1": second / (first + second)})


def test_one_operator_on_all_cores_makes_every_barrier_more_expensive() -> None:
    """A SuperKernel is launched on as many cores as its largest operator."""
    few = [vector(blocks=2) for _ in range(6)]
    scope = Plan((Scope("u0", "u0"),))
    assert simulate(scope, [*few[:5], vector()]).terms["barrier"] > simulate(scope, few).terms["barrier"]


def test_fewer_cores_take_longer_but_not_in_proportion() -> None:
    """Facts 6.2: half the cores cost 23 to 57% more time."""
    whole = simulate(Plan(), [cube(LARGE)]).terms["busy"]
    half = simulate(Plan(), [cube(LARGE, blocks=12)]).terms["busy"]
    assert 1.23 <= half / whole <= 1.57


def test_stream_fusion_overlaps_cube_work_with_vector_work_of_the_other_stream() -> None:
    """Cube work overlaps with vector work; vector work does not overlap with vector work."""
    fused = (("stream-fusion", 1),)
    mixed = [cube(50), vector(40, stream=1), cube(50), vector(40, stream=1)]
    alike = [replace(each, core="vector", type="Mul") for each in mixed]
    assert simulate(Plan((Scope("u0", "u0", fused),)), mixed).terms["stream_overlap"] == pytest.approx(-80)
    assert simulate(Plan((Scope("u0", "u0", fused),)), alike).terms["stream_overlap"] == pytest.approx(0)


def test_preloading_code_reduces_waits() -> None:
    """It hides loading behind computation; copies help too, and cost compile time."""
    inside = [vector(20, kind) for kind in ("Mul", "Sub", "Pow", "Rsqrt")]

    def icache(**options: int | str) -> float:
        named = tuple((name.replace("_", "-"), value) for name, value in options.items())
        return simulate(Plan((Scope("u0", "u0", named),)), inside).terms["icache"]

    assert icache() == CONSTANTS["first_use_us"]  # of the first operator
    assert icache(preload_code="none") > icache(preload_code="max") > icache()
    assert icache(preload_code="none", split_mode=1) > icache(preload_code="none")
    few, many = (simulate(Plan((Scope("u0", "u0", (("split-mode", n),)),)), inside).compile_s for n in (1, 8))
    assert few < many


def test_equal_superkernels_are_compiled_once() -> None:
    """A repeated layer needs no further compilation."""
    layers = [[vector(), cube(), vector()] for _ in range(4)]
    one = simulate(Plan((Scope("u0", "u0"),)), *layers)
    all_of_them = simulate(Plan(tuple(Scope(f"u{i}", f"u{i}") for i in range(4))), *layers)
    assert one.compile_s == all_of_them.compile_s


def test_other_constants_have_another_digest() -> None:
    """So that a study does not continue with figures of another cost model."""
    assert load_constants().digest == CONSTANTS.digest
    assert with_values(CONSTANTS, head_us=2.0).digest != CONSTANTS.digest


def test_every_constant_says_where_it_comes_from() -> None:
    """It has a source, or is assumed for a reason."""
    for name, constant in CONSTANTS.constants.items():
        assert constant.source or (constant.assumed and constant.reason), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("head_us:", "heda_us:"), "head_us"),
        (("{value: 24, unit: cores", "{value: -1, unit: cores"), "above zero"),
        (("assumed: true, reason", "reason"), "source"),
        (("version: 1", "version: 2"), "version"),
    ],
)
def test_a_mistake_in_the_constants_is_one_line(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    """With the file and the fix."""
    path = tmp_path / "mine.yaml"
    path.write_text(ATLAS_A3.read_text().replace(*change, 1))
    with one_line_error(SimulationError, message):
        load_constants(path)
