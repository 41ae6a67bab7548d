"""Effect of luck between processes on the final comparison: false wins, and true gains that are found.

    python -m benchmarks.final_luck [--runs 1000] [--seed 0] --out FILE.md

Finals are simulated and judged by the real ``FinalComparison.of`` and ``decide``: baseline, a second copy of it and
five finalists, in 1, 2 or 3 processes. The figures of each process have an interval of half a percent to either side,
and the luck of that process, which the interval does not show. If no finalist is faster than the baseline, every winner
is false. Prints a table and writes it with the machine's description.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from benchmarks.simulated_table import write_table
from sktune.core.outcome import BASELINE, BASELINE_REPEAT, MAX_FINALISTS, FinalRow, Outcome, Speedup
from sktune.core.plan import Plan, Scope
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.verdict import FinalPlan, decide
from sktune.study.records import TrialRecord
from sktune.study.result import verdict_of_trials

PROCESSES = (1, 2, 3)
HALFWIDTH = 0.005
"""Of the 95% interval within a process; the target of the final comparison is 0.004."""
GAIN = 1.05
TRIALS = 40
"""Of a search without time for a final comparison."""
ALLOWED = 0.02
"""Largest share of false wins; also assumed for the best possible rule."""

Luck = npt.NDArray[np.float64]
"""Log ratios, shape (plans, processes); the last plan is the second copy of the baseline."""
Draw = Callable[[np.random.Generator, tuple[int, int]], Luck]


@dataclass(frozen=True)
class Kind:
    """A kind of luck: who is affected, and its distribution over processes.

    Attributes:
        sd: standard deviation if it is normal; otherwise None.
    """

    name: str
    whose: str
    draw: Draw
    sd: float | None = None


def main() -> None:
    """Simulate all cells, and print the table."""
    write_table("final_luck", __doc__, table, 1000)


def kinds() -> list[Kind]:
    """Return all kinds of luck; the last two were added after the rule had been chosen on the others."""
    found = []
    for whose in ("each contender's", "the plans'", "the baseline's"):
        found += [Kind(f"normal, {sd:.1%}", whose, _normal(sd), sd) for sd in (0.005, 0.01, 0.03)]
        found.append(Kind("3% slower in a quarter of the processes", whose, _quarter(log(1 / 1.03))))
        found.append(Kind("3% faster in a quarter of the processes", whose, _quarter(log(1.03))))
        found.append(Kind("Student's t, 3 degrees, 3%", whose, _heavy))
        found.append(Kind("up to 15% slower in a fifth of the processes", whose, _allocator))
        found.append(Kind("Laplace's, 2%", whose, _laplace))
    return found


def _normal(sd: float) -> Draw:
    return lambda rng, shape: sd * rng.normal(size=shape)


def _quarter(log_ratio: float) -> Draw:
    return lambda rng, shape: np.where(rng.random(shape) < 0.25, log_ratio, 0.0)


def _heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Luck:
    drawn: Luck = 0.03 * rng.standard_t(3, shape) / sqrt(3)
    return drawn


def _allocator(rng: np.random.Generator, shape: tuple[int, int]) -> Luck:
    """Return the luck that docs/explanation/measurement.md reports for processes whose steps return their memory."""
    return np.where(rng.random(shape) < 0.2, np.log1p(-0.15 * rng.random(shape)), 0.0)


def _laplace(rng: np.random.Generator, shape: tuple[int, int]) -> Luck:
    return rng.laplace(scale=0.02 / sqrt(2), size=shape)


def draw(kind: Kind, plans: int, processes: int, rng: np.random.Generator) -> Luck:
    """Return the luck of each plan, and of the baseline's second copy, in each process."""
    if kind.whose == "the baseline's":  # a slow baseline makes everything compared with it look faster
        return np.repeat(-kind.draw(rng, (1, processes)), plans + 1, axis=0)
    luck = kind.draw(rng, (plans + 1, processes))
    if kind.whose == "the plans'":
        luck[-1] = 0.0
    return luck


def figure(log_ratio: float, rng: np.random.Generator) -> Speedup:
    """Return the measurement of one process in which ``log_ratio`` is true."""
    measured = log_ratio + HALFWIDTH / 1.96 * rng.normal()
    return Speedup(1.0, exp(-measured), exp(measured), (exp(measured - HALFWIDTH), exp(measured + HALFWIDTH)), 100)


