"""Public profiles with and without SuperKernel: the model's gains are near those that were measured."""

import pytest

from benchmarks.real_pairs import FITTED, PAIRS, Pair, fit, left_out
from sktune.sim.constants import load_constants

CONSTANTS = load_constants()
POINTS = 1.5


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_baseline_takes_as_long_as_its_profile(pair: Pair) -> None:
    """Its tasks and gaps add up to the published time."""
    before_us, _ = pair.simulate(CONSTANTS)
    assert before_us == pytest.approx(pair.before_us, abs=0.2)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_gain_that_the_fit_has_not_seen_is_near(pair: Pair) -> None:
    """Within 1.5 points of what was measured."""
    (apart,) = left_out(CONSTANTS, [pair])
    assert apart == pytest.approx(pair.gain, abs=POINTS)


def test_the_constants_are_those_that_fit_best() -> None:
    """The file has them, rounded."""
    fitted = fit(PAIRS, CONSTANTS)
    for name in FITTED:
        assert CONSTANTS[name] == pytest.approx(fitted[name], abs=0.05)
