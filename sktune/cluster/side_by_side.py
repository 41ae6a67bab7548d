"""Several searches in one command: side by side over the workers, or one after another if there is only one.

Each is a search of its own, with its claim, leases and coordinator; what they share is the dies.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sktune.cluster.division import DividedShare, Division
from sktune.core.errors import InterruptedSearchError, SktuneError
from sktune.core.events.base import Event, Listener
from sktune.learning.threads import one_blas_thread
from sktune.study.result import SearchResult
from sktune.tuning import loop
from sktune.tuning.interrupt import stoppable
from sktune.tuning.local_engine import END_S
from sktune.tuning.loop import site_of
from sktune.tuning.request import Request
from sktune.tuning.site import Site

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What became of one search: its result, or why it failed."""

    request: Request
    result: SearchResult | None = None
    failure: Exception | None = None


StudyListener = Callable[[str, Event], None]


@one_blas_thread()
def search_all(
    requests: Sequence[Request], listener: StudyListener = lambda study, event: None
) -> tuple[ModelAnswer, ...]:
    """Search for each request, all of which name their study and agree in engine and workers.

    Args:
        requests: see ``sktune.cluster.model_list``.
        listener: called with the study's name and each event; by one thread at a time.

    Raises:
        InterruptedSearchError: Ctrl-C; all finished trials are stored.
    """
    if not requests[0].is_shared:
        return tuple(_answer(request, partial(listener, request.study or ""), None) for request in requests)
    with stoppable() as stop:
        searches = _Searches(requests, listener)
        try:
            answers = searches.run(lambda: stop.requested)
        finally:
            searches.end()
        if stop.requested:
            ended = sum(answer.result is not None for answer in answers)
            raise InterruptedSearchError(
                f"stopped after {ended} of {len(requests)} studies; run the same command to continue"
            )
        return answers


def _answer(request: Request, listener: Listener, site: Site | None) -> ModelAnswer:
    try:
        return ModelAnswer(request, loop.search(request, listener, site=site))
    except InterruptedSearchError:
        raise
    except SktuneError as failure:
        return ModelAnswer(request, failure=failure)


class _Searches:
    """Searches in threads of their own, whose dies are divided among them."""

    def __init__(self, requests: Sequence[Request], listener: StudyListener) -> None:
        self._requests, self._listener, self._lock = requests, listener, threading.Lock()
        self._division = Division(requests[0].workers)
        self._shares = [self._division.share(request.max_trials) for request in requests]
        self._threads: dict[int, threading.Thread] = {}
        self._ended: queue.SimpleQueue[tuple[int, ModelAnswer | BaseException]] = queue.SimpleQueue()

    def run(self, is_stopping: Callable[[], bool]) -> tuple[ModelAnswer, ...]:
        """Run all of them, or, once it ``is_stopping``, those that run; an unexpected error of one is raised here."""
        answers: dict[int, ModelAnswer] = {}
        while len(answers) < len(self._requests):
            for number, share in enumerate(self._shares):
                if number not in self._threads and share in self._division.running and not is_stopping():
                    self._start(number, share)
            if len(answers) == len(self._threads):
                break
            try:
                number, ended = self._ended.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if isinstance(ended, InterruptedSearchError):
                ended = ModelAnswer(self._requests[number], failure=ended)
            if isinstance(ended, BaseException):
                raise ended
            answers[number] = ended
        return tuple(answers[number] for number in sorted(answers))

    def end(self) -> None:
        """End at once what still runs."""
        self._division.is_stopped = True
        until_s = time.monotonic() + 2 * END_S
        for thread in self._threads.values():
            thread.join(max(0.0, until_s - time.monotonic()))

    def _start(self, number: int, share: DividedShare) -> None:
        name = f"sktune search {self._requests[number].study}"
        self._threads[number] = threading.Thread(target=self._search, args=(number, share), name=name, daemon=True)
        self._threads[number].start()

    def _search(self, number: int, share: DividedShare) -> None:
        request = self._requests[number]

        def listen(event: Event) -> None:
            share(event)
            with self._lock:
                self._listener(request.study or "", event)

        ended: ModelAnswer | BaseException
        try:
            ended = _answer(request, listen, site_of(request, share))
        except BaseException as failure:  # noqa: BLE001 - it is raised again in the main thread
            ended = failure
        self._division.end(share)
        self._ended.put((number, ended))
