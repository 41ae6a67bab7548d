"""Speedups from the step times of runs, both of runs that alternate between plan and baseline and of others."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import mean, median, stdev

import numpy as np

from sktune.core.outcome import FARTHEST, Speedup
from sktune.measure.latency import Samples, compare
from sktune.measure.verdict import students_t
from sktune.program.sktune_program.task import VERIFIED_STEPS

WARM_UP_STEPS = 2
"""Steps left out at the start of a run: the first compiles, and the second may still set things up."""
MIN_STEPS = WARM_UP_STEPS + 8
FIRST_ROUND = VERIFIED_STEPS + 4
"""First step of an alternating run that counts: the block before it compiles the baseline's step."""
MIN_ALTERNATING = FIRST_ROUND + 4 * 16
"""Fewest steps of a run that alternates; fewer than 14 blocks exclude nothing (``confidence_sequence``)."""
LATEST = 5
"""Baseline runs that a plan is compared with; the machine may have changed since older ones."""


@dataclass(frozen=True, slots=True)
class RunLatency:
    """The latency of a run's decode step: the slowest rank's median, with the relative half width of its interval.

    A lone average has no interval: its half width is ``FARTHEST``, at which nothing is excluded.
    """

    latency_ms: float
    halfwidth: float
    steps: int


def latency_of(step_ms: Sequence[Sequence[float]]) -> RunLatency:
    """Return the slowest rank's latency in a run that does not alternate.

    Args:
        step_ms: for each rank, milliseconds of every decode step in order, or one average.
    """
    return max((_latency(steps) for steps in step_ms), key=lambda each: each.latency_ms)


def compare_runs(plan: RunLatency, baselines: Sequence[RunLatency]) -> Speedup:
    """Compare a plan's run with baseline runs, with Student's t prediction interval for one more baseline run."""
    figures = [log(each.latency_ms) for each in baselines[-LATEST:]]
    spread = students_t(len(figures) - 1) * stdev(figures) * sqrt(1 + 1 / len(figures)) if len(figures) > 1 else 0.0
    within = sqrt(plan.halfwidth**2 + mean(each.halfwidth for each in baselines) ** 2)
    return _speedup(exp(median(figures)), plan, min(FARTHEST, max(spread, within)))


def compare_two(plan: RunLatency, baseline: RunLatency) -> Speedup:
    """Compare a plan's run with one baseline run; the interval does not include the spread between runs."""
    is_itself = plan is baseline
    halfwidth = min(FARTHEST, sqrt(plan.halfwidth**2 + baseline.halfwidth**2))
    return _speedup(baseline.latency_ms, plan, 1e-9 if is_itself else halfwidth)


def compare_turns(step_ms: Sequence[Sequence[float]], turns: Sequence[bool]) -> Speedup:
    """Compare the plan's turns of an alternating run with the baseline's, in the rank with the slowest plan."""
    return max((compare(rounds(steps, turns), 1) for steps in step_ms), key=lambda each: each.latency_ms)


def rounds(steps: Sequence[float], turns: Sequence[bool]) -> Samples:
    """Return the rounds of an alternating run that count, in seconds, shape (rounds, 2): baseline first, then plan.

    Args:
        steps: milliseconds of every decode step of one rank.
        turns: for each step, whether it was the baseline's turn.
    """
    pairs = range(FIRST_ROUND, FIRST_ROUND + (len(steps) - FIRST_ROUND) // 4 * 4, 2)
    ordered = [(step, step + 1) if turns[step] else (step + 1, step) for step in pairs]
    return np.array([[steps[base], steps[plan]] for base, plan in ordered]) / 1e3


def _latency(steps: Sequence[float]) -> RunLatency:
    """Return the median of a rank's steps, with the notch of a box plot as its interval: 1.57 IQR / sqrt(n).

    Source: McGill, Tukey and Larsen 1978, The American Statistician 32:12.
    """
    if len(steps) == 1:
        return RunLatency(steps[0], FARTHEST, 1)  # an average
    counted = np.array(steps[WARM_UP_STEPS:])
    low, middle, high = np.percentile(counted, [25, 50, 75])
    return RunLatency(float(middle), float(1.57 * (high - low) / sqrt(len(counted)) / middle), len(counted))


def _speedup(baseline_ms: float, plan: RunLatency, halfwidth: float) -> Speedup:
    ratio = baseline_ms / plan.latency_ms
    return Speedup(baseline_ms, plan.latency_ms, ratio, (ratio * exp(-halfwidth), ratio * exp(halfwidth)), plan.steps)
