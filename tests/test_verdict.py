"""The verdict: the simplest of the fastest, or no scope, from figures of several processes."""

from math import exp, log

import numpy as np
import pytest

from sktune.outcome import Speedup
from sktune.plan import Options, Plan, Scope
from sktune.verdict import FinalPlan, Verdict, decide, pooled

PROCESSES = 4


def speedup(log_ratio: float, halfwidth: float = 0.004) -> Speedup:
    """Return what one process measured against a baseline of 10 ms."""
    bounds = (exp(log_ratio - halfwidth), exp(log_ratio + halfwidth))
    return Speedup(10.0, 10.0 / exp(log_ratio), exp(log_ratio), bounds, 100)


def finalist(number: int, plan: Plan, true_ms: float, rng: np.random.Generator, noise: float = 0.002) -> FinalPlan:
    """Return a plan of a true latency, against a baseline of 10 ms."""
    own = tuple(speedup(log(10.0 / true_ms) + noise * rng.normal()) for _ in range(PROCESSES))
    return FinalPlan(number, plan, own, pooled(own))


def decided(*plans: tuple[int, Plan, float], noise_floor: float = 0.0) -> Verdict:
    """Decide among plans given by trial, plan and true latency."""
    rng = np.random.default_rng(0)
    return decide([finalist(number, plan, true_ms, rng) for number, plan, true_ms in plans], noise_floor)


def plan(scopes: int, options: Options = ()) -> Plan:
    """Return a plan of that many scopes."""
    return Plan(tuple(Scope(f"unit{index}", f"unit{index}", options) for index in range(scopes)))


def test_the_fastest_wins_where_it_stands_out() -> None:
    """However complicated it is."""
    verdict = decided((1, plan(1), 9.0), (2, plan(9), 8.0))
    assert verdict.winner is not None
    assert verdict.winner.number == 2
    assert verdict.ties == ()
    assert verdict.optimism == 0.0


def test_the_simplest_wins_among_equals_and_ties_are_listed() -> None:
    """Fewest scopes, then fewest options."""
    exact: Options = (("a", 1), ("b", 2))
    verdict = decided((1, plan(4), 8.0), (2, plan(1, exact), 8.0), (3, plan(1, exact[:1]), 8.0))
    assert verdict.winner is not None
    assert verdict.winner.number == 3
    assert {tie.number for tie in verdict.ties} == {1, 2}


def test_a_plan_that_is_not_surely_faster_does_not_win() -> None:
    """The answer is no scope."""
    assert decided((1, plan(1), 10.0), (2, plan(2), 11.0)).winner is None
    assert decided().winner is None


def test_an_effect_within_the_noise_floor_does_not_win() -> None:
    """What the baseline shows against itself is no gain, however narrow the interval."""
    assert decided((1, plan(1), 9.8)).winner is not None
    assert decided((1, plan(1), 9.8), noise_floor=0.03).winner is None


def test_processes_that_disagree_widen_the_interval() -> None:
    """The process is the unit: rounds within one do not average its luck out."""
    agreeing = pooled([speedup(0.10), speedup(0.10), speedup(0.10)])
    differing = pooled([speedup(0.08), speedup(0.10), speedup(0.12)])
    assert agreeing.ratio == pytest.approx(differing.ratio)
    assert agreeing.ci95[0] == pytest.approx(exp(0.10 - 0.004 / 3**0.5))
    assert differing.ci95[0] == pytest.approx(exp(0.10 - 4.303 * 0.02 / 3**0.5), rel=1e-5)


def test_the_interval_of_processes_covers() -> None:
    """At least as often as it says, whether luck is the processes' or the rounds'."""
    for noise, halfwidth in ((0.01, 0.004), (0.0, 0.004)):
        rng = np.random.default_rng(3)
        missed = 0
        for _ in range(1000):
            # The processes' own intervals are 95% ones.
            spread = np.hypot(noise, halfwidth / 1.96)
            low, high = pooled([speedup(spread * rng.normal(), halfwidth) for _ in range(PROCESSES)]).ci95
            missed += not low <= 1.0 <= high
        assert missed / 1000 <= 0.06


def test_the_winner_is_freed_of_having_been_picked() -> None:
    """Of five equal plans the fastest looks better than it is; its corrected figure does not, on average."""
    rng = np.random.default_rng(1)
    raw, corrected = [], []
    for _ in range(400):
        plans = [finalist(number, plan(1 + number), 8.0, rng, noise=0.01) for number in range(5)]
        fastest = max(plans, key=lambda one: one.speedup.ratio)
        verdict = decide(plans)
        raw.append(log(fastest.speedup.ratio / 1.25))
        corrected.append(log(fastest.speedup.ratio / 1.25) - verdict.optimism)
    assert np.mean(raw) > 0.005
    assert abs(np.mean(corrected)) < 0.0025
