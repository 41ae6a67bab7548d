"""The verdict: which plan wins, from the final comparison alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, log1p, sqrt
from statistics import mean, median

import numpy as np
from scipy.special import stdtrit

from sktune.core.outcome import Speedup
from sktune.core.plan import Plan
from sktune.measure.confidence_sequence import FARTHEST
from sktune.measure.noise_floor import LEAST_FLOOR

BASELINE = "baseline"
BASELINE_REPEAT = "baseline again"
"""Name of the baseline's second copy, which shows the noise floor."""
MOST_FINALISTS = 5
MOST_SHORTLISTED = 16
"""Trials, by what is expected of them, that are measured again to choose the finalists."""
PROCESS_SD, PROCESS_DEGREES = 0.0078, 1.6
"""What is known beforehand of how processes differ: a prior for the variance of a plan's log ratio between them, which
is ``PROCESS_DEGREES * PROCESS_SD**2`` over a chi-squared variable with so many degrees of freedom, as if so many
earlier processes had differed by that standard deviation.

Fitted by maximum likelihood to benchmarks/results/processes-cpu-2-cores.md: 7 plans, two settings of memory, 20
processes each. Each of the 14 rows gives two estimates of the standard deviation: the range over its expectation for 20
normal values (3.735; Tippett 1925, Biometrika 17:364), and the median half-interval of 3 processes over that of one
with a standard deviation of 1 (2.068). They run from 0.5 to 8%, which is why the degrees are so few. The table holds no
accelerator; until one is in it, it stands for them, too. ``tests/measure/test_winner.py`` repeats the fit."""


@dataclass(frozen=True, slots=True)
class FinalPlan:
    """A plan in the final comparison, by the number of its trial.

    Attributes:
        speedups: in each process.
        speedup: over all of them; the winner's is freed of its ``Verdict.selection_bias``.
    """

    number: int
    plan: Plan
    speedups: tuple[Speedup, ...]
    speedup: Speedup


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the search recommends.

    Attributes:
        winner: None where no plan beats the baseline with confidence: the answer is "no scope".
        ties: other plans that cannot be told apart from the winner, and are less simple or slower.
        selection_bias: log ratio by which the fastest looks better than it is, for having been picked as the fastest.
    """

    winner: FinalPlan | None
    ties: tuple[FinalPlan, ...]
    selection_bias: float = 0.0


def pooled(
    speedups: Sequence[Speedup], others: Sequence[Sequence[Speedup]] = (), candidates: int | None = None
) -> Speedup:
    """Return one speedup for all processes, with the process as the unit.

    A process has its own luck, with addresses for instance, that more rounds within it do not average out. The
    interval is Student's over the processes' log ratios, and never narrower than the processes' own intervals allow:
    the modified Knapp-Hartung interval of a random-effects mean (Roever, Knapp and Friede 2015, BMC Med. Res.
    Methodol. 15:99). The variance between processes is moderated by a conjugate prior, ``PROCESS_SD`` (Smyth 2004,
    Stat. Appl. Genet. Mol. Biol. 3:3), which is all there is for one process; it is the plan's own, or that of all
    finalists together where that is larger, as a few processes may agree by chance. The 95% hold for all candidates at
    once (Bonferroni), and so for the one that is picked. What was computed has no interval.

    Args:
        speedups: of one plan, one for each process, at least one.
        others: the same of the other finalists.
        candidates: plans of which the best is picked; None for this one and the others.
    """
    values = [log(one.ratio) for one in speedups]
    spreads = _Spread.of(values), *(_Spread.of([log(one.ratio) for one in other]) for other in others)
    candidates = 1 + len(others) if candidates is None else candidates
    halfwidth = _halfwidth(spreads, [_log_halfwidth(one) for one in speedups], candidates)
    centre = mean(values)
    is_computed = all(one.ci95 is None for one in speedups)
    return Speedup(
        baseline_ms=median(one.baseline_ms for one in speedups),
        latency_ms=median(one.latency_ms for one in speedups),
        ratio=exp(centre),
        ci95=None if is_computed else (exp(centre - halfwidth), exp(centre + halfwidth)),
        rounds=sum(one.rounds for one in speedups),
    )


def decide(plans: Sequence[FinalPlan], noise_floor: float = 0.0) -> Verdict:
    """Choose the simplest of the plans that cannot be told apart from the fastest.

    Args:
        plans: bit-identical finalists, all measured in the same processes; their intervals hold for all at once.
        noise_floor: relative effect that the baseline showed against itself; none smaller is claimed.
    """
    selection_bias = _selection_bias([[log(one.ratio) for one in plan.speedups] for plan in plans])
    floor = log1p(noise_floor)
    better = [plan for plan in plans if _is_faster(plan.speedup, selection_bias, floor)]
    if not better:
        return Verdict(None, (), selection_bias)
    fastest = max(better, key=lambda plan: plan.speedup.ratio)
    tied = [plan for plan in better if plan is fastest or _is_as_fast(plan, fastest, floor)]
    winner = min(tied, key=lambda plan: (plan.plan.complexity, -plan.speedup.ratio))
    ties = tuple(plan for plan in tied if plan is not winner)
    return Verdict(replace(winner, speedup=_lowered(winner.speedup, selection_bias)), ties, selection_bias)


def _is_faster(speedup: Speedup, selection_bias: float, floor: float) -> bool:
    """Whether a plan is surely faster, and by more than the floor.

    The interval holds the luck of processes and of having been picked, and the floor, which the copies of the baseline
    show by the same luck, is not added to it: the figure has to lie above the floor, and the interval above the least.
    """
    is_sure = log(speedup.bounds[0]) > min(floor, log1p(LEAST_FLOOR))
    return is_sure and log(speedup.ratio) - selection_bias > floor


def _is_as_fast(plan: FinalPlan, fastest: FinalPlan, floor: float) -> bool:
    """Whether ``fastest`` is not surely faster than ``plan``, by more than the noise floor."""
    pairs = list(zip(fastest.speedups, plan.speedups, strict=True))
    gaps = [log(one.ratio) - log(other.ratio) for one, other in pairs]
    own = [hypot(_log_halfwidth(one), _log_halfwidth(other)) for one, other in pairs]
    # Both plans have luck.
    return mean(gaps) - _halfwidth([_Spread.of(gaps)], own, prior_sd=sqrt(2) * PROCESS_SD) <= floor


@dataclass(frozen=True, slots=True)
class _Spread:
    """How far a plan's log ratios lie apart: the sum of squares about their mean, and its degrees of freedom."""

    squares: float
    degrees: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "_Spread":
        centre = mean(values)
        return cls(sum((value - centre) ** 2 for value in values), len(values) - 1)


