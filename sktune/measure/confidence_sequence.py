"""Sequential comparison: an interval of a speedup that is valid however often it is looked at, and its verdict.

The unit of evidence is the ABBA block: two rounds, the second in reverse order, with a new random order for each block.
Its value is the mean of the rounds' log ratios, reference over candidate, in which a linear drift cancels. If the
candidate is faster by a constant factor exp(theta), then swapping the two within a block flips the sign of the value's
distance from theta: given the distances of all blocks from theta, the sign of each is a fair coin flip, because the
order was one. Nothing else is assumed: timings may be heavy-tailed, autocorrelated and drifting, as long as the noise
does not depend on the order.

With symmetric scores psi, exp(lambda S - lambda^2 V / 2), with S the sum of psi and V that of psi^2, is a
supermartingale (de la Pena 1999, "A general class of exponential inequalities for martingales and ratios", lemma 6.1).
Mixed over lambda ~ N(0, rho^2) (Robbins 1970; Johari, Pekelis and Walsh 2019, the mSPRT) it stays below 1 / ALPHA
forever with probability 1 - ALPHA (Ville's inequality). The interval contains every theta for which it is below now.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from sktune.core.outcome import FARTHEST

ALPHA = 0.05
"""Probability that the interval ever misses the true value, over all looks; half of it on each side."""
CLIP = 3.0
"""Scores are clipped at this many median distances, about two standard deviations: one bad block cannot decide."""
MIXTURE_VARIANCE = 0.6
"""rho^2: makes the interval tightest at about 60 blocks (Waudby-Smith et al. 2021, section 2.3)."""
FIRST_SCALE = 8
"""Number of blocks that are scaled by their own median distance; later blocks are scaled by that of the blocks before
them, updated at each doubling, so that a score never depends on later blocks."""
_HALVINGS = 14

Blocks = npt.NDArray[np.float64]
"""Log ratios, shape (blocks,)."""


class Comparison(StrEnum):
    """The verdict on a candidate against a reference."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class LogInterval:
    """An interval of a log ratio, and a robust centre of the blocks."""

    low: float
    centre: float
    high: float


def block_log_ratios(samples: npt.NDArray[np.float64], candidate: int, reference: int = 0) -> Blocks:
    """Return the value of each whole block.

    Args:
        samples: seconds, shape (rounds, contenders); rounds 2k and 2k + 1 are one block.
        candidate, reference: columns.

    Blocks with a time that is not a number above 0 are left out: a clock may be too coarse for a step.
    """
    pairs = samples[: len(samples) // 2 * 2, [reference, candidate]].reshape(-1, 2, 2)
    pairs = pairs[(np.isfinite(pairs) & (pairs > 0)).all(axis=(1, 2))]
    means: Blocks = (np.log(pairs[:, :, 0]) - np.log(pairs[:, :, 1])).mean(axis=1)
    return means


def confidence_sequence(blocks: Blocks, alpha: float = ALPHA) -> LogInterval:
    """Return the interval that contains the true log ratio, at all looks, with probability 1 - ``alpha``.

    It ends at ``FARTHEST`` if there are too few blocks to exclude anything: fewer than 14 with 5%.
    """
    if not len(blocks):
        return LogInterval(-FARTHEST, 0.0, FARTHEST)
    centre = _bisect(blocks, float(blocks.min()), float(blocks.max()))
    step = max(float(np.median(np.abs(blocks - centre))), 1e-6)
    low, high = (_end(blocks, centre, side * step, alpha) for side in (-1, 1))
    return LogInterval(low, centre, high)


def compare_with_floor(low: float, high: float, floor: float) -> Comparison:
    """Return the verdict of an interval of a log ratio, ignoring effects up to ``floor`` (also a log ratio)."""
    if low > floor:
        return Comparison.FASTER
    if high < -floor:
        return Comparison.SLOWER
    return Comparison.SAME if -floor <= low and high <= floor else Comparison.UNDECIDED


def _scores(blocks: Blocks, theta: float) -> Blocks:
    distances = blocks - theta
    sizes = np.abs(distances)
    scale = np.empty_like(sizes)
    start, end = 0, FIRST_SCALE
    while start < len(sizes):
        scale[start:end] = _median(sizes[: start or end])
        start, end = end, 2 * end
    scores: Blocks = np.clip(distances / (CLIP * np.maximum(scale, 1e-12)), -1.0, 1.0)
    return scores


def _median(values: Blocks) -> float:
    """Return the median without the overhead of ``np.median``, which took most of the time of an interval."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def _is_excluded(blocks: Blocks, theta: float, alpha: float) -> bool:
    scores = _scores(blocks, theta)
    spread = 1.0 + MIXTURE_VARIANCE * float(np.square(scores).sum())
    log_evidence = MIXTURE_VARIANCE * float(scores.sum()) ** 2 / (2 * spread) - np.log(spread) / 2
    return bool(log_evidence >= np.log(1 / alpha))


def _bisect(blocks: Blocks, low: float, high: float) -> float:
    """Return the log ratio at which the scores cancel."""
    while high - low > 1e-6:
        middle = (low + high) / 2
        if float(_scores(blocks, middle).sum()) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _end(blocks: Blocks, centre: float, step: float, alpha: float) -> float:
    """Return the nearest log ratio in the direction of ``step`` beyond which everything is excluded."""
    inside, outside = centre, centre + step
    while not _is_excluded(blocks, outside, alpha):
        if abs(outside - centre) >= FARTHEST:
            return centre + float(np.copysign(FARTHEST, step))
        inside, outside = outside, centre + 2 * (outside - centre)
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        if _is_excluded(blocks, middle, alpha):
            outside = middle
        else:
            inside = middle
    return outside
