"""The cost model of Atlas A3: its formulas, trace and calibration. No figure here was measured on a device."""

import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from sktune.ascend.ge_graph import GeGraph, GeOperator, TensorSpec
from sktune.backends.sim.calibration import calibrate
from sktune.backends.sim.constants import ATLAS_A3, Constants, load_constants
from sktune.backends.sim.deployment import COMBINE, DISPATCH, deploy, deployment_notes
from sktune.backends.sim.ge import from_ge_graph
from sktune.backends.sim.model import SimulatedFailure, SimulatedStep, StepModel
from sktune.backends.sim.operators import Core, Operator, from_kernel_table, numbered
from sktune.backends.sim.trace import trace_operators
from sktune.core.errors import SimulationError, SpaceError, TargetError
from sktune.core.fused_scopes import FusedPart
from sktune.core.layout import Layout, Unit
from sktune.core.outcome import Reason
from sktune.core.plan import Option, Options, Plan, Scope
from sktune.targets import PresetSpec
from sktune.targets.loading import load
from sktune.targets.presets import load_preset
from sktune.targets.tracing import trace_layout
from tests.builders import ROOT

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
    assert step.terms["barrier"] == step.terms["icache"] == step.terms["early_start"] == 0
    assert step.terms["gap"] == 3 * CONSTANTS["dispatch_gap_us"]
    assert step.terms["head"] == 4 * CONSTANTS["head_us"]
    assert step.total_us == pytest.approx(3 * SMALL + LARGE + 3 + 4)


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
    assert shares[-1] < 0.002 < 0.3 < shares[0]


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
    assert shares == pytest.approx({"u0": 98 / 396, "u1": 298 / 396})


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


def test_stream_fusion_turns_early_start_off() -> None:
    """Facts 2.2; with only one stream it then only has costs."""
    inside = [vector(10), cube(10)] * 3
    assert simulate(Plan((Scope("u0", "u0", (("stream-fusion", 1),)),)), inside).terms["early_start"] == 0
    assert gain_us(inside, options=(("stream-fusion", 1),)) < gain_us(inside)
    assert gain_us(inside, options=(("early-start", 0),)) < gain_us(inside, options=(("early-start", 2),))


def test_stream_fusion_overlaps_cube_work_with_vector_work_of_the_other_stream() -> None:
    """Cube work overlaps with vector work; vector work does not overlap with vector work."""
    fused = (("stream-fusion", 1),)
    mixed = [cube(50), vector(40, stream=1), cube(50), vector(40, stream=1)]
    alike = [replace(each, core="vector", type="Mul") for each in mixed]
    assert simulate(Plan((Scope("u0", "u0", fused),)), mixed).terms["stream_overlap"] == pytest.approx(-80)
    assert simulate(Plan((Scope("u0", "u0", fused),)), alike).terms["stream_overlap"] == 0


def failure_of(operators: Sequence[Operator], *options: tuple[str, Option]) -> SimulatedFailure:
    """Return why one scope over all operators fails."""
    layout = Layout((Unit("u0", "u0"),), ())
    inside = numbered([replace(each, unit="u0", name=f"o{place}") for place, each in enumerate(operators)])
    failure = step_latency(inside, Plan((Scope("u0", "u0", options),)), layout, CONSTANTS)
    assert isinstance(failure, SimulatedFailure)
    return failure


def on_streams(*streams: int, linked: bool) -> list[Operator]:
    """Return cube and vector operators in turn on these streams; ``linked``: each waits for the one before."""
    return [
        (cube if place % 2 else vector)(50, stream=stream, after=(place - 1,) if linked and place else ())
        for place, stream in enumerate(streams)
    ]


def test_neighbours_on_two_streams_without_an_event_do_not_compile() -> None:
    """The generator refuses them with EB0500 unless stream-fusion=1; the message says so, and what to do."""
    unlinked = on_streams(0, 1, 0, 1, linked=False)
    failure = failure_of(unlinked)
    assert failure.reason is Reason.COMPILE_FAILED
    assert "EB0500" in failure.detail and "stream-fusion=1" in failure.detail
    assert failure.blamed == "u0"
    assert simulate(Plan((Scope("u0", "u0", (("stream-fusion", 1),)),)), unlinked).tasks == 1


