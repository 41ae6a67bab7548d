"""What a measurement is worth, against a simulation of measuring and deciding."""

import numpy as np
import pytest
from optuna.trial import FrozenTrial, create_trial

from benchmarks.landscape import measured
from benchmarks.landscapes.synthetic import SYNTHETIC
from sktune.core.plan import Plan
from sktune.learning.evidence import Vector
from sktune.learning.history import OUTCOME, Belief, Learned, own_effects
from sktune.samplers.worth import Worth
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
                                 user_attrs={OUTCOME: outcome.to_dict()})  # fmt: skip
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
