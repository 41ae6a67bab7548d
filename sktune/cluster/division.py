"""The division of dies among searches that run side by side: each die belongs to one of them at a time.

A free die goes to the search with the fewest dies per trial left. Dies are given back when a search ends, and when its
final comparison begins those that it does not need.
"""

import math
import threading
from collections import deque
from collections.abc import Sequence

from sktune.core.errors import InterruptedSearchError
from sktune.core.events.base import Event
from sktune.core.events.search import FinalStarted, SearchStarted, TrialFinished
from sktune.tuning.finals import MIN_DIES


class Division:
    """Divides places among searches, of which some run and others wait.

    Args:
        most: number of places to use; None for all.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.lock = threading.RLock()
        self.running: list[DividedShare] = []
        self._waiting: deque[DividedShare] = deque()
        self.is_stopped = False

    def share(self, trials: float) -> "DividedShare":
        """Return the share of a search, which begins when there is a place for it; ``trials`` is how many it has."""
        share = DividedShare(self, trials)
        with self.lock:
            (self.running if self._most is None or len(self.running) < self._most else self._waiting).append(share)
        return share

    def end(self, share: "DividedShare") -> None:
        """Give back all places of a search that has ended, and let another one begin."""
        with self.lock:
            self.running.remove(share)
            if self._waiting:
                self.running.append(self._waiting.popleft())

    @property
    def has_taker(self) -> bool:
        """Whether a search could use another place, or waits for one."""
        with self.lock:
            return bool(self._waiting) or any(share.takes for share in self.running)

    def divide(self, places: Sequence[str]) -> None:
        """Give the free ones of these places to those who need them most."""
        held = {place for share in self.running for place in share.places}
        left = math.inf if self._most is None else self._most - len(held)
        for place in [place for place in places if place not in held]:
            takers = [share for share in self.running if share.takes]
            if left < 1 or not takers:
                return
            min(takers, key=lambda share: share.fullness).places.add(place)
            left -= 1


class DividedShare:
    """What one search has; a ``Share``, and a listener of the search's events.

    Attributes:
        places: that the search holds.
    """

    def __init__(self, division: Division, trials: float) -> None:
        self._division, self._trials_left = division, trials
        self.places: set[str] = set()
        self._is_final = False

    def __call__(self, event: Event) -> None:
        """Learn from an event of the search how many trials are left."""
        with self._division.lock:
            if isinstance(event, SearchStarted):
                self._is_final = False
                self._trials_left = math.inf if event.trials is None else event.trials - event.done
            elif isinstance(event, TrialFinished):
                self._trials_left -= 1
            elif isinstance(event, FinalStarted):
                self._is_final = True

    @property
    def surplus(self) -> int:
        """See ``Share``."""
        with self._division.lock:
            return max(0, len(self.places) - MIN_DIES) if self._is_final and self._division.has_taker else 0

    @property
    def takes(self) -> bool:
        """Whether it could use another place."""
        return not self._is_final or len(self.places) < MIN_DIES

    @property
    def fullness(self) -> tuple[float, int]:
        """Places per trial left, and places: who has least is served first."""
        return len(self.places) / max(1.0, self._trials_left), len(self.places)

    def of(self, places: Sequence[str], /) -> Sequence[str]:
        """See ``Share.of``."""
        if self._division.is_stopped:
            raise InterruptedSearchError("stopped immediately; run the same command to continue")
        with self._division.lock:
            self.places &= set(places)  # others are gone
            self._division.divide(places)
            return [place for place in places if place in self.places]

    def give_back(self, place: str, /) -> None:
        """See ``Share.give_back``."""
        with self._division.lock:
            self.places.discard(place)