def test_streams_that_are_all_linked_run_one_after_the_other_in_a_superkernel() -> None:
    """With stream-fusion=1, too: the generator makes two queues only where neighbours share no event."""
    linked = on_streams(0, 1, 0, 1, linked=True)
    for options in ((), (("stream-fusion", 1),)):
        step = simulate(Plan((Scope("u0", "u0", options),)), linked)
        assert step.tasks == 1
        assert step.total_us > 200


def test_a_third_stream_compiles_if_it_is_linked_or_fused() -> None:
    """The generator counts no streams."""
    assert simulate(Plan((Scope("u0", "u0"),)), on_streams(0, 1, 2, linked=True)).tasks == 1
    fused = Plan((Scope("u0", "u0", (("stream-fusion", 1),)),))
    assert simulate(fused, on_streams(0, 1, 2, linked=False)).tasks == 1


def test_an_operator_on_a_stream_of_its_own_does_not_cut_the_scope() -> None:
    """The SuperKernel notifies it and waits for it inside, as with every collective that is not fused."""
    apart = [vector(10), vector(10, kind="HcomAllReduce", stream=1, can_fuse=False, after=(0,)), vector(10, after=(1,)),
             vector(10)]  # fmt: skip
    step = simulate(Plan((Scope("u0", "u0"),)), apart)
    assert step.tasks == 2
    assert step.terms["stream_event"] > 0
    within = [replace(each, stream=0, after=()) for each in apart]
    assert simulate(Plan((Scope("u0", "u0"),)), within).tasks == 3


def test_a_refused_collective_is_foreign_on_the_scopes_stream_and_nothing_on_its_own() -> None:
    """It has lost the label when the scope is checked."""
    strict = (("strict-scope-check", "abort"),)
    refused = operator("communication", 10, "HcomAllReduce", 48, can_fuse=False)
    within = [vector(10), refused, vector(10)]
    assert "is not in the scope" in failure_of(within, *strict).detail
    apart = [vector(10), replace(refused, stream=1, after=(0,)), vector(10, after=(1,)), vector(10)]
    assert simulate(Plan((Scope("u0", "u0", strict),)), apart).tasks == 2


def test_a_cube_operator_that_waits_after_a_vector_operator_does_not_compile() -> None:
    """The generator of 9.0.0 to master uses a name there that it does not define."""
    waiting = [vector(10), vector(10, kind="HcomAllReduce", stream=1, can_fuse=False), cube(10, after=(1,)), vector(10)]
    failure = failure_of(waiting)
    assert "NameError" in failure.detail and "end the scope before" in failure.detail


def test_cores_that_are_too_few_for_an_operator_do_not_compile() -> None:
    """debug-aic-num alone means no vector cores."""
    failure = failure_of([vector(), cube()], ("debug-aic-num", 24))
    assert "debug-aiv-num" in failure.detail


def test_feed_sync_all_clears_its_workspace_first() -> None:
    """Also where no operator needs it."""
    fed = Plan((Scope("u0", "u0", (("feed-sync-all", 1),)),))
    assert simulate(fed, [vector()] * 3).terms["sync_all"] == CONSTANTS["feed_prologue_us"]


def test_early_start_without_hooks_is_the_code_of_stream_fusion_on_one_stream() -> None:
    """Byte for byte, so it is one plan; with early-start=0 every border is a full barrier, fused or not."""
    inside = [vector(10), cube(10)] * 3
    times = {text: simulate(Plan((Scope("u0", "u0", options),)), inside).total_us for text, options in {
        "hooks": (), "without": (("early-start", 2),), "fused": (("stream-fusion", 1),),
        "barriers": (("early-start", 0),), "both": (("early-start", 0), ("stream-fusion", 1)),
    }.items()}  # fmt: skip
    assert times["hooks"] < times["without"] == times["fused"] < times["barriers"] == times["both"]


