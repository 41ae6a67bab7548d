"""Landscapes: the stated optimum is right, and a replay behaves like a search."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from benchmarks.landscape import PROPOSAL, gain, measured, replay
from benchmarks.landscapes.failing import FailingLandscape
from benchmarks.landscapes.recorded import recorded
from benchmarks.landscapes.simulated import sim_8, with_long_gaps
from benchmarks.landscapes.synthetic import SyntheticLandscape, Traits
from sktune.core.codec import decoded, encoded
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Plan, Scope
from sktune.core.space import SearchSpace
from sktune.learning.attributes import OUTCOME, PROBE
from sktune.samplers import find_strategy
from sktune.sim.model import SimulatedStep, StepModel
from sktune.study.strategy import Strategy, distributions
from sktune.targets.loading import load
from sktune.tuning.request import Request
from tests.releases import shapes_only


def tiny(traits: Traits, seed: int) -> SyntheticLandscape:
    """Return a landscape of three layers, small enough to evaluate every point."""
    kinds = {"dense": ("input_norm", "self_attn", "mlp"), "moe": ("self_attn", "post_norm", "gate", "experts")}
    return SyntheticLandscape("tiny", traits, seed, kinds, ("dense", "moe", "moe"), {"fusion": (0, 1)})


VARIANTS = {
    "plain": Traits(),
    "failing": Traits(failing_share=0.3),
    "coupled": Traits(coupling=1.0),
    "cliff": Traits(longest=3),
    "spoiler": Traits(spoiler=True),
    "shuffled": Traits(is_shuffled=True),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_stated_optimum_is_the_best_of_all_plans(variant: str, seed: int) -> None:
    """Dynamic programming agrees with an enumeration of the space."""
    landscape = tiny(VARIANTS[variant], seed)
    space = landscape.space
    values = (dict(zip(space.choices, point, strict=True)) for point in product(*space.choices.values()))
    plans: set[Plan] = {space.plan(each) for each in values}
    assert len(plans) == space.size
    latencies = [truth.latency_ms for truth in map(landscape.evaluate, plans) if truth.latency_ms is not None]
    assert min(latencies) == pytest.approx(landscape.best_ms)
    assert landscape.evaluate(Plan()).latency_ms == pytest.approx(landscape.baseline_ms)


def proposing(*plans: Plan) -> Strategy:
    """Return a sampler that proposes the first starting point again and again, and each of ``plans`` as a probe."""

    class Probing(BaseSampler):
        def __init__(self, space: SearchSpace) -> None:
            self._space, self._left = space, list(plans)

        def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
            return distributions(self._space)

        def sample_relative(
            self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
        ) -> dict[str, Any]:
            if self._left:
                study._storage.set_trial_user_attr(trial._trial_id, PROBE, encoded(self._left.pop(0)))
            return dict(self._space.starting_points[0].values)

        def sample_independent(
            self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
        ) -> Any:
            raise AssertionError("all parameters are proposed together")

    return Strategy("probing", lambda space, seed: Probing(space))


@dataclass
class Watching:
    """A factory of random samplers that remembers their study."""

    study: Study | None = None

    def __call__(self, space: SearchSpace, seed: int) -> BaseSampler:
        """Return a sampler that remembers its study."""
        watching = self

        class Watched(RandomSampler):
            def before_trial(self, study: Study, trial: FrozenTrial) -> None:
                watching.study = study
                super().before_trial(study, trial)

        return Watched(seed=seed)


def test_all_samplers_begin_with_the_starting_points() -> None:
    """The guide's choices are the first trials, in order."""
    landscape = tiny(Traits(), 0)
    run = replay(landscape, find_strategy("random"), 12, seed=1)
    points = [landscape.space.plan(point.values) for point in landscape.space.starting_points]
    assert list(run.plans[: len(points)]) == points
    assert len(run.gains) == len(run.failed) == len(run.ask_s) == 12
    assert max(run.gains) <= 1


def test_a_replay_is_determined_by_its_seed() -> None:
    """The same seed gives the same search; another seed gives other proposals and other noise."""
    landscape = tiny(Traits(), 0)
    runs = [replay(landscape, find_strategy("tpe"), 15, seed) for seed in (1, 1, 2)]
    assert (runs[0].plans, runs[0].gains) == (runs[1].plans, runs[1].gains)
    assert runs[0].plans != runs[2].plans


def test_the_incumbent_is_chosen_by_measured_latency() -> None:
    """A gain is that of the plan with the lowest measured latency, not the best true gain so far."""
    landscape = tiny(Traits(), 0)
    landscape.noise = 0.2
    run = replay(landscape, find_strategy("random"), 30, seed=3)
    outcomes = [measured(landscape, plan, landscape.evaluate(plan), 3) for plan in run.plans]
    complete = [(o.speedup.latency_ms, plan) for o, plan in zip(outcomes, run.plans, strict=True)
                if o.is_complete and o.speedup]  # fmt: skip
    truth = landscape.evaluate(min(complete, key=lambda pair: pair[0])[1]).latency_ms
    assert truth is not None
    assert run.gains[-1] == pytest.approx(gain(landscape, truth))


