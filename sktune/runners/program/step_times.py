"""What the step times of one run say: of a run that alternates between plan and baseline, and of one that does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import mean, median, stdev

import numpy as np

from sktune.core.outcome import Speedup
from sktune.measure.confidence_sequence import FARTHEST
from sktune.measure.latency import Samples, compare
from sktune.measure.winner import students_t
from sktune.runners.program.rank_reports import VERIFIED_STEPS

WARM_UP_STEPS = 2
"""Left out at the start of a run: the first compiles, and the second may still set things up."""
LEAST_STEPS = WARM_UP_STEPS + 8
FIRST_ROUND = VERIFIED_STEPS + 4
"""Step from which on an alternating run counts: in the block before, the baseline's step is compiled."""
LEAST_ALTERNATING = FIRST_ROUND + 4 * 16
"""Steps from which on a run alternates; fewer than 14 blocks exclude nothing (``confidence_sequence``)."""
LATEST = 5
"""Baseline runs that a plan is compared with; older ones were made on what may have been another day."""


@dataclass(frozen=True, slots=True)
class RunLatency:
    """A run's decode step: the slowest rank's median, and half its interval's width, relative.

    An average alone has no interval: its half width is ``FARTHEST``, at which nothing is excluded.
    """

    latency_ms: float
    halfwidth: float
    steps: int


def latency_of(step_ms: Sequence[Sequence[float]]) -> RunLatency:
    """Return the slowest rank's latency, in a run that holds one plan.

    Args:
        step_ms: of each rank, every decode step in order, or one average.
    """
    return max((_latency(steps) for steps in step_ms), key=lambda each: each.latency_ms)


def compare_runs(own: RunLatency, baselines: Sequence[RunLatency]) -> Speedup:
    """Compare a run with baseline runs: the interval is one more run's, by Student's t over the baseline's."""
    figures = [log(each.latency_ms) for each in baselines[-LATEST:]]
    spread = students_t(len(figures) - 1) * stdev(figures) * sqrt(1 + 1 / len(figures)) if len(figures) > 1 else 0.0
    within = sqrt(own.halfwidth**2 + mean(each.halfwidth for each in baselines) ** 2)
    return _speedup(exp(median(figures)), own, min(FARTHEST, max(spread, within)))


def compare_two(own: RunLatency, baseline: RunLatency) -> Speedup:
    """Compare a run with one baseline run; the interval knows nothing of how runs differ."""
    is_itself = own is baseline
    halfwidth = min(FARTHEST, sqrt(own.halfwidth**2 + baseline.halfwidth**2))
    return _speedup(baseline.latency_ms, own, 1e-9 if is_itself else halfwidth)


def compare_turns(step_ms: Sequence[Sequence[float]], turns: Sequence[bool]) -> Speedup:
    """Compare the plan's turns in an alternating run with the baseline's, in the rank where they are slowest."""
    return max((compare(rounds(steps, turns), 1) for steps in step_ms), key=lambda each: each.latency_ms)


def rounds(steps: Sequence[float], turns: Sequence[bool]) -> Samples:
    """Return what counts of an alternating run, in seconds, shape (rounds, 2): the baseline's turn and the plan's.

    Args:
        steps: milliseconds of every decode step of one rank.
        turns: whose turn each step was, as the ranks report it: true for the baseline's.
    """
    pairs = range(FIRST_ROUND, FIRST_ROUND + (len(steps) - FIRST_ROUND) // 4 * 4, 2)
    ordered = [(step, step + 1) if turns[step] else (step + 1, step) for step in pairs]
    return np.array([[steps[base], steps[plan]] for base, plan in ordered]) / 1e3


def _latency(steps: Sequence[float]) -> RunLatency:
    """Return the median of a rank's steps, with a notch around it, 1.57 IQR / sqrt(n).

    Source: McGill, Tukey and Larsen 1978, The American Statistician 32:12.
    """
    if len(steps) == 1:
        return RunLatency(steps[0], FARTHEST, 1)  # an average
    counted = np.array(steps[WARM_UP_STEPS:])
    low, middle, high = np.percentile(counted, [25, 50, 75])
    return RunLatency(float(middle), float(1.57 * (high - low) / sqrt(len(counted)) / middle), len(counted))


def _speedup(baseline_ms: float, own: RunLatency, halfwidth: float) -> Speedup:
    ratio = baseline_ms / own.latency_ms
    return Speedup(baseline_ms, own.latency_ms, ratio, (ratio * exp(-halfwidth), ratio * exp(halfwidth)), own.steps)
