"""What a measurement is worth, against a simulation of measuring and deciding."""

from dataclasses import replace

import numpy as np
import pytest
from optuna.trial import FrozenTrial, create_trial

from benchmarks.landscape import measured
from benchmarks.landscapes.synthetic import SYNTHETIC
from sktune.core.codec import encoded
from sktune.core.plan import Plan
from sktune.learning.attributes import OUTCOME
from sktune.learning.evidence import Vector
from sktune.learning.history import Belief, Learned, own_effects
from sktune.samplers.partition import Worth, _prediction
from sktune.study.strategy import distributions

N_DRAWS = 20_000


@pytest.fixture(scope="module")
def learned() -> Learned:
    """Return what eight random plans of a landscape show."""
    land = SYNTHETIC["coupled"](0)
    space, rng = land.space, np.random.default_rng(1)
    learned = Learned(space)
    trials: list[FrozenTrial] = []
    while len(trials) < 8:
        point = {name: choices[int(rng.integers(len(choices)))] for name, choices in space.choices.items()}
        plan = space.plan(point)
        outcome = measured(land, plan, land.evaluate(plan), seed=0)
        if outcome.speedup and plan not in learned.seen:
            trial = create_trial(params=point, distributions=distributions(space), value=outcome.speedup.latency_ms,
                                 user_attrs={OUTCOME: encoded(outcome)})  # fmt: skip
            trial.number = len(trials)
            trials.append(trial)
            learned.read(trials)
    return learned


def simulated(learned: Learned, belief: Belief, new: Plan) -> float:
    """Return how much better the recommended plan is after measuring ``new``, in the mean over simulated results."""
    rng, posterior = np.random.default_rng(2), belief.posterior
    ranked = learned.ranked
    plans = [*(complete.plan for complete in ranked), new]
    described = learned.model.describe(plans)
    share, left = own_effects(posterior.chosen.step_noise, ranked)
    noise_sd = ranked[0].noise_sd
    own_of_new = (posterior.chosen.step_noise * noise_sd) ** 2 - noise_sd**2
    own = np.sqrt(np.append(left, own_of_new)) * rng.standard_normal((N_DRAWS, len(plans)))
    unknown = np.sqrt(posterior.unknown_variance(described)) * rng.standard_normal((N_DRAWS, len(plans)))
    model = described.rows @ posterior.mean
    shift = np.append(share * (np.array([complete.saving for complete in ranked]) - model[:-1]), 0.0)
    saved = posterior.draw(N_DRAWS, rng) @ described.rows.T + shift + own + unknown
    figures: Vector = saved[:, -1] + noise_sd * rng.standard_normal(N_DRAWS)
    # What is expected of each plan after a figure: linear regression on it.
    slope = (saved - saved.mean(axis=0)).T @ (figures - figures.mean()) / N_DRAWS / figures.var()
    expected = saved.mean(axis=0) + (figures - figures.mean())[:, None] * slope
    return float(np.maximum(0.0, expected.max(axis=1)).mean() - max(0.0, float((model + shift)[:-1].max())))


def test_worth_is_what_a_simulation_of_measuring_and_deciding_gains(learned: Learned) -> None:
    """For random plans. The 16 values of a result miss some of its tails, hence the absolute part."""
    space, rng = learned.space, np.random.default_rng(3)
    belief = Belief(learned.posterior(), 1.0)
    points = [
        {name: choices[int(rng.integers(len(choices)))] for name, choices in space.choices.items()} for _ in range(30)
    ]
    plans = [plan for plan in dict.fromkeys(map(space.plan, points)) if plan not in learned.seen]
    worth = Worth(learned, [belief]).of_new(plans)
    expected = [simulated(learned, belief, plan) for plan in plans]
    assert sum(each > 1e-3 for each in expected) >= 4
    assert worth == pytest.approx(expected, rel=0.1, abs=2e-4)


def test_a_twin_of_a_running_plan_is_worth_little(learned: Learned) -> None:
    """Without the running plan among those that may be recommended, a twin would be worth all that both save."""
    space, rng = learned.space, np.random.default_rng(4)
    points = [
        {name: choices[int(rng.integers(len(choices)))] for name, choices in space.choices.items()} for _ in range(40)
    ]
    plans = [plan for plan in dict.fromkeys(map(space.plan, points)) if plan not in learned.seen]
    alone = Worth(learned, [Belief(learned.posterior(), 1.0)]).of_new(plans)
    best = plans[int(alone.argmax())]
    beside = Worth(learned, [Belief(learned.posterior([best]), 1.0)], [best]).of_new([best])
    assert beside[0] < 0.5 * alone.max()


def test_running_measurements_of_a_plan_leave_less_to_learn(learned: Learned) -> None:
    """Several dies may measure a finalist at once, but its own effect is known better by each of them."""
    plan = learned.ranked[0].plan
    chosen = replace(learned.posterior().chosen, step_noise=5.0)
    posterior = learned.model.fit(chosen)

    def variance(times: int) -> float:
        judged = Worth(learned, [Belief(posterior, 1.0)], [plan] * times)
        mean, _, of_known = _prediction(posterior, judged._described, judged._known, judged._running)
        assert mean[0] == pytest.approx(before[0])
        return float(of_known[0])

    described = learned.model.describe([plan])
    before, _, _ = _prediction(posterior, described, learned.ranked[:1])
    assert variance(0) > variance(1) > variance(2)
