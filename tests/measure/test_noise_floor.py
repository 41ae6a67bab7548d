"""The noise floor, and the threshold that a plan has to beat."""

import numpy as np
import pytest

from sktune.core.codec import decoded, encoded
from sktune.core.outcome import Speedup
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.latency import Budget, compare, measure
from sktune.measure.noise_floor import MIN_FLOOR, NoiseFloorSample, Threshold, drift, noise_floor
from tests.measure.test_latency import Machine, contender


def speedup(low: float, ratio: float, high: float, baseline_ms: float = 5.0) -> Speedup:
    """Return a measured ratio."""
    return Speedup(baseline_ms, baseline_ms / ratio, ratio, (low, high), 100)


def test_the_floor_is_the_largest_difference_of_the_baseline_from_itself() -> None:
    """In either direction, and never zero."""
    copies = [speedup(ratio * 0.99, ratio, ratio * 1.01) for ratio in (1.002, 1 / 1.006, 1.001)]
    assert noise_floor(copies) == pytest.approx(0.006)
    assert noise_floor([]) == MIN_FLOOR


def test_a_disturbed_sample_does_not_raise_the_floor() -> None:
    """Its interval is many times as wide as the others'; if there is no better one, it counts."""
    good, bad = speedup(0.99, 1.002, 1.01), speedup(0.90, 1.04, 1.20)
    assert noise_floor([good, bad]) == pytest.approx(0.002)
    assert noise_floor([bad]) == pytest.approx(0.04)


def test_samples_are_read_back_and_show_drift() -> None:
    """From their stored form."""
    samples = [
        NoiseFloorSample(0, speedup(0.99, 1.0, 1.01, 5.0)),
        NoiseFloorSample(10, speedup(0.99, 1.0, 1.01, 5.5), "steal time"),
    ]
    again = [decoded(NoiseFloorSample, encoded(sample)) for sample in samples]
    assert again == samples
    assert drift(again) == pytest.approx(0.1)
    assert "die" not in encoded(again[0])


def test_drift_is_that_of_one_die() -> None:
    """Dies that differ in latency do not show as drift."""
    latencies_ms = (("npu 0", 5.0), ("npu 1", 6.0), ("npu 0", 5.1), ("npu 1", 6.06))
    samples = [NoiseFloorSample(10, speedup(0.99, 1.0, 1.01, ms), die=die) for die, ms in latencies_ms]
    again = [decoded(NoiseFloorSample, encoded(sample)) for sample in samples]
    assert again == samples
    assert drift(again) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("ratio", "comparison", "is_out_of_reach"),
    [
        ((1.10, 1.12, 1.14), Comparison.FASTER, True),
        ((1.10, 1.15, 1.25), Comparison.FASTER, False),
        ((0.90, 1.00, 1.21), Comparison.UNDECIDED, False),
        ((0.995, 1.0, 1.005), Comparison.SAME, True),
        ((0.80, 0.85, 0.90), Comparison.SLOWER, True),
    ],
)
def test_a_plan_is_compared_with_baseline_and_incumbent(
    ratio: tuple[float, float, float], comparison: Comparison, is_out_of_reach: bool
) -> None:
    """With a floor of 1% and an incumbent of at least 1.2."""
    threshold = Threshold(noise_floor=0.01, incumbent_ratio=1.2)
    assert threshold.comparison(speedup(*ratio)) is comparison
    assert threshold.is_out_of_reach(speedup(*ratio)) is is_out_of_reach


def test_plans_that_cannot_win_are_stopped_early() -> None:
    """Against an incumbent of 1.5, on a noisy machine."""

    def rounds(true_ratio: float) -> int:
        machine = Machine()
        steps = [contender(machine.step(0.010, 0.05)), contender(machine.step(0.010 / true_ratio, 0.05))]
        threshold = Threshold(noise_floor=0.005, incumbent_ratio=1.5)
        rng = np.random.default_rng(0)
        found = measure(steps, Budget(seconds=4), rng, machine, threshold.is_out_of_reach, read_load=lambda: None)
        return compare(found.counted, 1).rounds

    assert rounds(1.2) <= 60
    assert rounds(0.9) <= 60
    assert rounds(1.5) > 150
    assert rounds(1.6) > 150
