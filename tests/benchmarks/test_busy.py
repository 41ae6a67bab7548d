"""What the benchmark of busy machines calls a false claim, and a gain."""

from math import inf

import pytest

from benchmarks.busy import gain, is_false
from sktune.core.outcome import Speedup


def speedup(low: float, high: float) -> Speedup:
    """Return a speedup with an interval."""
    ratio = (low + high) / 2
    return Speedup(10.0, 10.0 / ratio, ratio, (low, high), 40)


@pytest.mark.parametrize(
    ("claimed", "found", "is_winner", "expected"),
    [
        (speedup(1.1, 1.3), speedup(1.2, 1.25), True, False),
        (speedup(1.1, 1.3), speedup(1.31, 1.4), False, True),
        (speedup(1.1, 1.3), speedup(0.9, 1.05), True, True),
        (speedup(0.05, 20.0), speedup(0.8, 0.9), False, False),
        (speedup(0.95, 1.3), speedup(0.8, 0.99), True, True),
        (speedup(1.1, 1.3), None, True, False),
    ],
)
def test_a_claim_is_false_if_the_figures_exclude_each_other(
    claimed: Speedup, found: Speedup | None, is_winner: bool, expected: bool
) -> None:
    """A wide interval claims little; a winner claims to be faster than the baseline."""
    assert is_false(claimed, found, is_winner=is_winner) is expected


def test_a_gain_is_the_share_of_the_step_that_is_saved() -> None:
    """Nothing without a winner."""
    assert gain(None) == 0.0
    assert gain(speedup(2.0, 2.0)) == 0.5
    assert gain(Speedup(1.0, 1.0, inf, None, 1)) == 1.0
