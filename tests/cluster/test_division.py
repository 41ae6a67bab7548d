"""Dies of searches that run side by side: each belongs to one of them, and goes where it is needed most."""

import pytest

from sktune.cluster.division import DividedShare, Division
from sktune.core.errors import InterruptedSearchError
from sktune.core.events.search import FinalStarted, SearchStarted

DIES = ["0", "1", "2", "3", "4", "5"]


def begun(share: DividedShare) -> None:
    """Tell a share that its search has begun."""
    share(SearchStarted(study="s", trials=10, done=0, folder="", time_budget_s=None))


def final(share: DividedShare) -> None:
    """Tell a share that its final comparison has begun."""
    share(FinalStarted(simulated=True, qualifiers=[], references=False))


def test_dies_are_divided_by_trials_left() -> None:
    """Whichever search looks first."""
    division = Division(None)
    small, large = division.share(10), division.share(20)
    assert len(small.of(DIES)) == 2
    assert len(large.of(DIES)) == 4
    assert small.places.isdisjoint(large.places)


def test_searches_that_get_no_die_wait() -> None:
    """The next one begins when one ends, and gets its die."""
    division = Division(2)
    first, second, third = (division.share(10) for _ in range(3))
    assert (list(first.of(DIES)), list(second.of(DIES))) == (["0"], ["1"])
    assert division.running == [first, second]
    division.end(first)
    assert division.running == [second, third]
    assert list(second.of(DIES)) == ["1"]
    assert list(third.of(DIES)) == ["0"]


def test_a_final_comparison_keeps_three_dies() -> None:
    """The others go to a search that still tries plans, if there is one."""
    dies = [str(number) for number in range(8)]
    division = Division(8)
    first, second = division.share(10), division.share(10)
    begun(first)
    begun(second)
    assert len(first.of(dies)) == 4
    assert first.surplus == 0
    final(first)
    assert first.surplus == 1
    first.give_back("6")
    assert first.surplus == 0
    assert len(second.of(dies)) == 5
    division.end(first)
    final(second)
    assert second.surplus == 0


def test_a_die_that_is_gone_is_replaced() -> None:
    """Its search gets another one, as far as there are any."""
    division = Division(2)
    share = division.share(10)
    assert list(share.of(["0", "1", "2"])) == ["0", "1"]
    assert list(share.of(["1", "2"])) == ["1", "2"]


def test_all_searches_can_be_stopped() -> None:
    """Each at its next look for dies."""
    division = Division(2)
    share = division.share(10)
    division.is_stopped = True
    with pytest.raises(InterruptedSearchError, match="run the same command to continue"):
        share.of(DIES)
