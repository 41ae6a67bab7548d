"""Shares: which of an engine's places a search may use; several searches may divide them."""

from collections.abc import Sequence
from typing import Protocol

GIVEN_BACK = "it is not needed for the final comparison, and free for another search"


class Share(Protocol):
    """What one search has of the places that its engine sees; only its engine's thread asks.

    A place is a die, by a name that all engines of a command use for it.
    """

    @property
    def surplus(self) -> int:
        """How many of its places the search does not use any more, and others would take."""
        ...

    def of(self, places: Sequence[str], /) -> Sequence[str]:
        """Return which of the places that there are may be used now.

        Raises:
            InterruptedSearchError: the search shall stop immediately.
        """
        ...

    def give_back(self, place: str, /) -> None:
        """Let other searches use a place, on which nothing runs any more."""
        ...


class FirstPlaces:
    """The share of a search that divides nothing; a ``Share``.

    Args:
        most: number of places to use; None for all.
    """

    surplus = 0

    def __init__(self, most: int | None = None) -> None:
        self._most = most

    def of(self, places: Sequence[str], /) -> Sequence[str]:
        """See ``Share.of``."""
        return places[: self._most]

    def give_back(self, place: str, /) -> None:
        """See ``Share.give_back``: never called, as all places are needed to the end."""
