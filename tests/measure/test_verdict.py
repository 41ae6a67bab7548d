"""The verdict: the simplest of the fastest plans, or no scope, from measurements in several processes."""

import re
from math import exp, hypot, inf, log, sqrt

import numpy as np
import pytest
from scipy import stats

from sktune.core.outcome import FARTHEST, Speedup
from sktune.core.plan import Options, Plan, Scope
from sktune.measure.verdict import (
    PROCESS_DEGREES,
    PROCESS_SD,
    FinalPlan,
    Verdict,
    decide,
    pooled,
    repeatability,
    students_t,
)
from tests.builders import ROOT

PROCESSES = 4


def speedup(log_ratio: float, halfwidth: float = 0.004) -> Speedup:
    """Return a measurement of one process against a baseline of 10 ms."""
    bounds = (exp(log_ratio - halfwidth), exp(log_ratio + halfwidth))
    return Speedup(10.0, 10.0 / exp(log_ratio), exp(log_ratio), bounds, 100)


def finalist(number: int, plan: Plan, true_ms: float, rng: np.random.Generator, noise: float = 0.002) -> FinalPlan:
    """Return a plan with a true latency, against a baseline of 10 ms."""
    speedups = tuple(speedup(log(10.0 / true_ms) + noise * rng.normal()) for _ in range(PROCESSES))
    return FinalPlan(number, plan, speedups, pooled(speedups))


def decided(*plans: tuple[int, Plan, float], noise_floor: float = 0.0) -> Verdict:
    """Decide between plans given by trial, plan and true latency."""
    rng = np.random.default_rng(0)
    return decide([finalist(number, plan, true_ms, rng) for number, plan, true_ms in plans], noise_floor)


def plan(scopes: int, options: Options = ()) -> Plan:
    """Return a plan with this many scopes."""
    return Plan(tuple(Scope(f"unit{index}", f"unit{index}", options) for index in range(scopes)))


def test_the_fastest_wins_if_it_is_significantly_faster() -> None:
    """However complex it is."""
    verdict = decided((1, plan(1), 9.0), (2, plan(9), 8.0))
    assert verdict.winner is not None
    assert verdict.winner.number == 2
    assert verdict.ties == ()
    assert verdict.selection_bias == 0.0


def test_the_simplest_wins_among_equals_and_ties_are_listed() -> None:
    """Fewest scopes, then fewest options."""
    exact: Options = (("a", 1), ("b", 2))
    verdict = decided((1, plan(4), 8.0), (2, plan(1, exact), 8.0), (3, plan(1, exact[:1]), 8.0))
    assert verdict.winner is not None
    assert verdict.winner.number == 3
    assert {tie.number for tie in verdict.ties} == {1, 2}


def test_a_plan_that_is_not_significantly_faster_does_not_win() -> None:
    """The answer is no scope."""
    assert decided((1, plan(1), 10.0), (2, plan(2), 11.0)).winner is None
    assert decided().winner is None


def test_an_effect_within_the_noise_floor_does_not_win() -> None:
    """Differences between the baseline and itself are not gains, however narrow the interval."""
    assert decided((1, plan(1), 9.8)).winner is not None
    assert decided((1, plan(1), 9.8), noise_floor=0.03).winner is None


def halfwidth(found: Speedup) -> float:
    """Return half the width of the interval of a log ratio."""
    return (log(found.bounds[1]) - log(found.bounds[0])) / 2


def test_processes_that_disagree_widen_the_interval() -> None:
    """The process is the unit: rounds within one do not average out its luck."""
    agreeing = pooled([speedup(0.10), speedup(0.10), speedup(0.10)])
    differing = pooled([speedup(0.08), speedup(0.10), speedup(0.12)])
    assert agreeing.ratio == pytest.approx(differing.ratio)
    degrees = PROCESS_DEGREES + 2
    for found, squares in ((agreeing, 0.0), (differing, 2 * 0.02**2)):
        spread = sqrt((PROCESS_DEGREES * PROCESS_SD**2 + squares) / degrees)
        assert halfwidth(found) == pytest.approx(students_t(degrees) * spread / sqrt(3))
    wide = pooled([speedup(0.10, 0.5)] * 3)
    assert halfwidth(wide) == pytest.approx(0.5 / sqrt(3))  # never narrower than the processes' own