def test_sync_all_on_too_few_cores_hangs_without_feed_sync_all() -> None:
    """Facts 3.4; the option has a small cost."""
    inside = [vector(), vector(blocks=8, calls_sync_all=True)]
    operators, layout = step_of(inside)
    failure = step_latency(operators, Plan((Scope("u0", "u0"),)), layout, CONSTANTS)
    assert isinstance(failure, SimulatedFailure)
    assert failure.reason is Reason.TIMEOUT
    assert "simulated" in failure.detail and "feed-sync-all=1" in failure.detail
    fed = simulate(Plan((Scope("u0", "u0", (("feed-sync-all", 1),)),)), inside)
    assert fed.terms["sync_all"] > 0
    assert simulate(Plan((Scope("u0", "u0"),)), [vector(calls_sync_all=True)] * 2).terms["sync_all"] == 0


def test_a_strict_scope_fails_or_is_dropped() -> None:
    """Facts 2.2: abort fails, bypass leaves the operators unfused."""
    operators, layout = step_of([vector(), vector(), vector(kind="Cast", can_fuse=False)])
    abort = step_latency(operators, Plan((Scope("u0", "u0", (("strict-scope-check", "abort"),)),)), layout, CONSTANTS)
    assert isinstance(abort, SimulatedFailure) and "Cast" in abort.detail
    bypass = step_latency(operators, Plan((Scope("u0", "u0", (("strict-scope-check", "bypass"),)),)), layout, CONSTANTS)
    baseline = step_latency(operators, Plan(), layout, CONSTANTS)
    assert isinstance(bypass, SimulatedStep) and isinstance(baseline, SimulatedStep)
    assert bypass.total_us == baseline.total_us


def test_an_option_that_the_compiler_rejects_is_rejected() -> None:
    """The message suggests the nearest one."""
    operators, layout = step_of([vector()])
    with pytest.raises(SpaceError, match="early-start"):
        step_latency(operators, Plan((Scope("u0", "u0", (("early-star", 0),)),)), layout, CONSTANTS)


def test_preloading_code_reduces_waits() -> None:
    """It hides loading behind computation; copies help too, and cost compile time."""
    inside = [vector(20, kind) for kind in ("Mul", "Sub", "Pow", "Rsqrt")]

    def icache(**options: int | str) -> float:
        named = tuple((name.replace("_", "-"), value) for name, value in options.items())
        return simulate(Plan((Scope("u0", "u0", named),)), inside).terms["icache"]

    assert icache() == 0
    assert icache(preload_code="none") > icache(preload_code="max") > 0
    assert icache(preload_code="none", split_mode=1) > icache(preload_code="none")
    few, many = (simulate(Plan((Scope("u0", "u0", (("split-mode", n),)),)), inside).compile_s for n in (1, 8))
    assert few < many


def test_equal_superkernels_are_compiled_once() -> None:
    """A repeated layer needs no further compilation."""
    layers = [[vector(), cube(), vector()] for _ in range(4)]
    one = simulate(Plan((Scope("u0", "u0"),)), *layers)
    all_of_them = simulate(Plan(tuple(Scope(f"u{i}", f"u{i}") for i in range(4))), *layers)
    assert one.compile_s == all_of_them.compile_s


# A measured profile


def table_of(plan: Plan, *units: list[Operator], constants: object = None, seed: int = 0) -> pd.DataFrame:
    """Return ten steps of a simulated profile with noise of 1% on every time."""
    operators, layout = step_of(*units)
    model = StepModel(operators, layout, constants or CONSTANTS)  # type: ignore[arg-type]
    one = model.timeline(plan)
    rng = np.random.default_rng(seed)
    steps = []
    for number in range(10):
        noisy = one.assign(step=number)
        for column in ("duration_us", "wait_us"):
            noisy[column] = one[column] * rng.normal(1, 0.01, len(one))
        noisy["start_us"] = (noisy["wait_us"] + noisy["duration_us"]).cumsum() - noisy["duration_us"] + number * 1e6
        steps.append(noisy)
    return pd.concat(steps, ignore_index=True)


