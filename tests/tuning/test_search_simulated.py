"""Searches on the simulated device: fast, marked as simulated, and a test of what a CPU cannot do."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

import sktune
from benchmarks.landscape import replay
from benchmarks.landscapes.simulated import SimulatedLandscape
from sktune.core.errors import BadInputError, SimulationError, SpaceError, StudyError
from sktune.core.layout import Kernel, Layout, Unit
from sktune.core.plan import Option, Plan
from sktune.core.space import OptionRules, SpaceSpec, bind
from sktune.profiling import hints
from sktune.samplers.partition import PARTITION
from sktune.sim.constants import ATLAS_A3, load_constants
from sktune.sim.deployment import deploy
from sktune.sim.launch import launch_us
from sktune.sim.trace import trace_operators
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.inspect import inspect_model
from sktune.tuning.request import Request, bind_space
from tests import profiles
from tests.builders import decoder_layout
from tests.releases import shapes_only


def search(runs: Path, **options: Any) -> sktune.SearchResult:
    """Search DeepSeek-V3 at its published size, with shapes only."""
    values: dict[str, Any] = {"backend": "sim", "scale": "full", "trials": 10, "runs": runs} | options
    return sktune.search("deepseek-v3", **values)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[sktune.SearchResult, list[dict[str, Any]]]:
    """Return one search of the published model, and its events."""
    events: list[dict[str, Any]] = []
    return search(tmp_path_factory.mktemp("runs"), trials=10, listener=events.append), events


@shapes_only
@pytest.mark.slow
def test_the_published_model_is_planned_without_weights(
    planned: tuple[sktune.SearchResult, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """61 layers, a winner that no starting point beats, whether tried in the search or not, and no claim about bits."""
    result, events = planned
    assert "61 layers" in result.facts.description
    assert result.winner is not None
    starting_points = search(tmp_path, trials=7, strategy="random", exact_starting_points=True).trials
    points = [trial.outcome.speedup.ratio for trial in starting_points if trial.outcome and trial.outcome.speedup]
    assert all(trial.origin for trial in starting_points)
    assert len(points) >= 7
    assert result.winner.speedup.ratio >= max(points)
    assert events[-1]["bit_identical"] is None
    assert events[-1]["simulated"] is True
    trials = [event for event in events if event["event"] == "trial_finished"]
    assert all(event["simulated"] and event["ci95"] is None for event in trials)


@shapes_only
@pytest.mark.slow
def test_inspect_shows_shares_of_the_simulated_step() -> None:
    """Shapes take no time to run, so the shares come from the model of the device."""
    inspection = inspect_model(Request("deepseek-v3", backend="sim", scale="full"))
    shares = {unit.name: unit.time_share for unit in inspection.layout.units}
    assert inspection.is_simulated
    assert "simulated" in inspection.description
    assert 0.9 < sum(shares.values()) <= 1.0 + 1e-9
    assert shares["model.layers.30.mlp"] > shares["model.layers.30.input_layernorm"] > 0


@shapes_only
@pytest.mark.slow
def test_every_file_says_simulated(planned: tuple[sktune.SearchResult, list[dict[str, Any]]]) -> None:
    """Report and plan also say that nothing was verified."""
    result, _ = planned
    report = (result.folder / "report.md").read_text()
    assert "simulated" in report.splitlines()[2]
    assert "verification was not done" in report
    assert " to " not in report.partition("## Trials")[2].partition("## Made with")[0].replace("attention to", "")
    assert "simulated Atlas A3" in report
    evidence = yaml.safe_load((result.folder / "best_plan.yaml").read_text())["evidence"]
    assert evidence["simulated"] is True
    assert evidence["bit_identical"] is None


@shapes_only
@pytest.mark.slow
def test_scope_times_add_up_to_the_step(planned: tuple[sktune.SearchResult, list[dict[str, Any]]]) -> None:
    """Simulated scope times have no noise, and are stored."""
    measured = [record for record in planned[0].trials if record.outcome and record.outcome.speedup]
    for record in measured:
        assert record.outcome is not None and record.outcome.speedup is not None
        pieces, speedup = record.outcome.scope_times, record.outcome.speedup
        assert sum(piece.in_scope for piece in pieces) == len(record.plan.scopes)
        assert sum(piece.latency_ms for piece in pieces) == pytest.approx(speedup.latency_ms, abs=1e-6 * len(pieces))
        assert sum(piece.baseline_ms for piece in pieces) == pytest.approx(speedup.baseline_ms, abs=1e-6 * len(pieces))
    assert measured


@pytest.mark.slow
def test_other_constants_are_another_study(tmp_path: Path) -> None:
    """Figures of two simulated devices do not mix."""
    constants = tmp_path / "mine.yaml"
    text = ATLAS_A3.read_text()
    constants.write_text(text)
    first = search(tmp_path / "runs", scale="tiny", constants=constants, study="mine", trials=2)
    # A small model is not verified either: the simulation runs its own step for every plan.
    assert first.summary()["bit_identical"] is None
    assert first.final[0].verdict == "not verified: simulated"
    changed = yaml.safe_load(text)
    changed["constants"]["dispatch_gap_us"]["value"] *= 5
    constants.write_text(yaml.safe_dump(changed))
    with pytest.raises(StudyError, match="was made with constants"):
        search(tmp_path / "runs", scale="tiny", constants=constants, study="mine", trials=2)


@pytest.mark.slow
def test_a_hang_is_rescued_once_with_feed_sync_all(tmp_path: Path) -> None:
    """If an operator waits for idle cores, the plan is judged again with the rescue option."""
    constants = tmp_path / "syncing.yaml"
    values = yaml.safe_load(ATLAS_A3.read_text())
    values["sync_all_types"]["value"] = ["MatMulV2"]
    values["constants"]["dispatch_gap_us"]["value"] = 4.0  # so that a rescued plan is fast enough to be complete
    constants.write_text(yaml.safe_dump(values))
    result = search(tmp_path / "runs", scale="tiny", constants=constants, trials=4)
    rescued = [record for record in result.trials if record.outcome and record.outcome.added]
    assert rescued
    for record in rescued:
        assert record.outcome is not None and record.outcome.reason is None
        assert all(dict(scope.options)["feed-sync-all"] == 1 for scope in record.judged_plan.scopes)
    assert result.winner is not None
    if result.winner.number in {record.number for record in rescued}:
        assert "feed-sync-all" in (result.folder / "best_plan.yaml").read_text()


@pytest.mark.slow
def test_a_profile_orders_the_starting_points(tmp_path: Path) -> None:
    """Those with the largest potential saving are tried first."""
    profile = profiles.write(
        tmp_path / "kernel_details.csv", profiles.kernel_details(profiles.deepseek(dense=1, moe=3))
    )
    ordered = sktune.search(
        "deepseek-v3",
        backend="sim",
        scale="tiny",
        trials=3,
        study="ordered",
        runs=str(tmp_path / "runs"),  # paths may be strings, too
        profile=str(profile),
    )
    space = inspect_model(Request("deepseek-v3", backend="sim")).space
    by_profile = [point.name for point in hints.ordered(space.starting_points, profile)]
    assert [record.origin for record in ordered.trials] == by_profile[:3]
    assert by_profile[0] != space.starting_points[0].name


def test_a_profile_tells_how_long_operators_run(tmp_path: Path) -> None:
    """By type, less the head of a task; what is known stays, and so do types that the profile lacks."""
    tasks = profiles.deepseek(dense=1, moe=3)
    path = profiles.write(tmp_path / "kernel_details.csv", profiles.kernel_details(tasks))
    durations = [float(task.duration) for task in tasks if task.type == "RmsNorm"]
    kernels = (Kernel("RmsNorm", "vector"), Kernel("RmsNorm", "vector", busy_us=7.0), Kernel("Other", "vector"))
    layout = Layout((Unit("u", "u", kernels=kernels, between=kernels[:1]),), ())
    constants = load_constants()
    head_us = launch_us("vector", int(constants["aiv_cores"]) // 2, constants)
    (unit,) = hints.with_operator_times(layout, path).units
    expected = pytest.approx(max(0.05, median(durations) - head_us), abs=0.01)
    assert [kernel.busy_us for kernel in (*unit.kernels, *unit.between)] == [expected, 7.0, 0.0, expected]


def test_a_profile_orders_the_starting_points_of_per_layer_spaces_alike(tmp_path: Path) -> None:
    """In these each layer has its own parameters, named by its number."""
    profile = profiles.write(
        tmp_path / "kernel_details.csv", profiles.kernel_details(profiles.deepseek(dense=1, moe=3))
    )
    layout = decoder_layout(("dense", "moe", "moe", "moe"))
    shared, per_layer = (
        bind(SpaceSpec(per_layer=per_layer), layout, {}, OptionRules({})) for per_layer in (False, True)
    )
    names = [[point.name for point in hints.ordered(space.starting_points, profile)] for space in (shared, per_layer)]
    assert names[0] == names[1]
    assert names[0] != [point.name for point in shared.starting_points]


def test_constants_need_the_simulation() -> None:
    """Other backends refuse them, and a missing file is named."""
    with pytest.raises(BadInputError, match="add --backend sim"):
        sktune.search("llama", constants=ATLAS_A3)
    with pytest.raises(BadInputError, match="there is no file"):
        sktune.search("llama", backend="sim", constants=Path("nowhere.yaml"))


def test_an_unknown_constant_is_named_with_the_nearest(tmp_path: Path) -> None:
    """A misspelt key of the constants gets one line."""
    constants = tmp_path / "misspelt.yaml"
    constants.write_text(ATLAS_A3.read_text().replace("dispatch_gap_us", "dispatch_gab_us"))
    with pytest.raises(SimulationError, match="dispatch_gap_us"):
        sktune.search("llama", backend="sim", constants=constants, runs=tmp_path / "runs")


@pytest.mark.slow
def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    """Six layers are not four."""
    kernels = profiles.kernel_details(profiles.deepseek(dense=2, moe=4))
    profile = profiles.write(tmp_path / "kernel_details.csv", kernels)
    with pytest.raises(SimulationError, match="has 6 layers and the model 4"):
        search(tmp_path / "runs", scale="tiny", profile=profile)


def test_options_of_sim_are_listed_under_npu(tmp_path: Path) -> None:
    """A space must not list them for sim."""
    space = tmp_path / "space.yaml"
    space.write_text("version: 1\nspace:\n  options: {sim: {cpu: {early-start: [0]}}}\n")
    with pytest.raises(SpaceError, match="list options of sim there"):
        search(tmp_path / "runs", space=space)


def test_an_unknown_option_of_a_search_is_named_with_the_nearest() -> None:
    """A misspelt keyword is bad input, not a TypeError."""
    with pytest.raises(BadInputError, match="did you mean 'trials'"):
        sktune.search("llama", trial=3)


@shapes_only
@pytest.mark.slow
def test_probes_do_not_exhaust_a_space() -> None:
    """A probe is not a plan of the space: all of the space's plans are tried as well.

    The sampler does not know the operators here: it needs no probes in so small a space if it does.
    """
    options: dict[str, dict[str, dict[str, list[Option]]]] = {"npu": {"npu": {"stream-fusion": [0, 1]}}}
    wanted = SpaceSpec(units=["self_attn", "mlp"], step_units=[], layers_per_scope=[1], options=options)
    spec, _ = Request("llama", backend="sim", scale="full").target()
    target, constants = load(spec), load_constants()
    layout = trace_layout(target, wanted)
    operators = deploy(trace_operators(target, layout, constants), constants)
    landscape = SimulatedLandscape("small", bind_space(wanted, layout, spec), operators, constants)
    run = replay(landscape, PARTITION, trials=30, seed=0)
    assert any(run.probe)
    plans = {plan for plan, is_probe in zip(run.plans, run.probe, strict=True) if not is_probe}
    assert len(plans - {Plan()}) == landscape.space.size - 1