def test_a_single_process_is_as_uncertain_as_the_prior_between_processes() -> None:
    """However narrow its own interval, which says nothing about the next process."""
    alone = pooled([speedup(0.10, 0.001)])
    assert halfwidth(alone) == pytest.approx(hypot(0.001, students_t(PROCESS_DEGREES) * PROCESS_SD))
    assert halfwidth(alone) > 0.04


def test_the_interval_narrows_with_each_process_and_widens_with_each_finalist() -> None:
    """Two processes that happen to agree prove little, and the best of five is less certain than a single plan."""
    widths = [halfwidth(pooled([speedup(0.10, 0.001)] * count)) for count in (1, 2, 3, 5)]
    assert widths == sorted(widths, reverse=True)
    of_many = [halfwidth(pooled([speedup(0.10, 0.001)] * 2, candidates=count)) for count in (1, 2, 5)]
    assert of_many == sorted(of_many)
    assert of_many[-1] > 1.5 * of_many[0]


@pytest.mark.parametrize(("count", "luck"), [(1, 0.002), (1, 0.01), (3, 0.002), (3, 0.01), (3, 0.03), (5, 0.03)])
def test_the_figures_of_two_searches_differ_by_less_than_the_repeatability(count: int, luck: float) -> None:
    """In 95% of pairs at least, where each final comparison has five finalists and its own processes."""
    rng = np.random.default_rng(5)
    beyond = 0
    for _ in range(1000):
        first, again, *others = ([speedup(luck * rng.normal(), 0.001) for _ in range(count)] for _ in range(6))
        difference = abs(log(pooled(first).ratio) - log(pooled(again).ratio))
        beyond += difference > log(1 + repeatability(first, others))
    assert beyond / 1000 <= 0.05


@pytest.mark.parametrize("sd", [0.01, 0.05])
def test_the_machine_may_be_slower_in_another_process(sd: float) -> None:
    """The plan saves the same time then, and the ratio differs; the search has seen how the baseline varies."""
    rng = np.random.default_rng(6)
    saved_ms, beyond = 3.0, 0
    for _ in range(1000):
        baselines = 10.0 * np.exp(sd * rng.normal(size=(2, 12)))
        figures = np.log(baselines / (baselines - saved_ms))[:, :3] + 0.003 * rng.normal(size=(2, 3))
        first, again = ([speedup(each, 0.001) for each in figure] for figure in figures)
        difference = abs(log(pooled(first).ratio) - log(pooled(again).ratio))
        beyond += difference > log(1 + repeatability(first, (), (), [list(baselines[0])]))
    assert beyond / 1000 <= 0.05


def test_the_repeatability_of_what_has_no_spread() -> None:
    """None for simulated figures, and none that could be stated for single averages."""
    assert repeatability([speedup(0.1, 0.0)]) == 0.0
    assert repeatability([speedup(0.1, FARTHEST)]) == inf
    assert repeatability([speedup(0.1)] * 3, [[speedup(0.0), speedup(0.1), speedup(0.2)]]) > 0.05


def test_finalists_share_their_variance_between_processes() -> None:
    """If a plan's processes agree by chance, the others' widen its interval; if they differ, the others' do not."""
    quiet, loud = [speedup(0.1)] * 3, [speedup(0.05), speedup(0.1), speedup(0.15)]
    assert halfwidth(pooled(quiet, [loud] * 4)) > 2 * halfwidth(pooled(quiet, [quiet] * 4))
    assert halfwidth(pooled(loud, [quiet] * 4)) == pytest.approx(halfwidth(pooled(loud, candidates=5)))