def unit_like(letters: str, time_us: float) -> list[Operator]:
    """Return one operator per letter, v for vector and c for cube, each slightly longer than the previous."""
    return [(vector if letter == "v" else cube)(time_us + place) for place, letter in enumerate(letters)]


MANY = [unit_like(("vccvv", "vvvv", "cccc", "cvcv")[t % 4], t) for t in range(2, 42)]
EACH = Plan(tuple(Scope(f"u{i}", f"u{i}") for i in range(len(MANY))))


def test_a_measured_baseline_is_reproduced() -> None:
    """A simulation from a profile without scopes reproduces the profile."""
    operators, layout = step_of(*MANY)
    table = StepModel(operators, layout, CONSTANTS).timeline(Plan())
    measured = from_kernel_table(table, CONSTANTS, layout)
    again = step_latency(measured, Plan(), layout, CONSTANTS)
    assert isinstance(again, SimulatedStep)
    assert again.total_us == pytest.approx((table["start_us"] + table["duration_us"]).max())
    assert [each.unit for each in measured] == [each.unit for each in operators]
    assert step_latency(measured, EACH, layout, CONSTANTS) != again


def test_a_profiles_layers_and_units_place_its_tasks() -> None:
    """As `sktune profile` finds them; streams may be text, and missing values are NaN."""
    nothing = float("nan")
    columns = ["step", "device", "stream", "name", "type", "core", "start_us", "duration_us", "wait_us", "blocks",
               "layer", "unit"]  # fmt: skip
    rows = [
        (-1, 0, "s", "early", "Mul", "AI_VECTOR_CORE", 0.0, 5.0, nothing, 48, -1, "step"),
        (0, 0, "s", "a", "MatMulV2", "AI_CORE", 10.0, 10.0, nothing, nothing, 0, "self_attn"),
        (0, 0, "s", "b", "Mul", "AI_VECTOR_CORE", 22.0, 4.0, 2.0, 48, 1, "self_attn"),
        (0, 0, "s", "c", "Mul", "AI_VECTOR_CORE", 28.0, 4.0, 2.0, 48, -1, "lm_head"),
    ]
    units = (Unit("l0.self_attn", "self_attn", 0), Unit("l1.self_attn", "self_attn", 1), Unit("lm_head", "lm_head"))
    table = pd.DataFrame(rows, columns=columns)
    operators = from_kernel_table(table, CONSTANTS, Layout(units, ()))
    assert [each.unit for each in operators] == ["l0.self_attn", "l1.self_attn", "lm_head"]
    assert operators[0].blocks == 24 and operators[0].wait_us is None
    with pytest.raises(SimulationError, match="no task"):
        from_kernel_table(table, CONSTANTS, Layout((Unit("other", "other"),), ()))


def test_streams_of_a_measured_baseline_overlap_as_they_did() -> None:
    """A task that waited for another stream also waits for it in the simulation."""
    rows = [
        (0, 0, 0, "a", "MatMulV2", "AI_CORE", 0.0, 10.0, 0.0, 24),
        (0, 0, 1, "b", "Mul", "AI_VECTOR_CORE", 1.0, 4.0, 0.0, 48),
        (0, 0, 1, "c", "Mul", "AI_VECTOR_CORE", 11.0, 5.0, 6.0, 48),
    ]
    table = pd.DataFrame(rows, columns=["step", "device", "stream", "name", "type", "core", "start_us", "duration_us",
                                        "wait_us", "blocks"])  # fmt: skip
    operators = from_kernel_table(table, CONSTANTS)
    assert operators[2].after == (0,)
    step = step_latency(operators, Plan(), Layout((), ()), CONSTANTS)
    assert isinstance(step, SimulatedStep)
    assert 15 <= step.total_us <= 16


