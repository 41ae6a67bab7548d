"""The verdict: which plan wins the final comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, hypot, inf, log, log1p, sqrt
from statistics import mean, median

import numpy as np

from sktune.core.outcome import FARTHEST, Speedup
from sktune.core.plan import Plan
from sktune.measure.noise_floor import MIN_FLOOR

PROCESS_SD, PROCESS_DEGREES = 0.0078, 1.6
"""Prior for the variance of a plan's log ratio between processes: ``PROCESS_DEGREES * PROCESS_SD**2`` over a
chi-squared variable with ``PROCESS_DEGREES`` degrees of freedom, as if that many earlier processes had differed by
``PROCESS_SD``.

Fitted by maximum likelihood to benchmarks/results/processes-cpu-2-cores.md: 7 plans, two memory settings, 20 processes
each. Each of the 14 rows gives two estimates of the standard deviation: the range over its expectation for 20 normal
values (3.735; Tippett 1925, Biometrika 17:364), and the median half-interval of 3 processes over that for a standard
deviation of 1 (2.068). They range from 0.5 to 8%, which is why the degrees are few. The table has no accelerators yet;
until it does, the prior is used for them, too. ``tests/measure/test_winner.py`` repeats the fit."""


@dataclass(frozen=True, slots=True)
class FinalPlan:
    """A plan in the final comparison, by the number of its trial.

    Attributes:
        speedups: in each process.
        speedup: over all of them; the winner's is corrected for ``Verdict.selection_bias``.
        dies: of the processes; empty if the search had only one.
    """

    number: int
    plan: Plan
    speedups: tuple[Speedup, ...]
    speedup: Speedup
    dies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The recommendation of a search.

    Attributes:
        winner: None if no plan is significantly faster than the baseline: the answer is "no scope".
        ties: other plans that are indistinguishable from the winner, and less simple or slower.
        selection_bias: log ratio by which the fastest plan looks better than it is, because it was selected.
    """

    winner: FinalPlan | None
    ties: tuple[FinalPlan, ...]
    selection_bias: float = 0.0


def pooled(
    speedups: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]] = (),
    candidates: int | None = None,
    dies: Sequence[str] = (),
) -> Speedup:
    """Return one speedup for all processes, with the process as the unit, or the die if there were several.

    Every process has its own luck, for instance with addresses, that more rounds in it do not average out. The interval
    is Student's over the processes' log ratios, and never narrower than the processes' own intervals allow: the
    modified Knapp-Hartung interval of a random-effects mean (Roever, Knapp and Friede 2015, BMC Med. Res. Methodol.
    15:99). The variance between processes is moderated by a conjugate prior, ``PROCESS_SD`` (Smyth 2004, Stat. Appl.
    Genet. Mol. Biol. 3:3), which is the only source for a single process; it is the plan's own variance, or that of all
    finalists together if larger, as a few processes may agree by chance. The 95% hold for all candidates simultaneously
    (Bonferroni), and thus for the one that is selected. Simulated figures have no interval.

    A die has luck, too, that more processes on it do not average out: it is a random effect, above that of its
    processes. Each die's log ratios are averaged, and the rest is as above, with dies instead of processes: the spread
    of their means contains both effects, in the shares that count, also where dies have different numbers of processes
    (the unweighted means of Thomas and Hultquist 1978, Ann. Stat. 6:582). The interval is that of the mean of all dies
    of this kind. There is no table of dies yet that a prior could be fitted to; theirs is ``PROCESS_SD``, not reduced
    by the number of processes, which would be right only if dies did not differ.

    Args:
        speedups: of one plan, one for each process, at least one.
        others: the same for the other finalists.
        candidates: number of plans that the best is selected from; None for this one and the others.
        dies: of the processes; without several different ones the process is the unit.
    """
    units = _by_die([_Unit.of(speedup) for speedup in speedups], dies)
    candidates = 1 + len(others) if candidates is None else candidates
    halfwidth = _halfwidth(_spreads(units, others, dies), [unit.halfwidth for unit in units], candidates)
    centre = mean(unit.log_ratio for unit in units)
    is_simulated = all(speedup.ci95 is None for speedup in speedups)
    return Speedup(
        baseline_ms=median(speedup.baseline_ms for speedup in speedups),
        latency_ms=median(speedup.latency_ms for speedup in speedups),
        ratio=exp(centre),
        ci95=None if is_simulated else (exp(centre - halfwidth), exp(centre + halfwidth)),
        rounds=sum(speedup.rounds for speedup in speedups),
    )


