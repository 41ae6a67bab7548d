"""Which dies are trusted."""

import math

from sktune.tuning.scheduler import FAR_SLOWER, SLOW, dissenters, limit_ms


def test_a_die_is_held_to_its_own_record() -> None:
    """Identical dies may differ by half."""
    records = {"a": [10.0, 10.0, 10.0], "b": [15.0, 15.0, 15.0]}
    assert limit_ms(records, "a") == 10 * SLOW
    assert limit_ms(records, "b") == 15 * SLOW


def test_what_slows_down_all_dies_is_nobodys_fault() -> None:
    """The limit moves with the others."""
    records = {"a": [10.0, 10.0, 10.0], "b": [10.0, 10.0, 10.0, 10.0, 20.0], "c": [10.0, 10.0, 10.0, 10.0, 20.0]}
    assert limit_ms(records, "a") == 20 * SLOW


def test_a_new_die_is_held_to_the_others() -> None:
    """And a die alone to nothing."""
    assert limit_ms({"a": [10.0], "b": [10.0, 12.0, 11.0]}, "a") == 11 * FAR_SLOWER
    assert limit_ms({"a": [10.0, 10.0, 10.0]}, "a") == math.inf


def test_the_majority_decides_which_bits_are_right() -> None:
    """Without one, nobody can tell."""
    assert dissenters({"a": "1", "b": "1", "c": "2"}) == {"c"}
    assert dissenters({"a": "1", "b": "1"}) == set()
    assert dissenters({"a": "1", "b": "2"}) is None