def test_calibration_recovers_the_constants_behind_the_profiles() -> None:
    """Gap, head, efficiency and barriers are recovered; constants that bound no task keep their values."""
    true_values = with_values(
        CONSTANTS,
        dispatch_gap_us=1.7,
        head_us=2.2,
        hbm_efficiency=0.7,
        barrier_vector_us=0.6,
        barrier_cube_us=1.1,
        signal_us=0.8,
    )
    operators, _ = step_of(*MANY)
    baseline = table_of(Plan(), *MANY, constants=true_values)
    fused = table_of(EACH, *MANY, constants=true_values, seed=1)
    result = calibrate([baseline, fused], CONSTANTS, operators)
    kept = {"busy_floor_us", "cube_efficiency", "barrier_mix_us"}
    assert {row.name for row in result.fitted if row.after is None} == kept
    for row in result.fitted:
        if row.after is not None and row.standard_error is not None:
            assert row.standard_error < 0.2
            assert row.after == pytest.approx(true_values[row.name], abs=4 * row.standard_error)


def test_similar_superkernels_do_not_determine_the_barriers() -> None:
    """One kind of scope gives one equation for three constants."""
    alike = [unit_like("vccvv", t) for t in range(2, 22)]
    plan = Plan(tuple(Scope(f"u{i}", f"u{i}") for i in range(len(alike))))
    result = calibrate([table_of(Plan(), *alike), table_of(plan, *alike)], CONSTANTS)
    notes = {row.name: row.note for row in result.fitted if row.after is None}
    assert "too similar" in notes["barrier_cube_us"]


def test_a_calibration_is_a_file_that_the_model_accepts(tmp_path: Path) -> None:
    """It has standard errors, and constants that were not fitted are still marked as assumed."""
    result = calibrate([table_of(Plan(), *MANY, constants=with_values(CONSTANTS, dispatch_gap_us=2.5))], CONSTANTS)
    path = tmp_path / "mine.yaml"
    path.write_text(result.constants.to_yaml())
    mine = load_constants(path)
    assert mine["dispatch_gap_us"] == pytest.approx(2.5, rel=0.05)
    assert mine.constants["dispatch_gap_us"].fitted and mine.constants["dispatch_gap_us"].standard_error
    assert mine.constants["barrier_mix_us"].assumed
    notes = {row[0]: row[-1] for row in result.rows()}
    assert "no SuperKernel" in notes["barrier_mix_us (us)"]


@pytest.mark.parametrize("host_us", [None, 48.4])
def test_waits_around_tasks_on_both_cores_are_no_outliers(host_us: float | None) -> None:
    """They are ten times longer than others, and a step has them in every layer; a wait for the host is none of them.

    As on a 910B2: about 0.02 us between tasks on one kind of core, 1.20 and 0.88 us into and out of a mixed one.
    """
    vector, cube, mix = "AI_VECTOR_CORE", "AI_CORE", "MIX_AIC"
    layer = [("RmsNorm", vector, 0.11), ("MatMulV2", cube, 0.12), ("SplitVD", vector, 0.0),
             ("FusedInferAttentionScore", mix, 1.20), ("MatMulV2", cube, 0.88), ("Add", vector, 0.0),
             ("MatMulV2", cube, 0.02), ("Swish", vector, 0.03), ("MatMulV2", cube, 0.02)]  # fmt: skip
    rows = [(kind, core, wait) for _ in range(4) for kind, core, wait in layer]
    if host_us is not None:
        rows[1] = ("MatMulV2", "AI_CORE", host_us)
    frame = pd.DataFrame(rows, columns=["type", "core", "wait_us"]).assign(
        step=0, device="0", stream="1", duration_us=5.0, blocks=20.0, start_us=lambda rows: 10.0 * np.arange(len(rows))
    )
    frame["name"] = [f"{kind}_{place}" for place, kind in enumerate(frame["type"])]
    fitted = next(row for row in calibrate([frame], CONSTANTS).fitted if row.name == "dispatch_gap_us")
    waits = [wait for _, _, wait in rows[1:] if wait != host_us]
    assert fitted.after == pytest.approx(sum(waits) / len(waits))
    assert fitted.note == f"mean of {len(waits)} waits before a task"


