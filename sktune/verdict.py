"""The verdict: which plan wins, from the final comparison alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, log1p, sqrt
from statistics import mean, median, stdev

import numpy as np
from scipy.special import stdtrit

from sktune.outcome import Speedup
from sktune.plan import Plan
from sktune.sequential import Comparison, compare_with_floor

AGAIN = "baseline again"
"""Name of the baseline's second copy, which shows the noise floor."""
MOST_FINALISTS = 5
MOST_QUALIFIERS = 16
"""Trials, by what is expected of them, that are measured again to choose the finalists."""


@dataclass(frozen=True, slots=True)
class FinalPlan:
    """A plan in the final comparison, by the number of its trial.

    Attributes:
        speedups: in each process.
        speedup: over all of them; the winner's is freed of its ``Verdict.optimism``.
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
        optimism: log ratio by which the fastest looks better than it is, for having been picked as the fastest.
    """

    winner: FinalPlan | None
    ties: tuple[FinalPlan, ...]
    optimism: float = 0.0


def pooled(speedups: Sequence[Speedup]) -> Speedup:
    """Return one speedup for all processes, with the process as the unit.

    A process has its own luck, with addresses for instance, that more rounds within it do not average out. The
    interval is Student's over the processes' log ratios, and never narrower than the processes' own intervals allow:
    the modified Knapp-Hartung interval of a random-effects mean (Roever, Knapp and Friede 2015, BMC Med. Res.
    Methodol. 15:99).
    """
    centre, halfwidth = _mean([log(one.ratio) for one in speedups], [_log_halfwidth(one) for one in speedups])
    low, high = centre - halfwidth, centre + halfwidth
    if len(speedups) == 1:
        low, high = (log(bound) for bound in speedups[0].ci95)
    return Speedup(
        baseline_ms=median(one.baseline_ms for one in speedups),
        latency_ms=median(one.latency_ms for one in speedups),
        ratio=exp(centre),
        ci95=(exp(low), exp(high)),
        rounds=sum(one.rounds for one in speedups),
    )


def decide(plans: Sequence[FinalPlan], noise_floor: float = 0.0) -> Verdict:
    """Choose the simplest of the plans that cannot be told apart from the fastest.

    Args:
        plans: bit-identical finalists, all measured in the same processes.
        noise_floor: relative effect that the baseline showed against itself; none smaller is claimed.
    """
    optimism = _optimism([[log(one.ratio) for one in plan.speedups] for plan in plans])
    floor = log1p(noise_floor)
    better = [plan for plan in plans if _is_faster(plan.speedup, optimism, floor)]
    if not better:
        return Verdict(None, (), optimism)
    fastest = max(better, key=lambda plan: plan.speedup.ratio)
    tied = [plan for plan in better if plan is fastest or _is_as_fast(plan, fastest, floor)]
    winner = min(tied, key=lambda plan: (plan.plan.complexity, -plan.speedup.ratio))
    ties = tuple(plan for plan in tied if plan is not winner)
    return Verdict(replace(winner, speedup=_lowered(winner.speedup, optimism)), ties, optimism)


def _is_faster(speedup: Speedup, optimism: float, floor: float) -> bool:
    low, high = (log(bound) - optimism for bound in speedup.ci95)
    return compare_with_floor(low, high, floor) is Comparison.FASTER


def _is_as_fast(plan: FinalPlan, fastest: FinalPlan, floor: float) -> bool:
    """Whether ``fastest`` is not surely faster than ``plan``, by more than the noise floor."""
    pairs = list(zip(fastest.speedups, plan.speedups, strict=True))
    gaps = [log(one.ratio) - log(other.ratio) for one, other in pairs]
    gap, halfwidth = _mean(gaps, [sqrt(_log_halfwidth(one) ** 2 + _log_halfwidth(other) ** 2) for one, other in pairs])
    return gap - halfwidth <= floor


def _mean(values: Sequence[float], halfwidths: Sequence[float]) -> tuple[float, float]:
    """Return the mean over processes, and half the width of its interval."""
    own = mean(halfwidths) / sqrt(len(values))
    between = students_t(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return mean(values), max(own, between)


def students_t(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t: what an interval of 95% takes of the standard error."""
    return float(stdtrit(degrees, 0.975))


def _optimism(log_ratios: Sequence[Sequence[float]]) -> float:
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
    low, high = speedup.ci95
    return (log(high) - log(low)) / 2


def _lowered(speedup: Speedup, optimism: float) -> Speedup:
    factor = exp(-optimism)
    low, high = speedup.ci95
    return replace(
        speedup,
        latency_ms=speedup.latency_ms / factor,
        ratio=speedup.ratio * factor,
        ci95=(low * factor, high * factor),
    )