def _halfwidth(
    spreads: Sequence[_Spread], halfwidths: Sequence[float], candidates: int = 1, prior_sd: float = PROCESS_SD
) -> float:
    """Return half the width of the interval of a mean over processes; see ``pooled``.

    Args:
        spreads: of the plan's log ratios first, then of the others'.
        halfwidths: of the plan's own interval in each process.
        candidates: how many such intervals hold at once.
        prior_sd: what the log ratios are known to differ by.
    """
    count = len(halfwidths)
    if max(halfwidths) == 0:
        return 0.0  # computed
    known = [own for own in halfwidths if own < 0.99 * FARTHEST]
    if not known and count == 1:
        return FARTHEST  # a single average
    own = mean(known) / sqrt(count) if known else 0.0
    prior, degrees = PROCESS_DEGREES * prior_sd**2, PROCESS_DEGREES + spreads[0].degrees
    variance = max(
        (prior + spreads[0].squares) / degrees,
        (prior + sum(one.squares for one in spreads)) / (PROCESS_DEGREES + sum(one.degrees for one in spreads)),
    )
    between = students_t(degrees, candidates) * sqrt(variance / count)
    # What differs between several processes holds what each one's rounds leave open; the prior does not.
    return min(FARTHEST, max(own, between) if count > 1 else hypot(own, between))


def students_t(degrees: float, candidates: int = 1) -> float:
    """Return the quantile of Student's t that intervals of 95%, of so many candidates at once, take."""
    return float(stdtrit(degrees, 1 - 0.025 / candidates))


def _selection_bias(log_ratios: Sequence[Sequence[float]]) -> float:
    """Return what the fastest loses in a process that had no say in choosing it (cross-validation over processes).

    Args:
        log_ratios: of each plan, in each process.
    """
    table = np.array(log_ratios)  # plans, processes
    if table.shape[0] < 2 or table.shape[1] < 2:
        return 0.0
    others = (table.sum(axis=1, keepdims=True) - table) / (table.shape[1] - 1)
    left_out = table[others.argmax(axis=0), np.arange(table.shape[1])]
    return max(0.0, float(table.mean(axis=1).max() - left_out.mean()))


def _log_halfwidth(speedup: Speedup) -> float:
    """Return the distance from the ratio to the farther end of its interval."""
    low, high = speedup.bounds
    return max(log(high) - log(speedup.ratio), log(speedup.ratio) - log(low))


def _lowered(speedup: Speedup, selection_bias: float) -> Speedup:
    """Return the figure freed of the selection bias; the interval holds for whichever plan is picked, and stays."""
    ratio = speedup.ratio * exp(-selection_bias)
    ci95 = (min(speedup.ci95[0], ratio), speedup.ci95[1]) if speedup.ci95 else None
    return replace(speedup, latency_ms=speedup.latency_ms * exp(selection_bias), ratio=ratio, ci95=ci95)