def test_profiles_without_usable_data_are_refused_in_one_line() -> None:
    """The line says what is missing."""
    table = table_of(Plan(), [vector()])
    with pytest.raises(SimulationError, match="nothing can be fitted"):
        calibrate([table], CONSTANTS)
    with pytest.raises(SimulationError, match="no profile"):
        calibrate([], CONSTANTS)
    with pytest.raises(SimulationError, match="'wait_us'"):
        calibrate([table.drop(columns="wait_us")], CONSTANTS)
    with pytest.raises(SimulationError, match="contains SuperKernels"):
        from_kernel_table(table_of(EACH, *MANY), CONSTANTS)


# The constants


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
    with pytest.raises(SimulationError, match=message) as caught:
        load_constants(path)
    assert "\n" not in str(caught.value)


# The trace


@pytest.fixture(scope="module")
def full() -> tuple[tuple[Operator, ...], Layout]:
    """Return the published DeepSeek-V3, traced on shapes."""
    target = load(PresetSpec("deepseek-v3", scale="full", device="meta"))
    layout = trace_layout(target, load_preset("deepseek-v3").space)
    return trace_operators(target, layout, CONSTANTS), layout


@pytest.mark.slow
def test_the_published_model_is_traced_without_weights(full: tuple[tuple[Operator, ...], Layout]) -> None:
    """61 layers, with equal tasks in all layers of a kind; the matmuls have the published shapes."""
    operators, layout = full
    assert len(layout.layers) == 61
    assert [layer.kind for layer in layout.layers] == ["dense"] * 3 + ["moe"] * 58
    assert all(unit.time_share == 0 for unit in layout.units)
    by_layer = [[op.type for op in operators if f".layers.{i}." in f"{op.module}."] for i in range(61)]
    assert by_layer[0] == by_layer[2] and by_layer[3] == by_layer[60]
    grouped = [op for op in operators if op.type == "GroupedMatmul"]
    assert len(grouped) == 2 * 58
    assert grouped[0].flops == 2 * 96 * 8 * 7168 * 4096


@pytest.mark.slow
def test_one_die_of_the_deployment_is_of_the_published_size(full: tuple[tuple[Operator, ...], Layout]) -> None:
    """CloudMatrix384: 874 us per layer in INT8 with two micro-batches; bf16 in one stream is within a factor of 2.5."""
    operators, layout = full
    die = deploy(operators, CONSTANTS)
    assert [op.type for op in die].count(DISPATCH) == [op.type for op in die].count(COMBINE) == 58
    assert "256 routed experts over 256 dies" in deployment_notes(operators, CONSTANTS)
    baseline = step_latency(die, Plan(), layout, CONSTANTS)
    assert isinstance(baseline, SimulatedStep)
    assert 874 < baseline.total_us / 61 < 2.5 * 874
    layers = [[unit.name for unit in layout.units if unit.layer == index] for index in range(61)]
    fused = step_latency(die, Plan(tuple(Scope(names[0], names[-1]) for names in layers)), layout, CONSTANTS)
    assert isinstance(fused, SimulatedStep)
    assert 0.9 < fused.total_us / baseline.total_us < 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_small_model_is_traced_on_real_and_on_meta_tensors(device: str) -> None:
    """Both give the matmuls of the model; the state is restored."""
    target = load(PresetSpec("llama", scale="tiny", device=device))
    layout = trace_layout(target, load_preset("llama").space)
    before = {name: tensor.clone() for name, tensor in target.state.items()}
    operators = trace_operators(target, layout, CONSTANTS)
    layers = len(layout.layers)
    assert [op.type for op in operators].count("MatMulV2") == 7 * layers + 1
    assert [op.type for op in operators].count("FusedInferAttentionScore") == layers
    assert {op.unit for op in operators} - {None} <= {unit.name for unit in layout.units}
    assert [op.position for op in operators] == list(range(len(operators)))
    if device == "cpu":
        assert all((before[name] == tensor).all() for name, tensor in target.state.items())
    assert deploy(operators, CONSTANTS) == operators
    assert deployment_notes(operators, CONSTANTS) == ""


