"""The simulator from a measured profile, and its calibration."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sktune.core.errors import SimulationError
from sktune.core.layout import Layout, Unit
from sktune.core.plan import Plan, Scope
from sktune.sim.calibration import calibrate
from sktune.sim.constants import load_constants
from sktune.sim.launch import gaps_us
from sktune.sim.model import SimulatedStep, StepModel
from sktune.sim.operators import Operator, from_kernel_table
from tests.sim.simulated_steps import CONSTANTS, cube, step_latency, step_of, vector, with_values


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
    # Behind a SuperKernel comes another one, so that their gap is not divided.
    kept = {"busy_floor_us", "cube_efficiency", "barrier_mix_us", "gap_into_mix_us", "gap_out_of_mix_us"}
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
    assert mine.constants["signal_us"].assumed
    notes = {row[0]: row[-1] for row in result.rows()}
    assert "no SuperKernel" in notes["barrier_mix_us (us)"]


def waits_of_layers(layers: int) -> pd.DataFrame:
    """Return a kernel table with the waits of a 910B2, one attention in each layer.

    About 0.04 us between tasks on one kind of core, 1.20 and 0.88 us into and out of a MIX task
    (lukaIvanic/paddle_ocr_vl_npu, 654cb068).
    """
    vector, cube, mix = "AI_VECTOR_CORE", "AI_CORE", "MIX_AIC"
    layer = [("RmsNorm", vector, 0.11), ("MatMulV2", cube, 0.12), ("SplitVD", vector, 0.0),
             ("FusedInferAttentionScore", mix, 1.20), ("MatMulV2", cube, 0.88), ("Add", vector, 0.0),
             ("MatMulV2", cube, 0.02), ("Swish", vector, 0.03), ("MatMulV2", cube, 0.02)]  # fmt: skip
    frame = pd.DataFrame(layer * layers, columns=["type", "core", "wait_us"]).assign(
        step=0, device="0", stream="1", duration_us=5.0, blocks=20.0, start_us=lambda rows: 10.0 * np.arange(len(rows))
    )
    frame["name"] = [f"{kind}_{place}" for place, kind in enumerate(frame["type"])]
    return frame


@pytest.mark.parametrize("host_us", [None, 48.4])
def test_waits_around_tasks_on_both_cores_are_no_outliers(host_us: float | None) -> None:
    """They are thirty times longer than others, and a step has them in every layer; a wait for the host is none."""
    frame = waits_of_layers(18)
    if host_us is not None:
        frame.loc[1, "wait_us"] = host_us
    fitted = {row.name: row for row in calibrate([frame], CONSTANTS).fitted}
    gap = fitted["dispatch_gap_us"].after
    assert gap is not None
    assert gap == pytest.approx(0.043, abs=0.002)
    assert fitted["gap_into_mix_us"].after == pytest.approx(1.20 - gap)
    assert fitted["gap_out_of_mix_us"].after == pytest.approx(0.88 - gap)
    assert fitted["gap_into_mix_us"].note == "18 waits before a MIX task"


def test_fitted_gaps_add_up_to_those_of_the_profile() -> None:
    """A step costs what its tasks waited for: 0.268 us on average, of which the median task knows nothing."""
    frame = waits_of_layers(18)
    constants = calibrate([frame], CONSTANTS).constants
    modelled = gaps_us(from_kernel_table(frame.assign(wait_us=float("nan")), constants), constants)
    assert sum(modelled) == pytest.approx(frame["wait_us"][1:].sum(), abs=0.1)


def test_waits_of_few_mix_tasks_do_not_enter_the_gap_of_others() -> None:
    """Then the constants for MIX tasks keep their values."""
    fitted = {row.name: row for row in calibrate([waits_of_layers(4)], CONSTANTS).fitted}
    assert fitted["dispatch_gap_us"].after == pytest.approx(0.040, abs=0.001)
    assert fitted["gap_into_mix_us"].after is None
    assert fitted["gap_into_mix_us"].note == "4 waits before a MIX task, 8 are needed"


def test_without_types_of_cores_there_is_one_gap() -> None:
    """It is the mean wait; the constants of MIX tasks keep their values."""
    frame = waits_of_layers(18).assign(core="", wait_us=2.0)
    fitted = {row.name: row for row in calibrate([frame], CONSTANTS).fitted}
    assert fitted["dispatch_gap_us"].after == pytest.approx(2.0)
    assert fitted["dispatch_gap_us"].note == "mean of 161 waits before a task"
    assert fitted["gap_out_of_mix_us"].after is None


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
