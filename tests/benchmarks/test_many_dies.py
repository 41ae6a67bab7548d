"""Searches on many dies in virtual time: what is counted, and that lost hosts are survived."""

import pytest

from benchmarks.faulty_engine import START_S
from benchmarks.landscapes.recorded import recorded
from benchmarks.many_dies import HOST_BACK_S, Account, search


def test_utilisation_leaves_out_the_time_of_lost_hosts() -> None:
    """Two dies, one of them away for half of the time."""
    account = Account(asks=[(0, 1.0, 0.0), (1, 1.0, 50.0)], spans=[(0.0, 100.0), (0.0, 40.0)], away=[(50.0, 150.0)])
    assert account.utilisation(2, to_the_end=True) == pytest.approx(140 / 150)
    assert account.utilisation(2, to_the_end=False) == pytest.approx(90 / 100)
    assert account.seconds == 100.0


def test_a_search_goes_on_after_its_only_host_was_lost() -> None:
    """Every trial has a result, and the dies were away once."""
    account, reached = search(recorded("llama-float32"), ["host 0"] * 2, [1.0, 1.5], [("host 0", START_S + 400.0)],
                              trials=5, seed=0)  # fmt: skip
    assert len(account.spans) >= 5
    assert len(account.asks) >= 5
    assert len(account.away) == 2
    assert account.seconds > HOST_BACK_S
    assert reached > 0
