"""Latency: interleaved timing of steps, ratios with intervals, and when to stop.

Contenders alternate within one process in ABBA blocks of random order, so that anything that slows the machine slows
all of them alike. The result is the centre of the blocks' ratios, with an interval that is valid at every look
(``sktune.measure.confidence_sequence``); absolute milliseconds are for people only.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sktune.core.errors import BackendError
from sktune.core.outcome import Speedup
from sktune.measure import machine
from sktune.measure.confidence_sequence import block_log_ratios, confidence_sequence
from sktune.measure.machine import MachineLoad

Samples = npt.NDArray[np.float64]
"""Seconds, shape (rounds, contenders); rounds 2k and 2k + 1 are one block."""

STILL_ROUNDS = 1000
"""Rounds after which a working clock must have advanced, however fast a step is."""
WARM_UP_SHARE = 0.25
"""Largest share of a budget's seconds after which no other round is discarded to warm up."""
SLACK = 1.2
"""Time that rounds take, preparation included, over that of their steps."""
DRIFT = 0.05
"""Relative change of all contenders' speed within a measurement that is reported; it cancels in the ratios."""


class Device(Protocol):
    """What a measurement needs of a device type."""

    def now_s(self) -> float:
        """Return the time, in seconds from some moment, once the device has nothing pending."""
        ...

    def time_s(self, run: Callable[[], object]) -> float:
        """Run once and return the seconds that the device took, with nothing else pending before and after."""
        ...

    def reset_peak_memory(self) -> None:
        """Start measuring a new peak."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of allocated memory since the reset; None if it is not tracked."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A step to time; ``prepare`` runs before every sample and is not timed."""

    run: Callable[[], object]
    prepare: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop measuring.

    Attributes:
        halfwidth: target for half the width of the interval, relative to the ratio.
        seconds: time limit after warming up; a block is always finished.
        wait_s: limit of the extra time that makes up for disturbed rounds.
        patience_s: the same until ``min_rounds`` are timed, if that is more.
        look_s: least time between two looks at the interval; the machine's counters advance by 10 ms.
        min_rounds: rounds before the first look; with fewer than 28 an interval excludes nothing.
        warm_up_rounds: rounds that are discarded at the start; fewer if they would take ``WARM_UP_SHARE`` of the time.
    """

    halfwidth: float = 0.005
    seconds: float = 2.0
    wait_s: float = 2.0
    patience_s: float = 0.0
    look_s: float = 0.15
    min_rounds: int = 40
    warm_up_rounds: int = 5

    def for_steps(self, step_s: float, contenders: int) -> "Budget":
        """Return a budget with time for ``min_rounds`` of steps that take ``step_s`` on a quiet machine."""
        rounds = self.min_rounds + self.warm_up_rounds
        return replace(self, seconds=max(self.seconds, SLACK * rounds * contenders * step_s))

    def within(self, left_s: float) -> "Budget":
        """Return a budget that ends within ``left_s`` seconds, waiting included."""
        seconds = max(0.0, min(self.seconds, left_s))
        extra_s = max(0.0, left_s - seconds)
        return replace(
            self, seconds=seconds, wait_s=min(self.wait_s, extra_s), patience_s=min(self.patience_s, extra_s)
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """All samples of a measurement.

    Attributes:
        samples: every round, disturbed or not.
        disturbed: for each round, whether the machine was disturbed meanwhile.
        min_rounds: if at least this many rounds are undisturbed, only those count.
        noise: what disturbed the measurement, in one line for people; empty if nothing did.
    """

    samples: Samples
    disturbed: npt.NDArray[np.bool_]
    min_rounds: int
    noise: str = ""

    @property
    def counted(self) -> Samples:
        """The rounds that count: the undisturbed ones if there are enough of them, otherwise all."""
        quiet = ~self.disturbed
        # Which rounds are left out depends only on the machine's counters, never on the times.
        return self.samples[quiet] if quiet.sum() >= self.min_rounds else self.samples


def measure(
    contenders: Sequence[Contender],
    budget: Budget,
    rng: np.random.Generator,
    device: Device,
    enough: Callable[[Speedup], bool] = lambda speedup: False,
    read_load: Callable[[], MachineLoad | None] = machine.read,
) -> Measurement:
    """Time all contenders, interleaved, and return the samples.

    The others are compared with the first contender. Ends when every interval is narrow enough or ``enough`` for the
    caller, which is asked from ``min_rounds`` on, or when the budget is spent.

    Raises:
        BackendError: the clock stands still, or shows no time above 0 for a step.
    """
    rows: list[list[float]] = []
    causes: list[str] = []
    warmed_s = device.now_s() + WARM_UP_SHARE * budget.seconds
    for _ in range(budget.warm_up_rounds):
        _round(contenders, range(len(contenders)), device)
        if device.now_s() > warmed_s:
            break
    began, disturbed_s = device.now_s(), 0.0
    before = read_load()
    while True:
        look_began, rows_before = device.now_s(), len(rows)
        while device.now_s() - look_began < budget.look_s:
            order = rng.permutation(len(contenders))
            rows += [_round(contenders, order, device), _round(contenders, order[::-1], device)]
            if len(rows) - rows_before >= STILL_ROUNDS and not device.now_s() > look_began:
                break
        if len(rows) == rows_before or not device.now_s() > look_began:
            raise BackendError("the device's clock does not advance, so nothing can be timed; run `sktune doctor`")
        after = read_load()
        cause = machine.disturbance(before, after)
        before = after
        causes += [cause] * (len(rows) - rows_before)
        now = device.now_s()
        disturbed_s += now - look_began if cause else 0.0
        wait_s = max(budget.wait_s, budget.patience_s) if len(rows) < budget.min_rounds else budget.wait_s
        is_spent = now - began - min(disturbed_s, wait_s) > budget.seconds
        if not is_spent and causes.count("") < budget.min_rounds:
            continue
        measurement = _measurement(rows, causes, budget.min_rounds)
        if not _is_timed(measurement.samples).any():
            raise BackendError(
                f"the clock shows no time above 0 for a step in {len(rows)} rounds: it is too coarse; use a "
                "longer decode step (a larger batch or more layers)"
            )
        if is_spent or _is_settled(measurement.counted, budget, enough):
            return measurement


def compare(samples: Samples, candidate: int, reference: int = 0) -> Speedup:
    """Return how many times as fast as ``reference`` the ``candidate`` is.

    Blocks with a time that is not a number above 0 are left out.

    Raises:
        BackendError: no block is left.
    """
    blocks = block_log_ratios(samples, candidate, reference)
    if not len(blocks):
        raise BackendError(
            f"of {len(samples)} timed rounds no two have times above 0; use a longer decode step (a larger batch)"
        )
    interval = confidence_sequence(blocks)
    pair = samples[:, [reference, candidate]]
    reference_s, candidate_s = np.median(pair[_is_timed(pair)], axis=0)
    return Speedup(
        baseline_ms=float(reference_s * 1e3),
        latency_ms=float(candidate_s * 1e3),
        ratio=exp(interval.centre),
        ci95=(exp(interval.low), exp(interval.high)),
        rounds=len(samples),
    )


def _is_timed(samples: Samples) -> npt.NDArray[np.bool_]:
    """Return for each round whether all its times are numbers above 0."""
    timed: npt.NDArray[np.bool_] = np.all(np.isfinite(samples) & (samples > 0), axis=1)
    return timed


def halfwidth(speedup: Speedup) -> float:
    """Return half the width of the interval, relative to the ratio."""
    low, high = speedup.bounds
    return (high - low) / 2 / speedup.ratio


def _is_settled(samples: Samples, budget: Budget, enough: Callable[[Speedup], bool]) -> bool:
    others = (compare(samples, index) for index in range(1, samples.shape[1]))
    return all(halfwidth(other) <= budget.halfwidth or enough(other) for other in others)


def _measurement(rows: Sequence[Sequence[float]], causes: Sequence[str], min_rounds: int) -> Measurement:
    samples = np.array(rows)
    disturbed = np.array([bool(cause) for cause in causes])
    notes = []
    if disturbed.any():
        names = ", ".join(name for name, _ in Counter(filter(None, causes)).most_common())
        fate = "left out" if (~disturbed).sum() >= min_rounds else "counted anyway"
        notes.append(f"{disturbed.mean():.0%} of the rounds disturbed by {names}, {fate}")
    if len(samples) < min_rounds:
        notes.append(f"time for {len(samples)} rounds only, of {min_rounds} that an interval needs")
    timed = samples[_is_timed(samples)]
    if len(timed) < len(samples):
        notes.append(f"{len(samples) - len(timed)} rounds in which the clock showed no time above 0 left out")
    third = len(timed) // 3
    if third:
        totals = np.log(timed.sum(axis=1))
        drift = exp(float(np.median(totals[-third:]) - np.median(totals[:third]))) - 1
        if abs(drift) > DRIFT:
            notes.append(f"the machine became {abs(drift):.0%} {'slower' if drift > 0 else 'faster'}")
    return Measurement(samples, disturbed, min_rounds, "; ".join(notes))


def _round(
    contenders: Sequence[Contender], order: Sequence[int] | npt.NDArray[np.int64], device: Device
) -> list[float]:
    spent = [0.0] * len(contenders)
    for index in order:
        contender = contenders[index]
        contender.prepare()
        spent[index] = device.time_s(contender.run)
    return spent
