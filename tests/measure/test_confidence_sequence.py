"""The sequential comparison: its error rate holds at every look, whatever the noise, and it finds real differences."""

from collections.abc import Callable
from math import log

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sktune.core.outcome import FARTHEST
from sktune.measure.confidence_sequence import Comparison, block_log_ratios, compare_with_floor, confidence_sequence

LOOKS = (20, 28, 40, 56, 80, 110, 150, 200)
Noise = npt.NDArray[np.float64]


def normal(rng: np.random.Generator) -> Noise:
    """Return log noise of a quiet machine: 4% per sample."""
    return 0.04 * rng.normal(size=(200, 4))


def heavy_tailed(rng: np.random.Generator) -> Noise:
    """Return noise in which some steps take many times as long (Student's t, one degree of freedom: no mean)."""
    return np.clip(0.02 * np.abs(rng.standard_t(1, size=(200, 4))), 0, 5)


def autocorrelated(rng: np.random.Generator) -> Noise:
    """Return autocorrelated noise: each sample keeps 0.95 of the one before."""
    samples = np.zeros(800)
    for index, shock in enumerate(rng.normal(size=800)):
        samples[index] = 0.95 * samples[index - 1] + 0.04 * shock
    return samples.reshape(200, 4)


def drifting(rng: np.random.Generator) -> Noise:
    """Return noise of a machine that gets slower and slower, and noisier."""
    trend = np.linspace(0, 3, 800).reshape(200, 4)
    return trend + 0.02 * np.exp(trend) * rng.normal(size=(200, 4))


def bursting(rng: np.random.Generator) -> Noise:
    """Return noise with a load that comes and goes, even within blocks."""
    is_busy = np.repeat(rng.random(40) < 0.4, 20).reshape(200, 4)
    return np.where(is_busy, 0.7 + 0.4 * rng.normal(size=(200, 4)), 0.03 * rng.normal(size=(200, 4)))


NOISES = [normal, heavy_tailed, autocorrelated, drifting, bursting]


def samples(noise: Noise, rng: np.random.Generator, theta: float) -> Noise:
    """Return seconds of reference and candidate: four runs per block, ABBA or BAAB at random."""
    time_s = 0.005 * np.exp(noise)
    pairs = np.stack([time_s[:, [0, 3]], time_s[:, [1, 2]]])  # outer and inner runs
    coin = rng.integers(0, 2, size=len(noise))
    blocks = np.arange(len(noise))
    reference, candidate = pairs[coin, blocks], pairs[1 - coin, blocks] * np.exp(-theta)
    return np.stack([reference.ravel(), candidate.ravel()], axis=1)


def errors(noise: Callable[[np.random.Generator], Noise], theta: float, studies: int) -> tuple[int, int]:
    """Return in how many studies the interval is above, or below, the truth at any look."""
    rng = np.random.default_rng(7)
    above = below = 0
    for _ in range(studies):
        blocks = block_log_ratios(samples(noise(rng), rng, theta), 1)
        intervals = [confidence_sequence(blocks[:look]) for look in LOOKS]
        above += any(interval.low > theta for interval in intervals)
        below += any(interval.high < theta for interval in intervals)
    return above, below


@pytest.mark.parametrize("noise", NOISES)
def test_equal_steps_are_rarely_distinguished_however_many_looks(noise: Callable[[np.random.Generator], Noise]) -> None:
    """Faster in at most 2.5% of studies, and slower likewise, over all looks; two standard errors are allowed."""
    above, below = errors(noise, 0.0, 80)
    assert above <= 80 * 0.06
    assert below <= 80 * 0.06


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_the_true_ratio_stays_inside(noise: Callable[[np.random.Generator], Noise]) -> None:
    """Also if the candidate is faster."""
    above, below = errors(noise, 0.2, 600)
    assert above <= 600 * 0.038
    assert below <= 600 * 0.038


def test_a_difference_of_two_percent_is_found() -> None:
    """With the noise of a quiet machine, beyond a noise floor of half a percent, within 200 blocks."""
    rng = np.random.default_rng(9)
    found = 0
    for _ in range(100):
        interval = confidence_sequence(block_log_ratios(samples(normal(rng), rng, log(1.02)), 1))
        found += compare_with_floor(interval.low, interval.high, 0.005) is Comparison.FASTER
    assert found >= 95


def test_few_blocks_exclude_nothing() -> None:
    """Twelve coin flips cannot decide, however far the blocks are from 1."""
    interval = confidence_sequence(np.full(12, 0.5))
    assert interval.centre == pytest.approx(0.5)
    assert interval.low < -1
    assert interval.high > 1


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.02, 0.03, Comparison.FASTER),
        (0.005, 0.03, Comparison.UNDECIDED),
        (-0.005, 0.005, Comparison.SAME),
        (-0.03, -0.02, Comparison.SLOWER),
        (-0.03, 0.03, Comparison.UNDECIDED),
    ],
)
def test_a_verdict_is_one_of_four(low: float, high: float, verdict: Comparison) -> None:
    """Against a noise floor of 1%."""
    assert compare_with_floor(low, high, 0.01) is verdict


@given(st.lists(st.tuples(*[st.sampled_from([0.0, -1.0, float("nan"), float("inf"), 1.0, 1.01])] * 2), max_size=60))
def test_times_that_are_not_above_zero_are_left_out(rows: list[tuple[float, float]]) -> None:
    """A clock that is too coarse for a step, or nonsense in a log, only costs the block."""
    samples = np.array(rows).reshape(-1, 2)
    blocks = block_log_ratios(samples, 1)
    assert np.isfinite(blocks).all()
    found = confidence_sequence(blocks)
    assert found.centre - FARTHEST <= found.low <= found.centre
    assert found.centre <= found.high <= found.centre + FARTHEST
