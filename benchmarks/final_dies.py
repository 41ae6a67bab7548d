"""Coverage of the intervals of a final comparison on several dies.

    python -m benchmarks.final_dies [--runs 2000] [--seed 0] --out FILE.md

Comparisons are simulated and judged by the real ``FinalComparison.of`` and ``decide``. Dies differ by 8% in their
absolute latency (arXiv 2208.11035 reports 8% for identical GPUs), each plan's ratio differs by 1% between dies, and a
process measures it with a noise of 0.5%. True is the ratio on the average die. Prints a table and writes it with the
machine's description.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log

import numpy as np

from benchmarks.simulated_table import write_table
from sktune.core.outcome import BASELINE, MAX_FINALISTS, FinalRow, Speedup
from sktune.core.plan import Plan, Scope
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.verdict import FinalPlan, decide

LATENCY_SD, RATIO_SD, NOISE_SD = 0.08, 0.01, 0.005
"""Standard deviations of logarithms: between dies, of the latency and of a plan's ratio; and between processes."""
HALFWIDTH = 1.96 * NOISE_SD
"""Of the interval that a process states."""
BASELINE_MS = 10.0
GAINS = (0.05, 0.04, 0.04, 0.03, 0.02)
"""True log ratios of the finalists."""
LAYOUTS = ((1, 3), (2, 1), (3, 1), (5, 1), (3, 2), (5, 2))
"""Dies, and processes on each of them."""


@dataclass(frozen=True)
class Coverage:
    """Shares of comparisons.

    Attributes:
        one: in which the first finalist's interval contains its true ratio.
        all_at_once: in which all finalists' intervals do.
        winner: of those with a winner, in which the winner's interval does.
        found: that have a winner.
        halfwidth: median of half the width of the first finalist's interval; not a share.
    """

    one: float
    all_at_once: float
    winner: float
    found: float
    halfwidth: float


def main() -> None:
    """Simulate all cells, and print the table."""
    write_table("final_dies", __doc__, table, 2000)


def coverage(dies: int, processes_each: int, finalists: int, runs: int, seed: int) -> Coverage:
    """Simulate ``runs`` final comparisons."""
    rng = np.random.default_rng(seed)
    one = everything = winners = covered_winners = 0
    widths = []
    for _ in range(runs):
        final = comparison(dies, processes_each, finalists, rng)
        covered = [_covers(final, number) for number in range(finalists)]
        one, everything = one + covered[0], everything + all(covered)
        first = next(row.speedup for row in final.rows if row.name == "0")
        assert first is not None
        widths.append(log(first.bounds[1] / first.bounds[0]) / 2)
        if (winner := _winner(final)) is not None:
            winners += 1
            low, high = winner.speedup.bounds
            covered_winners += low <= exp(GAINS[winner.number]) <= high
    return Coverage(
        one / runs, everything / runs, covered_winners / max(1, winners), winners / runs,
        float(np.median(widths)),
    )  # fmt: skip


def comparison(dies: int, processes_each: int, finalists: int, rng: np.random.Generator) -> FinalComparison:
    """Simulate one final comparison."""
    latencies_ms = BASELINE_MS * np.exp(LATENCY_SD * rng.normal(size=dies))
    luck = RATIO_SD * rng.normal(size=(dies, finalists))
    processes, names = [], []
    for process in range(dies * processes_each):
        die = process % dies
        baseline_ms = float(latencies_ms[die])
        same = Speedup(baseline_ms, baseline_ms, 1.0, (1.0, 1.0), 100)
        rows = [FinalRow(BASELINE, same, "identical", True, "")]
        for number in range(finalists):
            latency_ms = baseline_ms / exp(GAINS[number] + luck[die, number] + NOISE_SD * rng.normal())
            ratio = baseline_ms / latency_ms
            bounds = (ratio * exp(-HALFWIDTH), ratio * exp(HALFWIDTH))
            rows.append(FinalRow(str(number), Speedup(baseline_ms, latency_ms, ratio, bounds, 100), "", True, ""))
        processes.append((rows, ""))
        names.append(f"die {die}")
    return FinalComparison.of(processes, [], names)


def _covers(final: FinalComparison, number: int) -> bool:
    speedup = next(row.speedup for row in final.rows if row.name == str(number))
    assert speedup is not None
    return speedup.bounds[0] <= exp(GAINS[number]) <= speedup.bounds[1]


def _winner(final: FinalComparison) -> FinalPlan | None:
    plans = [
        FinalPlan(int(row.name), PLANS[int(row.name)], final.speedups[row.name], row.speedup, final.dies)
        for row in final.rows
        if row.name.isdigit() and row.speedup
    ]
    return decide(plans, final.noise_floor).winner


PLANS = [Plan(tuple(Scope(f"unit{unit}", f"unit{unit}") for unit in range(number + 1))) for number in range(len(GAINS))]


def table(runs: int, seed: int) -> Iterator[str]:
    """Return the lines of a table with a row for each number of dies and processes."""
    yield (
        f"Shares of {runs} simulated final comparisons in which the 95% interval contains the true ratio: of the only "
        f"finalist; of the first one of {MAX_FINALISTS}; of all {MAX_FINALISTS} at once; of the winner, where there is "
        f"one. Between dies the latency differs by {LATENCY_SD:.0%} and a plan's ratio by {RATIO_SD:.0%}; noise "
        f"{NOISE_SD:.1%}."
    )
    yield ""
    yield (
        "| dies | processes on each | only one | its interval | first of five | its interval | all five | winner "
        "| found |"
    )
    yield "| ---: |" + " ---: |" * 8
    for dies, processes_each in LAYOUTS:
        one, five = (coverage(dies, processes_each, count, runs, seed) for count in (1, MAX_FINALISTS))
        yield (
            f"| {dies} | {processes_each} | {one.one:.1%} | \u00b1{one.halfwidth:.1%} "
            f"| {five.one:.1%} | \u00b1{five.halfwidth:.1%} | {five.all_at_once:.1%} | {five.winner:.1%} "
            f"| {five.found:.1%} |"
        )


if __name__ == "__main__":
    main()
