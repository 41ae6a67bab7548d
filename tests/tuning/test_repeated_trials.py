"""Trials that measure a known plan again, with a fake runner: what runs, what is stored, and what the result is."""

from pathlib import Path
from typing import Any

import pytest
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial

from sktune.analysis.guide_options import OptionStatus, option_results
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace
from sktune.learning.attributes import REPEAT
from sktune.study.records import incumbent_first
from sktune.study.strategy import Strategy, distributions
from sktune.study.study import TuningStudy, sqlite_url
from tests.fake_runner import FakeRunner, latency_by_units, search


class _Repeating(RandomSampler):
    """Proposes two starting points, then the second one again and again."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self._space = space

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if trial.number >= 2:
            study._storage.set_trial_user_attr(trial._trial_id, REPEAT, True)
        return {**self._space.simplest, **self._space.starting_points[min(trial.number, 1)].values}


REPEATING = Strategy("repeating", lambda space, seed: _Repeating(space), starts_alone=True, persistent=True)
STRATEGY = f"{__name__}:REPEATING"


def whole_layers(plan: Plan) -> bool:
    """Whether this is the second starting point."""
    return any(scope.first != scope.last for scope in plan.scopes)


def test_a_repeat_is_judged_again_and_both_figures_count(tmp_path: Path) -> None:
    """Under its own number, and with equal kernels; the winner has the number of the plan's first trial."""
    luck = iter([0.0, 0.4, 0.2, *[0.2] * 100])

    def latency_ms(plan: Plan) -> float:
        return latency_by_units(plan) - (next(luck) if whole_layers(plan) else 0.0)

    runner = FakeRunner(latency_ms=latency_ms, kernels=lambda plan: plan.digest)
    result = search(tmp_path, runner, trials=4, strategy=STRATEGY)
    assert [record.origin for record in result.trials] == [STRATEGY, STRATEGY, "repeat", "repeat"]
    assert [record.is_repeat for record in result.trials] == [False, False, True, True]
    assert runner.count("judge") == 4
    latencies = [
        record.outcome.speedup.latency_ms for record in result.trials if record.outcome and record.outcome.speedup
    ]
    assert latencies[1:] == pytest.approx([7.6, 7.2, 7.4])
    best = incumbent_first(result.trials)[0]
    assert best.number == 1
    assert best.outcome is not None
    assert best.outcome.speedup is not None
    assert best.outcome.speedup.latency_ms == pytest.approx(7.4, abs=0.02)
    assert best.outcome.speedup.rounds == 120
    assert result.winner is not None
    assert result.winner.number == 1


def test_a_plan_that_fails_when_it_is_measured_again_never_wins(tmp_path: Path) -> None:
    """Bits that differ only sometimes differ: the other plan is the result."""
    judged = []

    def fault(plan: Plan) -> Outcome | None:
        judged.append(plan)
        is_again = whole_layers(plan) and judged.count(plan) > 1
        return Outcome(Reason.MISMATCH, "step 3", stage=Stage.VERIFY) if is_again else None

    result = search(tmp_path, FakeRunner(fault=fault), trials=3, strategy=STRATEGY)
    assert [record.number for record in incumbent_first(result.trials)] == [0]
    assert result.winner is not None
    assert result.winner.number == 0
    assert "1" not in [row.name for row in result.final]
    space = TuningStudy.open("s", sqlite_url(tmp_path / "s"), create=False).space()
    status = {row.trial: row.status for row in option_results(result, space)}
    assert status[2] is OptionStatus.MISMATCH
    assert 1 not in status