def test_the_prior_between_processes_is_fitted_to_the_recorded_table() -> None:
    """Repeats the fit that the constant's docstring describes."""
    table = ROOT / "benchmarks" / "results" / "processes-cpu-2-cores.md"
    rows = re.findall(r"\| [\d.]+ \| ([\d.]+) \| ([\d.]+) \| \u00b1([\d.]+)% \|", table.read_text(encoding="utf-8"))
    assert len(rows) == 14
    ranges = [log(float(most) / float(least)) / 3.735 for least, most, _ in rows]
    of_one = students_t(2) / sqrt(3) * sqrt(log(2))  # the median of a standard deviation of three is sqrt(ln 2)
    intervals = [float(interval) / 100 / of_one for *_, interval in rows]
    shape, _, scale = stats.gamma.fit(1 / np.square(ranges + intervals), floc=0)
    assert 2 * shape == pytest.approx(PROCESS_DEGREES, abs=0.05)
    assert sqrt(1 / (shape * scale)) == pytest.approx(PROCESS_SD, abs=0.0001)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_interval_of_processes_covers(count: int) -> None:
    """At least as often as stated, whether the luck is that of processes or of rounds, and however few there are."""
    for noise, halfwidth in ((0.01, 0.004), (0.0, 0.004)):
        rng = np.random.default_rng(3)
        missed = 0
        for _ in range(1000):
            # The processes' own intervals are 95% ones.
            spread = np.hypot(noise, halfwidth / 1.96)
            low, high = pooled([speedup(spread * rng.normal(), halfwidth) for _ in range(count)]).bounds
            missed += not low <= 1.0 <= high
        assert missed / 1000 <= 0.06


def test_the_winner_is_corrected_for_selection_bias() -> None:
    """Of five equal plans, the fastest looks better than it is; its corrected speedup does not, on average."""
    rng = np.random.default_rng(1)
    raw, corrected = [], []
    for _ in range(400):
        plans = [finalist(number, plan(1 + number), 8.0, rng, noise=0.01) for number in range(5)]
        fastest = max(plans, key=lambda each: each.speedup.ratio)
        verdict = decide(plans)
        raw.append(log(fastest.speedup.ratio / 1.25))
        corrected.append(log(fastest.speedup.ratio / 1.25) - verdict.selection_bias)
    assert np.mean(raw) > 0.005
    assert abs(np.mean(corrected)) < 0.0025


def finals(luck: float, processes: int, gain: float, runs: int = 400, copies: bool = True) -> float:
    """Return the share of simulated finals in which a plan wins: of five, the first is faster by ``gain``.

    If ``copies`` is false, the baseline's second copy has no luck, and the noise floor is minimal.
    """
    rng = np.random.default_rng(processes)
    wins = 0
    for _ in range(runs):
        floor = max(abs(luck * rng.normal()) for _ in range(processes)) if copies else 0.001
        gains = [gain, 0.0, 0.0, 0.0, 0.0]
        measured = [tuple(speedup(own + luck * rng.normal(), 0.002) for _ in range(processes)) for own in gains]
        plans = [
            FinalPlan(number, plan(number + 1), own, pooled(own, [other for other in measured if other is not own]))
            for number, own in enumerate(measured)
        ]
        wins += decide(plans, floor).winner is not None
    return wins / runs


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("luck", [0.005, 0.01, 0.03])
@pytest.mark.parametrize("copies", [True, False])
def test_luck_of_processes_does_not_win(luck: float, processes: int, copies: bool) -> None:
    """However few processes there are, for five plans that are equal to the baseline."""
    assert finals(luck, processes, 0.0, copies=copies) <= 0.02


@pytest.mark.parametrize("luck", [0.005, 0.01])
def test_a_gain_of_five_percent_is_found_in_three_processes(luck: float) -> None:
    """In 95 of 100 finals."""
    assert finals(luck, 3, log(1.05)) >= 0.95


def test_a_single_average_is_no_verdict() -> None:
    """It has no interval, and three averages have the interval of three processes."""
    average = speedup(0.3, FARTHEST)
    alone = FinalPlan(1, plan(1), (average,), pooled([average]))
    assert decide([alone]).winner is None
    averages = tuple(speedup(0.3 + shift, FARTHEST) for shift in (-0.01, 0.0, 0.01))
    assert decide([FinalPlan(1, plan(1), averages, pooled(averages))]).winner is not None


def test_a_simulated_speedup_has_no_interval() -> None:
    """A simulation has no luck."""
    assert pooled([speedup(0.01, 0.0)]).bounds == pytest.approx((exp(0.01), exp(0.01)))