def repeatability(
    speedups: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]] = (),
    dies: Sequence[str] = (),
    baselines_ms: Sequence[Sequence[float]] = (),
) -> float:
    """Return the relative difference that two searches' figures of one plan stay within, in 95% of cases.

    It is a repeatability limit as in ISO 5725-6:1994, 4.1: the interval of a difference of two figures. Each is of as
    many processes (or dies) as this one, which differ as in ``pooled``, and at least as the machine makes them differ.
    It is slower at times, and a plan then saves nearly the same time
    (benchmarks/results/processes-llama-cpu-2-cores.md), so the log ratio changes by ``ratio - 1`` times the baseline's
    log latency, of which the search has seen more than its few final processes. The noise floor, which is that of one
    process, knows neither. No limit for single averages (infinite); 0 for simulated figures.

    Args:
        speedups: of one plan, one for each process, at least one.
        others: the same for the other finalists.
        dies: of the processes; without several different ones the process is the unit.
        baselines_ms: latencies of the baseline throughout the search, on each die.
    """
    units = _by_die([_Unit.of(speedup) for speedup in speedups], dies)
    halfwidth = _halfwidth(_spreads(units, others, dies), [unit.halfwidth for unit in units])
    if not 0 < halfwidth < FARTHEST:
        return inf if halfwidth else 0.0
    machine = [_Spread.of([log(latency) for latency in of_die]) for of_die in baselines_ms]
    if degrees := sum(spread.degrees for spread in machine):
        variance = sum(spread.squares for spread in machine) / degrees / len(units)
        gain = exp(mean(unit.log_ratio for unit in units)) - 1
        halfwidth = max(halfwidth, students_t(degrees) * gain * sqrt(variance))
    return expm1(sqrt(2) * halfwidth)


def decide(plans: Sequence[FinalPlan], noise_floor: float = 0.0) -> Verdict:
    """Choose the simplest of the plans that are indistinguishable from the fastest.

    Args:
        plans: bit-identical finalists, all measured in the same processes; their intervals hold simultaneously.
        noise_floor: relative difference between the baseline and itself; no smaller effect is reported.
    """
    units = [_by_die([_Unit.of(speedup) for speedup in plan.speedups], plan.dies) for plan in plans]
    selection_bias = _selection_bias([[unit.log_ratio for unit in of_plan] for of_plan in units])
    floor = log1p(noise_floor)
    better = [plan for plan in plans if _is_faster(plan.speedup, selection_bias, floor)]
    if not better:
        return Verdict(None, (), selection_bias)
    fastest = max(better, key=lambda plan: plan.speedup.ratio)
    tied = [plan for plan in better if plan is fastest or _is_as_fast(plan, fastest, floor)]
    winner = min(tied, key=lambda plan: (plan.plan.complexity, -plan.speedup.ratio))
    ties = tuple(plan for plan in tied if plan is not winner)
    return Verdict(replace(winner, speedup=_corrected(winner.speedup, selection_bias)), ties, selection_bias)


def _is_faster(speedup: Speedup, selection_bias: float, floor: float) -> bool:
    """Whether a plan is significantly faster, and by more than the floor.

    The interval already includes the luck of processes and of selection, which also causes the floor, so the two are
    not added: the figure has to be above the floor, and the interval above the smallest floor.
    """
    is_significant = log(speedup.bounds[0]) > min(floor, log1p(MIN_FLOOR))
    return is_significant and log(speedup.ratio) - selection_bias > floor