def test_a_plan_that_is_proposed_again_counts_and_keeps_its_figure() -> None:
    """Nothing is measured twice, so that proposing a plan again does not help."""
    landscape = tiny(Traits(), 0)
    watching = proposing()
    run = replay(landscape, watching, 10, seed=0)
    points = len(landscape.space.starting_points)
    assert len(run.plans) == 10
    assert len(set(run.gains[points - 1 :])) == 1


def test_a_probe_counts_and_never_wins() -> None:
    """A probe is a trial with a separate plan, stored as pruned."""
    landscape = tiny(Traits(), 0)
    layout = landscape.space.layout
    # Only the second of two layers of one kind: not a point of the tied space.
    probe = Plan((Scope("model.layers.2.gate", "model.layers.2.experts"),))
    layout.check(probe)
    run = replay(landscape, proposing(probe), 8, seed=0)
    points = len(landscape.space.starting_points)
    assert run.plans[points] == probe
    assert run.probe[points]
    assert run.gains[points] == run.gains[points - 1]


@pytest.mark.parametrize("scope_times", [True, False])
def test_trials_store_the_same_as_those_of_a_study(scope_times: bool) -> None:
    """Every trial has its proposal and its outcome, with scope times if they are shown."""
    watching = Watching()
    landscape = tiny(Traits(failing_share=0.3), 1)
    run = replay(landscape, Strategy("watching", watching), 25, seed=0, scope_times=scope_times)
    assert watching.study is not None
    trials = watching.study.get_trials()
    assert any(run.failed)
    for trial, plan, failed in zip(trials, run.plans, run.failed, strict=True):
        outcome = decoded(Outcome, trial.user_attrs[OUTCOME])
        assert decoded(Plan, trial.user_attrs[PROPOSAL]["plan"]) == plan
        assert failed == (not outcome.is_feasible)
        assert trial.state is (TrialState.COMPLETE if outcome.is_complete else TrialState.PRUNED)
        ran = outcome.speedup is not None or outcome.reason is Reason.MISMATCH
        assert bool(outcome.scope_times) == (scope_times and ran)
        labels = {scope.label for scope in plan.scopes}
        assert {outcome.blamed, *outcome.changes_bits} <= labels | {""}


def test_any_landscape_can_have_failing_segments() -> None:
    """Plans without them are unchanged, and the best of those is the optimum."""
    whole = recorded("deepseek-v3-float32")
    landscape = FailingLandscape(whole, seed=2)
    values = (dict(zip(whole.space.choices, point, strict=True)) for point in product(*whole.space.choices.values()))
    plans: set[Plan] = {whole.space.plan(each) for each in values}
    truths = {plan: landscape.evaluate(plan) for plan in plans}
    assert min(truth.latency_ms for truth in truths.values() if truth.latency_ms) == landscape.best_ms > whole.best_ms
    sound = {scope for plan, truth in truths.items() if truth.latency_ms for scope in plan.scopes}
    for plan, truth in truths.items():
        before = whole.evaluate(plan)
        if truth.reason is Reason.MISMATCH and before.latency_ms:
            assert {scope.label for scope in plan.scopes if scope not in sound} >= set(truth.changes_bits)
            assert truth.scope_times == before.scope_times
        elif truth.reason is not Reason.CRASHED:
            assert truth == before


def test_scope_times_add_up_to_the_step() -> None:
    """Without noise, the times of scopes and gaps add up to the step's, in the baseline and under the plan."""
    landscape = tiny(Traits(coupling=1.0), 2)
    for point in landscape.space.starting_points:
        truth = landscape.evaluate(landscape.space.plan(point.values))
        assert truth.latency_ms == pytest.approx(sum(piece.latency_ms for piece in truth.scope_times))
        assert landscape.baseline_ms == pytest.approx(sum(piece.baseline_ms for piece in truth.scope_times))


def test_workers_ask_before_the_trials_of_others_end() -> None:
    """With four workers, four trials run until the first of them ends."""
    max_running = 0

    class Counting(RandomSampler):
        def before_trial(self, study: Study, trial: FrozenTrial) -> None:
            nonlocal max_running
            max_running = max(max_running, len(study.get_trials(states=(TrialState.RUNNING,))))

    run = replay(tiny(Traits(), 0), Strategy("counting", lambda space, seed: Counting(seed)), 14, seed=0, workers=4)
    assert max_running == 4
    assert len(run.gains) == 14


@shapes_only
@pytest.mark.slow
def test_the_simulated_landscape_is_the_cost_model() -> None:
    """Latencies assembled from pieces equal those of the model, and none is below the stated optimum."""
    landscape = sim_8(0)
    space = landscape.space
    rng = np.random.default_rng(0)
    request = Request("deepseek-v3", backend="sim", scale="small")
    operators, constants = with_long_gaps(load(request.target()[0]), space.layout)
    model = StepModel(operators, space.layout, constants)
    for _ in range(60):
        plan = space.plan({name: choices[rng.integers(len(choices))] for name, choices in space.choices.items()})
        step, truth = model.step(plan), landscape.evaluate(plan)
        assert isinstance(step, SimulatedStep) and truth.latency_ms is not None
        assert truth.latency_ms == pytest.approx(step.total_us / 1e3)
        assert truth.latency_ms >= landscape.best_ms - 1e-12
