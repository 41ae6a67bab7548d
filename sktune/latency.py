"""Latency: steps timed in turn, ratios with intervals, and when to stop.

Contenders alternate within one process, so that what slows the machine slows all of them alike. A figure is a
ratio of medians with a bootstrap interval; absolute milliseconds are for people only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sktune.outcome import Speedup

Samples = npt.NDArray[np.float64]
"""Seconds, shape (rounds, contenders)."""

BOOTSTRAP_RESAMPLES = 1000


class Device(Protocol):
    """What a measurement needs of a device type."""

    def now_s(self) -> float:
        """Return the time, in seconds from some moment, once the device has nothing pending."""
        ...

    def time_s(self, run: Callable[[], object]) -> float:
        """Run once and return the seconds that the device was at it, nothing else pending before and after."""
        ...

    def reset_peak_memory(self) -> None:
        """Start to look for a new peak."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Return the most memory that was allocated since, or None where nobody counts."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A step to be timed: ``prepare`` runs before every sample and is not timed."""

    run: Callable[[], object]
    prepare: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop measuring.

    Attributes:
        halfwidth: half the width of the 95% interval, relative to the ratio, that is narrow enough.
        seconds: most time to spend.
        rounds_at_once: rounds between two looks at the interval.
        least_rounds: rounds before the first look.
        warm_up_rounds: rounds before anything counts.
    """

    halfwidth: float = 0.01
    seconds: float = 1.0
    rounds_at_once: int = 30
    least_rounds: int = 60
    warm_up_rounds: int = 5


def measure(
    contenders: Sequence[Contender],
    budget: Budget,
    rng: np.random.Generator,
    device: Device,
    enough: Callable[[Speedup], bool] = lambda speedup: False,
) -> Samples:
    """Run all contenders in turn, in an order that is reversed from round to round, and return the samples.

    The first contender is what the others are compared with. Ends when every interval is narrow, or ``enough`` for
    a reason of the caller's, or when the budget is spent, but not before ``least_rounds``.
    """
    began = device.now_s()
    for _ in range(budget.warm_up_rounds):
        _round(contenders, range(len(contenders)), device)
    rows: list[list[float]] = []
    while True:
        order = rng.permutation(len(contenders))
        for number in range(budget.rounds_at_once):
            # ABBA: each contender follows each other equally often, and a drift cancels.
            rows.append(_round(contenders, order if number % 2 == 0 else order[::-1], device))
        samples = np.array(rows)
        if len(rows) < budget.least_rounds:
            continue
        if device.now_s() - began > budget.seconds:
            return samples
        others = [compare(samples, index, rng) for index in range(1, len(contenders))]
        if all(_halfwidth(other) <= budget.halfwidth or enough(other) for other in others):
            return samples


def compare(samples: Samples, candidate: int, rng: np.random.Generator, reference: int = 0) -> Speedup:
    """Return how many times as fast as ``reference`` the ``candidate`` is.

    Rounds are resampled whole, so that what both have in common cancels (paired bootstrap, percentile interval).
    """
    pair = samples[:, [reference, candidate]]
    rows = rng.integers(0, len(pair), size=(BOOTSTRAP_RESAMPLES, len(pair)))
    medians = np.median(pair[rows], axis=1)
    low, high = np.quantile(medians[:, 0] / medians[:, 1], [0.025, 0.975])
    base, own = np.median(pair, axis=0)
    return Speedup(
        baseline_ms=float(base * 1e3),
        latency_ms=float(own * 1e3),
        ratio=float(base / own),
        ci95=(float(low), float(high)),
        rounds=len(pair),
    )


def _halfwidth(speedup: Speedup) -> float:
    low, high = speedup.ci95
    return (high - low) / 2 / speedup.ratio


def _round(
    contenders: Sequence[Contender], order: Sequence[int] | npt.NDArray[np.int64], device: Device
) -> list[float]:
    spent = [0.0] * len(contenders)
    for index in order:
        contender = contenders[index]
        contender.prepare()
        spent[index] = device.time_s(contender.run)
    return spent