def _is_as_fast(plan: FinalPlan, fastest: FinalPlan, floor: float) -> bool:
    """Whether ``fastest`` is not significantly faster than ``plan`` by more than the noise floor."""
    pairs = list(zip(fastest.speedups, plan.speedups, strict=True))
    gaps = [
        _Unit(log(first.ratio) - log(other.ratio), hypot(_log_halfwidth(first), _log_halfwidth(other)))
        for first, other in pairs
    ]
    units = _by_die(gaps, fastest.dies)
    values, halfwidths = [unit.log_ratio for unit in units], [unit.halfwidth for unit in units]
    # Both plans vary between processes.
    return mean(values) - _halfwidth([_Spread.of(values)], halfwidths, prior_sd=sqrt(2) * PROCESS_SD) <= floor


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is independent of the others: the log ratio of a process or die, and half the width of its interval."""

    log_ratio: float
    halfwidth: float

    @classmethod
    def of(cls, speedup: Speedup) -> "_Unit":
        return cls(log(speedup.ratio), _log_halfwidth(speedup))


def _by_die(processes: Sequence[_Unit], dies: Sequence[str]) -> Sequence[_Unit]:
    """Return the mean of each die's processes; the processes themselves if all of them ran on one die."""
    if len({*dies}) < 2:
        return processes
    of_die: dict[str, list[_Unit]] = {}
    for unit, die in zip(processes, dies, strict=True):
        of_die.setdefault(die, []).append(unit)
    return [_Unit(mean(unit.log_ratio for unit in units), _within(units)) for units in of_die.values()]


def _spreads(units: Sequence[_Unit], others: Sequence[Sequence[Speedup]], dies: Sequence[str]) -> "list[_Spread]":
    """Return the spread of a plan's units, then those of the others'."""
    of_others = (_by_die([_Unit.of(speedup) for speedup in other], dies) for other in others)
    return [_Spread.of([unit.log_ratio for unit in each]) for each in (units, *of_others)]


def _within(units: Sequence[_Unit]) -> float:
    """Return half the width of the interval of a mean, as far as the units' own intervals tell."""
    known = [unit.halfwidth for unit in units if unit.halfwidth < 0.99 * FARTHEST]
    return mean(known) / sqrt(len(units)) if known else FARTHEST


@dataclass(frozen=True, slots=True)
class _Spread:
    """The spread of a plan's log ratios: the sum of squares about their mean, and its degrees of freedom."""

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
        halfwidths: of the plan's own interval in each process, or on each die.
        candidates: how many such intervals hold simultaneously.
        prior_sd: prior standard deviation of the log ratios.
    """
    count = len(halfwidths)
    if max(halfwidths) == 0:
        return 0.0  # simulated
    known = [halfwidth for halfwidth in halfwidths if halfwidth < 0.99 * FARTHEST]
    if not known and count == 1:
        return FARTHEST  # a single average
    within = mean(known) / sqrt(count) if known else 0.0
    prior, degrees = PROCESS_DEGREES * prior_sd**2, PROCESS_DEGREES + spreads[0].degrees
    variance = max(
        (prior + spreads[0].squares) / degrees,
        (prior + sum(spread.squares for spread in spreads))
        / (PROCESS_DEGREES + sum(spread.degrees for spread in spreads)),
    )
    between = students_t(degrees, candidates) * sqrt(variance / count)
    # Observed differences between processes already include the uncertainty within each; the prior does not.
    return min(FARTHEST, max(within, between) if count > 1 else hypot(within, between))


def students_t(degrees: float, candidates: int = 1) -> float:
    """Return the quantile of Student's t for simultaneous 95% intervals of ``candidates``."""
    from scipy.special import stdtrit  # it takes as long as all else that shows a study

    return float(stdtrit(degrees, 1 - 0.025 / candidates))


def _selection_bias(log_ratios: Sequence[Sequence[float]]) -> float:
    """Return what the fastest plan loses in a process that was not used to select it (cross-validation over processes).

    Args:
        log_ratios: of each plan, in each process, or on each die.
    """
    table = np.array(log_ratios)  # plans, processes or dies
    if table.shape[0] < 2 or table.shape[1] < 2:
        return 0.0
    others = (table.sum(axis=1, keepdims=True) - table) / (table.shape[1] - 1)
    left_out = table[others.argmax(axis=0), np.arange(table.shape[1])]
    return max(0.0, float(table.mean(axis=1).max() - left_out.mean()))


def _log_halfwidth(speedup: Speedup) -> float:
    """Return the distance from the ratio to the farther end of its interval."""
    low, high = speedup.bounds
    return max(log(high) - log(speedup.ratio), log(speedup.ratio) - log(low))


def _corrected(speedup: Speedup, selection_bias: float) -> Speedup:
    """Return the speedup corrected for selection bias; the interval holds for any selected plan and is not changed."""
    ratio = speedup.ratio * exp(-selection_bias)
    ci95 = (min(speedup.ci95[0], ratio), speedup.ci95[1]) if speedup.ci95 else None
    return replace(speedup, latency_ms=speedup.latency_ms * exp(selection_bias), ratio=ratio, ci95=ci95)
