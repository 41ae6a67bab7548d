"""What earlier studies have found: how it is taken over, believed where it holds, and dropped where it misleads."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from optuna.trial import FrozenTrial

from benchmarks.earlier import permuted
from benchmarks.landscape import replay
from benchmarks.landscapes.devices import DEVICES
from benchmarks.landscapes.recorded import RecordedLandscape, recorded
from sktune.core.earlier import EarlierStudy, FailedScope
from sktune.core.events.studies import EarlierStudyShown
from sktune.learning.failures import Feasibility
from sktune.learning.history import Learned
from sktune.learning.segments import SegmentCatalogue
from sktune.reports.why import explain
from sktune.samplers.partition import PARTITION, PartitionSampler
from tests.builders import decoder_layout


def findings(name: str) -> EarlierStudy:
    """Return what a search of 20 trials finds on a recorded landscape."""
    landscape = recorded(name)
    learned = Learned(landscape.space)
    learned.read_once(replay(landscape, PARTITION, 20, 1).trials)
    return learned.findings(name)


def informed(name: str, *earlier: EarlierStudy) -> RecordedLandscape:
    """Return a landscape whose searches learn from earlier studies."""
    landscape = copy.copy(recorded(name))
    landscape.space = replace(landscape.space, earlier=earlier)
    return landscape


def shown(landscape: RecordedLandscape, trials: Sequence[FrozenTrial]) -> tuple[EarlierStudyShown, ...]:
    """Return how far each earlier study holds, as ``show --why`` says it."""
    why = explain(landscape.space, trials, 1.0)
    assert why is not None
    return why.earlier


@pytest.fixture(scope="module")
def float32() -> EarlierStudy:
    """Return the findings of DeepSeek-V3 in float32."""
    return findings("deepseek-v3-float32")


def test_what_is_left_is_bounded_by_this_studys_trials_alone(float32: EarlierStudy) -> None:
    """What an earlier study says of plans that nobody has measured here may be wrong, however certain it was."""
    landscape = informed("deepseek-v3-bfloat16", float32)
    trials = replay(landscape, PARTITION, 3, 0).trials
    alone = replace(landscape.space, earlier=())
    left, left_alone = (PartitionSampler(space, 0).gain_left(trials) for space in (landscape.space, alone))
    assert left == left_alone


def test_the_first_plan_of_a_related_study_is_nearly_the_best(float32: EarlierStudy) -> None:
    """Without, the first plans are starting points; with it, 0.9 of the gain is there at once."""
    for seed in range(3):
        landscape = informed("deepseek-v3-bfloat16", float32)
        run = replay(landscape, PARTITION, 6, seed)
        assert run.gains[0] > 0.9
        (study,) = shown(landscape, run.trials)
        assert study.error_ms is not None and study.spread_ms is not None
        assert study.weight > 0.5 and study.error_ms < study.spread_ms / 2


def test_where_every_scope_cost_time_no_plan_is_recommended() -> None:
    """The first trial is the search's own."""
    found = findings("llama-float32-1x32")
    costly = replace(found, effects=dict.fromkeys(found.effects, -0.5), under_law={})
    run = replay(informed("llama-float32-4x32", costly), PARTITION, 2, 0)
    assert len(run.plans) == 2


def test_a_study_that_misleads_is_dropped(float32: EarlierStudy) -> None:
    """Its effects have one another's names; the search is soon what it would be without."""
    landscape = informed("deepseek-v3-bfloat16", permuted(float32, seed=3))
    run = replay(landscape, PARTITION, 15, 0)
    (study,) = shown(landscape, run.trials)
    assert study.weight < 0.2
    assert run.gains[-1] > 0.95


def test_of_two_studies_the_one_that_holds_is_believed(float32: EarlierStudy) -> None:
    """Each has a weight of its own."""
    landscape = informed("deepseek-v3-bfloat16", permuted(float32, seed=3), float32)
    misleading, related = shown(landscape, replay(landscape, PARTITION, 12, 0).trials)
    assert related.weight > misleading.weight


def test_findings_are_found_again_by_name() -> None:
    """In a model with more layers, whose units are smaller shares of the step."""
    landscape = recorded("llama-float32")
    study = findings("llama-float32")
    space = replace(landscape.space, layout=decoder_layout(("dense",) * 8), earlier=(study,))
    model = Learned(space).model
    (unit,) = (index for index, feature in enumerate(model.catalogue.features) if feature.group == "unit")
    expected = study.effects["unit: unit"] * study.units / len(space.layout.units)
    assert model.prior_mean(model.begin())[unit] == pytest.approx(expected)


@pytest.mark.slow
def test_what_a_few_layers_show_of_a_device_gives_the_first_plan_for_all() -> None:
    """By its law: heads and gaps take as long there, and the baseline, not yet measured, is longer by its units."""
    device = DEVICES["known-devices"](500)
    few = device.varied(layers=8)
    learned = Learned(few.space)
    learned.read_once(replay(few, PARTITION, 15, 1).trials)
    study = learned.findings("few")
    assert study.baseline_us == pytest.approx(1e3 * few.baseline_ms)
    target = copy.copy(device)
    target.space = replace(device.space, earlier=(study,))
    assert replay(target, PARTITION, 1, 0).gains[0] > 0.9


def test_a_scope_that_failed_elsewhere_is_a_risk_here_as_far_as_others_did() -> None:
    """Even odds at first; less once one of them has worked here, and nothing for one that has worked itself."""
    catalogue = SegmentCatalogue(decoder_layout(("dense", "dense")), 2)
    failed = tuple(FailedScope(catalogue.digest(segment), ()) for segment in (2, 3, 4))
    feasibility = Feasibility(catalogue, {}, earlier=[EarlierStudy("before", 9, 8, failed=failed)])
    assert feasibility.has_risks
    before = np.exp(feasibility.log_safe([()])[:, 0])
    assert before[3] < 0.55 < 0.9 < before[5]
    feasibility.succeeded([(2, ())])
    after = np.exp(feasibility.log_safe([()])[:, 0])
    assert after[2] == 1.0
    assert before[3] < after[3] < 0.8