def test_shapes_alone_have_no_weights_to_load(tmp_path: Path) -> None:
    """A checkpoint cannot be loaded into a model that only has shapes."""
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(TargetError, match="shapes only"):
        load(PresetSpec("llama", scale="tiny", device="meta", weights=str(tmp_path)))


def test_units_that_run_nothing_cost_nothing() -> None:
    """A scope over units without device tasks changes nothing."""
    operators, _ = step_of([vector()])
    layout = Layout((Unit("u0", "u0"), Unit("quiet", "quiet")), ())
    step = step_latency(operators, Plan((Scope("quiet", "quiet"),)), layout, CONSTANTS)
    assert isinstance(step, SimulatedStep) and step.total_us == pytest.approx(simulate(Plan(), [vector()]).total_us)


def test_a_ge_graph_gives_the_tasks_of_its_units() -> None:
    """Sizes come from the graph's shapes, transposed or not; constants and views are not tasks."""
    rows, inner, columns = (TensorSpec(shape, "bfloat16") for shape in ((96, 512), (1024, 512), (96, 1024)))
    graph = GeGraph(
        "graph",
        (
            GeOperator("x", "Data", output_specs=(rows,)),
            GeOperator("w", "Data", output_specs=(inner,)),
            GeOperator("mm", "MatMulV2", ("x:0", "w:0"), (rows, inner), (columns,), scope="u0"),
            GeOperator("view", "Reshape", ("mm:0",), (columns,), (columns,), scope="u0"),
            GeOperator("cast", "Cast", ("view:0",), (columns,), (replace(columns, dtype="float32"),), stream="side"),
        ),
    )
    layout = Layout((Unit("u0", "u0"),), ())
    matmul, cast = from_ge_graph(graph, layout, CONSTANTS)
    assert (matmul.core, matmul.unit, matmul.flops) == ("cube", "u0", 2 * 96 * 512 * 1024)
    assert matmul.bytes_moved == 2 * (96 * 512 + 1024 * 512 + 96 * 1024)
    assert (cast.core, cast.unit, cast.can_fuse) == ("vector", None, False)
    assert cast.stream != matmul.stream
    with pytest.raises(SimulationError, match="units_plan"):
        from_ge_graph(graph, Layout((Unit("u1", "u1"),), ()), CONSTANTS)


@pytest.mark.slow
def test_the_published_cases_in_the_docs_match_the_model() -> None:
    """No figure there is written by hand; a release of transformers may add or remove a few small operators."""
    root = ROOT
    location = importlib.util.spec_from_file_location("sim_cases", root / "benchmarks" / "sim_cases.py")
    assert location is not None and location.loader is not None
    cases = importlib.util.module_from_spec(location)
    sys.modules["sim_cases"] = cases
    location.loader.exec_module(cases)
    page = (root / "docs" / "explanation" / "simulation.md").read_text()
    written = page.partition(cases.BEGIN)[2].partition(cases.END)[0].strip()
    for line, line_now in zip(written.splitlines(), cases.table(CONSTANTS).strip().splitlines(), strict=True):
        assert FIGURE.sub("#", line) == FIGURE.sub("#", line_now)
        for column, (cell, cell_now) in enumerate(zip(line.split("|"), line_now.split("|"), strict=True)):
            now = figures(cell_now)
            accepted = pytest.approx(now, abs=1.5) if column == ERROR_COLUMN else pytest.approx(now, rel=0.03)
            assert figures(cell) == accepted


FIGURE = re.compile(r"[-+]?\d+(?:\.\d+)?")
ERROR_COLUMN = 5
"""The column in per cent or percentage points."""


def figures(cell: str) -> list[float]:
    return [float(figure) for figure in FIGURE.findall(cell)]