def has_winner(kind: Kind, gains: Sequence[float], processes: int, rng: np.random.Generator) -> bool:
    """Simulate one final comparison of plans with speedups ``gains``."""
    luck = draw(kind, len(gains), processes, rng)
    same = Speedup(1.0, 1.0, 1.0, (1.0, 1.0), 100)
    found = []
    for process in range(processes):
        speedups = {BASELINE: same, BASELINE_REPEAT: figure(luck[-1, process], rng)}
        speedups |= {str(number): figure(log(gain) + luck[number, process], rng) for number, gain in enumerate(gains)}
        found.append(([FinalRow(name, own, "identical", True, "") for name, own in speedups.items()], ""))
    final = FinalComparison.of(found, [])
    plans = [
        FinalPlan(int(row.name), PLANS[int(row.name)], final.speedups[row.name], row.speedup)
        for row in final.rows
        if row.name.isdigit() and row.speedup
    ]
    return decide(plans, final.noise_floor).winner is not None


def trial_wins(kind: Kind, rng: np.random.Generator) -> bool:
    """Simulate a search without a final, whose trials all equal the baseline, each in a separate process."""
    luck = draw(kind, TRIALS, 1, rng)
    records = [
        TrialRecord(number, PLANS[number], "", Outcome(speedup=figure(luck[number, 0], rng)), {})
        for number in range(TRIALS)
    ]
    verdict = verdict_of_trials(records, 0.001)
    return verdict is not None and verdict.winner is not None


PLANS = [Plan(tuple(Scope(f"unit{unit}", f"unit{unit}") for unit in range(number + 1))) for number in range(TRIALS)]


def table(runs: int, seed: int) -> Iterator[str]:
    """Return the lines of a table with a row for each kind of luck."""
    yield (
        f"Shares of {runs} simulated finals that name a winner, with {MAX_FINALISTS} finalists in 1, 2 and 3 "
        "processes. **False wins**: all equal the baseline. **Found**: one alone, or each of them, is 5% faster. The "
        "noise floor is what the second copy of the baseline shows in them. **Trials alone**: "
        f"{TRIALS} trials that equal the baseline, the best by its own figure, with no time for a final comparison. "
        "**Any rule**: the most that a rule can find of one gain with 3 processes if it knows how large the luck is, "
        "knows no plan from another, and is wrong in 2% of finals without a gain."
    )
    yield ""
    yield (
        "| luck of a process | whose | false wins: 1 | 2 | 3 | trials alone | one gain found: 1 | 2 | 3 "
        "| five gains found: 1 | 2 | 3 | any rule, one gain |"
    )
    yield "| --- | --- |" + " ---: |" * 11
    equal, one, all_five = [1.0] * MAX_FINALISTS, [GAIN] + [1.0] * (MAX_FINALISTS - 1), [GAIN] * MAX_FINALISTS
    for kind in kinds():
        rng = np.random.default_rng(seed)
        shares = [[_share(kind, gains, count, runs, rng) for count in PROCESSES] for gains in (equal, one, all_five)]
        alone = sum(trial_wins(kind, rng) for _ in range(runs)) / runs
        cells = [f"{share:.1%}" for share in (*shares[0], alone, *shares[1], *shares[2])]
        most = f"{_any_rule(kind.sd):.1%}" if kind.sd and kind.whose == "the plans'" else ""
        yield f"| {kind.name} | {kind.whose} | " + " | ".join(cells) + f" | {most} |"


def _share(kind: Kind, gains: Sequence[float], processes: int, runs: int, rng: np.random.Generator) -> float:
    return sum(has_winner(kind, gains, processes, rng) for _ in range(runs)) / runs


def _any_rule(sd: float) -> float:
    """Return the power of the test by the largest mean, for a known spread: that of the likelihood ratio."""
    normal, spread = NormalDist(), sd / sqrt(max(PROCESSES))
    threshold = normal.inv_cdf((1 - ALLOWED) ** (1 / MAX_FINALISTS))
    return 1 - normal.cdf(threshold - log(GAIN) / spread)


if __name__ == "__main__":
    main()
