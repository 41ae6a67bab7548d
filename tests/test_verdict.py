"""The verdict: the simplest of the fastest, or no scope."""

import numpy as np

from sktune.latency import compare
from sktune.plan import Options, Plan, Scope
from sktune.verdict import FinalPlan, Verdict, decide

RNG = np.random.default_rng(0)


def decided(*plans: tuple[int, Plan, float], noise: float = 0.01) -> Verdict:
    """Decide among plans given by trial, plan and true latency, against a baseline of 10 ms."""

    def samples(true_ms: float) -> list[float]:
        return list(true_ms * (1 + noise * np.abs(RNG.normal(size=200))))

    base = samples(10.0)
    own = {number: samples(latency) for number, _, latency in plans}
    rows = [FinalPlan(number, plan, compare(np.array([base, own[number]]).T, 1, RNG)) for number, plan, _ in plans]
    return decide(rows, own, seed=0)


def plan(scopes: int, options: Options = ()) -> Plan:
    """Return a plan of that many scopes."""
    return Plan(tuple(Scope(f"unit{index}", f"unit{index}", options) for index in range(scopes)))


def test_the_fastest_wins_where_it_stands_out() -> None:
    """However complicated it is."""
    verdict = decided((1, plan(1), 9.0), (2, plan(9), 8.0))
    assert verdict.winner is not None
    assert verdict.winner.number == 2
    assert verdict.ties == ()


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
