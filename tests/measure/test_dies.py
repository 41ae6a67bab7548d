"""A final comparison on several dies: the die is a random effect, and intervals hold for dies that were not used."""

import json
from math import exp, log, sqrt

import numpy as np
import pytest

from benchmarks import final_dies
from sktune.core.codec import decoded, encoded
from sktune.core.outcome import FinalRow, Speedup
from sktune.core.plan import Plan, Scope
from sktune.measure.die_spread import die_spread
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.verdict import PROCESS_DEGREES, PROCESS_SD, FinalPlan, decide, pooled, students_t
from tests.builders import row

DIES = ("npu 0", "npu 1", "npu 2")


def speedup(log_ratio: float, halfwidth: float = 0.004) -> Speedup:
    """Return a measurement of one process."""
    bounds = (exp(log_ratio - halfwidth), exp(log_ratio + halfwidth))
    return Speedup(10.0, 10.0 / exp(log_ratio), exp(log_ratio), bounds, 100)


def halfwidth(found: Speedup) -> float:
    """Return half the width of the interval of a log ratio."""
    return (log(found.bounds[1]) - log(found.bounds[0])) / 2


def test_one_process_on_each_die_is_as_good_as_one_process() -> None:
    """The luck of a die and that of its process cannot be told apart, and need not be."""
    processes = [speedup(0.08), speedup(0.10), speedup(0.12)]
    assert pooled(processes, dies=DIES) == pooled(processes)


def test_more_processes_on_a_die_do_not_average_out_its_luck() -> None:
    """The interval is that of the dies' means; Student's, with as many degrees as dies but one, and the prior's."""
    processes = [speedup(luck + own) for luck in (0.08, 0.10, 0.12) for own in (-0.001, 0.001)]
    found = pooled(processes, dies=[die for die in DIES for _ in range(2)])
    degrees = PROCESS_DEGREES + 2
    spread = sqrt((PROCESS_DEGREES * PROCESS_SD**2 + 2 * 0.02**2) / degrees)
    assert halfwidth(found) == pytest.approx(students_t(degrees) * spread / sqrt(3))
    assert halfwidth(found) > 1.5 * halfwidth(pooled(processes))


def test_a_die_counts_once_however_many_processes_it_has() -> None:
    """The ratio is the mean of dies."""
    found = pooled([speedup(0.10), speedup(0.10), speedup(0.13)], dies=("npu 0", "npu 0", "npu 1"))
    assert found.ratio == pytest.approx(exp(0.115))


def test_on_one_die_the_process_is_the_unit() -> None:
    """As for a search with one worker: the figure is that die's."""
    processes = [speedup(0.08), speedup(0.10), speedup(0.12)]
    assert pooled(processes, dies=["npu 3"] * 3) == pooled(processes)


def test_the_intervals_of_rounds_bound_that_of_dies() -> None:
    """Dies that agree by chance are no more certain than their processes' own intervals."""
    wide = pooled([speedup(0.10, 0.5)] * 6, dies=DIES * 2)
    assert halfwidth(wide) == pytest.approx(0.5 / sqrt(6))


def test_the_spread_of_dies_is_told_from_that_of_processes() -> None:
    """With one process on each die it contains theirs."""
    rng = np.random.default_rng(2)
    names = [f"npu {die}" for die in range(400) for _ in range(3)]
    values = np.repeat(0.010 * rng.normal(size=400), 3) + 0.005 * rng.normal(size=1200)
    found = die_spread(values, names)
    assert found.between_dies == pytest.approx(0.010, rel=0.1)
    assert found.between_processes == pytest.approx(0.005, rel=0.1)
    alone = die_spread(values[::3], names[::3])
    assert alone.between_processes is None
    assert alone.between_dies == pytest.approx(sqrt(0.010**2 + 0.005**2), rel=0.1)
    assert die_spread([0.1, 0.2, 0.1, 0.2], ["a", "a", "b", "b"]).between_dies == 0.0


def test_a_comparison_remembers_the_die_of_each_process() -> None:
    """Also in the study; one of a search with one die is stored as before."""
    processes = [([row("baseline"), row("7", 0.1), *more], "") for more in ([row("uncompiled")], [], [])]
    found = FinalComparison.of(processes, [], DIES)
    assert decoded(FinalComparison, json.loads(json.dumps(encoded(found)))) == found
    assert found.dies_of("7") == DIES
    assert found.dies_of("uncompiled") == DIES[:1]
    alone = FinalComparison.of(processes, [])
    assert "dies" not in encoded(alone)
    assert decoded(FinalComparison, encoded(alone)).dies == alone.dies_of("7") == ()


def test_selection_is_corrected_over_dies() -> None:
    """A plan that is fastest on one die only is not chosen by the other processes on that die."""
    dies = ("npu 0", "npu 0", "npu 1", "npu 1")
    first, second = [(0.30, 0.30, 0.20, 0.20), (0.22, 0.22, 0.22, 0.22)]
    plans = [
        FinalPlan(number, Plan((Scope("a", "b"),)), tuple(map(speedup, values)), pooled([*map(speedup, values)]), dies)
        for number, values in enumerate((first, second))
    ]
    biases = [decide([*chosen]).selection_bias for chosen in (plans, [plan_without_dies(plan) for plan in plans])]
    assert biases[0] > biases[1] + 0.01


def plan_without_dies(plan: FinalPlan) -> FinalPlan:
    """Return the plan, as if all processes had run on one die."""
    return FinalPlan(plan.number, plan.plan, plan.speedups, plan.speedup)


@pytest.mark.parametrize("dies", [3, 5])
def test_intervals_cover_the_mean_of_all_dies(dies: int) -> None:
    """In about 95% of comparisons, if dies differ by 8% in latency and by 1% in the ratio; on one die they do not."""
    found = final_dies.coverage(dies, processes_each=1, finalists=1, runs=500, seed=0)
    assert 0.93 <= found.one <= 0.98
    many = final_dies.coverage(dies, processes_each=1, finalists=5, runs=500, seed=0)
    assert min(many.all_at_once, many.winner) >= 0.94
    alone = final_dies.coverage(1, processes_each=dies, finalists=1, runs=500, seed=0)
    assert alone.one < 0.9


def test_rows_of_dies_are_combined_with_the_die_as_the_unit() -> None:
    """Through the whole comparison, also for references, which one die has."""
    rows = [[row("baseline"), row("7", luck), FinalRow("8", None, "crashed", None)] for luck in (0.08, 0.1, 0.12, 0.1)]
    found = FinalComparison.of([(one, "") for one in rows], [], (*DIES, DIES[1]))
    (plan,) = (each.speedup for each in found.rows if each.name == "7")
    assert plan == pooled(found.speedups["7"], dies=(*DIES, DIES[1]))
