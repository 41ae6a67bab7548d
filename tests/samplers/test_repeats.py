"""Repeats: a plan is measured again where figures are noisy, and its figures count together."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmarks.landscape import replay
from benchmarks.landscapes.recorded import recorded
from sktune.core.codec import encoded
from sktune.core.outcome import FARTHEST, Outcome, Reason, Speedup
from sktune.core.plan import Option
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.learning.attributes import OUTCOME, REPEAT
from sktune.learning.history import Learned
from sktune.samplers.partition import PARTITION
from sktune.study.strategy import distributions
from tests.builders import decoder_layout

SPACE = bind(
    SpaceSpec(layers_per_scope=[1]), decoder_layout(("dense",), ("norm", "attention", "mlp")), {}, OptionRules({})
)


def times_measured(noise: float, seeds: int) -> list[int]:
    """Return how often the most measured plan was measured in searches at ``noise``, by seed."""
    land = recorded("llama-float32")
    land.noise = noise
    runs = [replay(land, PARTITION, trials=20, seed=seed) for seed in range(seeds)]
    return [max(run.plans.count(plan) for plan in run.plans) for run in runs]


def test_plans_are_measured_again_only_where_figures_are_noisy() -> None:
    """With exact figures a repeat would tell nothing."""
    assert times_measured(0.0, seeds=1) == [1]
    assert max(times_measured(0.05, seeds=3)) > 1


def test_figures_of_a_plan_count_together() -> None:
    """By their precision; the plan is ranked by their mean."""
    points = list(itertools.islice(_points(SPACE), 2))
    first = [_trial(SPACE, number, points[number], 1.10 - 0.02 * number) for number in range(2)]
    learned = Learned(SPACE)
    learned.read(first)
    assert [complete.plan for complete in learned.ranked] == [SPACE.plan(point) for point in points]
    learned.read([*first, _trial(SPACE, 2, points[0], 1.02, repeat=True)])
    best, other = learned.ranked
    assert best.plan == SPACE.plan(points[1])
    assert other.measurements == pytest.approx(2.0, rel=0.2)
    assert 1.02 < 1 / (1 - other.saving) < 1.10
    assert learned.expected_savings()[best.plan] > learned.expected_savings()[other.plan]


def test_a_plan_that_fails_when_it_is_measured_again_is_not_complete() -> None:
    """Outputs that differ only sometimes differ."""
    point = next(_points(SPACE))
    trials = [_trial(SPACE, 0, point, 1.1), _trial(SPACE, 1, point, 1.1, Reason.MISMATCH, repeat=True)]
    learned = Learned(SPACE)
    learned.read(trials)
    assert learned.ranked == []
    assert learned.reasons == {1: "mismatch"}


def test_measurements_are_averaged_by_their_precision() -> None:
    """The mean of two equal ones has an interval that is narrower by the root of two; a vague one hardly counts."""
    one, other = Speedup(10.0, 9.0, 1.10, (1.08, 1.12), 40), Speedup(10.0, 9.4, 1.06, (1.04, 1.08), 60)
    both = one.with_measurement(other)
    assert both.ratio == pytest.approx(1.08, abs=1e-3)
    assert both.rounds == 100
    assert both.ci95 is not None
    assert np.ptp(both.ci95) == pytest.approx(0.04 / np.sqrt(2), rel=1e-2)
    vague = replace(other, ci95=(0.5, 1.62))
    assert one.with_measurement(vague).ratio == pytest.approx(1.10, abs=1e-3)
    nothing = replace(other, ci95=(other.ratio / math.exp(FARTHEST), other.ratio * math.exp(FARTHEST)))
    assert one.with_measurement(nothing) == nothing.with_measurement(one) == one
    low, _ = nothing.with_measurement(nothing).ci95 or (0, 0)
    assert low > 0
    exact = replace(one, ci95=None)
    assert exact.with_measurement(other) == exact


def _points(space: SearchSpace) -> Iterator[dict[str, Option]]:
    """Return a point of each plan."""
    points = [dict(zip(space.choices, values, strict=True)) for values in itertools.product(*space.choices.values())]
    by_plan = {space.plan(point): point for point in points}
    return (point for plan, point in by_plan.items() if not plan.is_baseline)


def _trial(
    space: SearchSpace,
    number: int,
    point: dict[str, Option],
    ratio: float,
    reason: Reason | None = None,
    *,
    repeat: bool = False,
) -> FrozenTrial:
    speedup = None if reason else Speedup(10.0, 10.0 / ratio, ratio, (ratio - 0.02, ratio + 0.02), 40)
    attributes = {OUTCOME: encoded(Outcome(reason, speedup=speedup)), **({REPEAT: True} if repeat else {})}
    trial = create_trial(
        params=point, distributions=distributions(space), user_attrs=attributes, value=None if reason else 10.0 / ratio,
        state=TrialState.PRUNED if reason else TrialState.COMPLETE,
    )  # fmt: skip
    trial.number = number
    return trial
