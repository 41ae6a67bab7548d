"""The engine of several workers on one host: each has a die, or on a CPU cores, to itself, and a thread of its own.

A thread lives as long as its runner. The kernel ends a worker's process with the thread that started it
(``PR_SET_PDEATHSIG`` in prctl(2)), so that no process outlives it, whatever becomes of its own process.
"""

import itertools
import math
import queue
import threading
import time
from collections.abc import Sequence
from typing import Self

from sktune.core.errors import PeerLostError, described
from sktune.tuning.dies import Die
from sktune.tuning.scheduler import Share
from sktune.worker.jobs import (
    GIVEN_BACK,
    EngineEvent,
    Joined,
    Lost,
    OnEvent,
    Runner,
    RunnerCall,
    RunnerFactory,
    RunnerSetup,
    Worker,
    perform,
)


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


END_S = 20.0
"""How long a runner may take to notice its deadline and to kill its processes."""


class RunnerThread(threading.Thread):
    """Runs one worker.

    Args:
        worker: whose events these are.
        die: held while the thread lives.
        setup, factory: make the runner.
        on_event: called from this thread, and not any more once ``end`` was called.
    """

    def __init__(self, worker: Worker, die: Die, setup: RunnerSetup, factory: RunnerFactory, on_event: OnEvent) -> None:
        super().__init__(name=f"sktune {worker}", daemon=True)
        self._worker, self._die, self._setup, self._factory, self._on_event = worker, die, setup, factory, on_event
        self._calls: queue.SimpleQueue[RunnerCall | None] = queue.SimpleQueue()
        self._runner: Runner | None = None
        self._is_ending = False

    def submit(self, call: RunnerCall) -> None:
        """Perform a call after those that were submitted before."""
        self._calls.put(call)

    def end(self) -> None:
        """Cut off what runs, close the runner and end, without waiting."""
        self._is_ending = True
        self._calls.put(None)
        if self._runner:
            self._runner.deadline_s = -math.inf

    def run(self) -> None:
        """Perform calls until the end."""
        try:
            with self._die.held(self._setup.folder), self._factory(self._setup) as self._runner:
                self._post(Joined(self._worker))
                while not self._is_ending and (call := self._calls.get()):
                    perform(self._runner, self._worker, call, self._post)
        except PeerLostError as failure:
            self._post(Lost(self._worker, str(failure)))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the worker is gone, and the search must know
            self._post(Lost(self._worker, described(failure)))

    def _post(self, event: EngineEvent) -> None:
        if not self._is_ending:
            self._on_event(event)


class LocalEngine:
    """Runs a thread of this process for each worker; an ``Engine``.

    Args:
        setup: of the search; each worker's differs in its die.
        dies: one for each worker.
        factory: makes a runner.
        share: which of the dies to use; None for all.
    """

    def __init__(
        self, setup: RunnerSetup, dies: Sequence[Die], factory: RunnerFactory, share: Share | None = None
    ) -> None:
        self._setup, self._dies, self._factory = setup, {str(die): die for die in dies}, factory
        self._share = share or FirstPlaces()
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        self._threads: dict[Worker, RunnerThread] = {}
        self._lives = itertools.count(1)
        self._called: Worker | None = None
        self._leaving: set[Worker] = set()
        self._discarded: set[Worker] = set()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads.values():
            thread.end()
        until_s = time.monotonic() + END_S
        for thread in self._threads.values():
            thread.join(max(0.0, until_s - time.monotonic()))

    def submit(self, worker: Worker, call: RunnerCall, /) -> None:
        """See ``Engine.submit``."""
        self._called = worker
        self._threads[worker].submit(call)

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:
        """See ``Engine.wait``."""
        self._start()
        self._give_back(on_event)
        try:
            on_event(self._events.get(timeout=timeout_s))
        except queue.Empty:
            return

    def discard(self, worker: Worker, /) -> None:
        """See ``Engine.discard``: its die is not given back either."""
        self._discarded.add(worker)
        self._threads[worker].end()

    def _start(self) -> None:
        """Start a worker on each die that has come to this search."""
        taken = {worker.die for worker in self._threads}
        for place in self._share.of(list(self._dies)):
            if place not in taken:
                die, worker = self._dies[place], Worker(place, life=str(next(self._lives)))
                thread = RunnerThread(worker, die, die.setup(self._setup), self._factory, self._events.put)
                self._threads[worker] = thread
                thread.start()

    def _give_back(self, on_event: OnEvent) -> None:
        """Give back dies that are not needed any more; never that of the worker that was called last."""
        kept = {self._called, *self._leaving, *self._discarded}
        others = [worker for worker in self._threads if worker not in kept]
        for worker in others[: max(0, self._share.surplus - len(self._leaving))]:
            self._leaving.add(worker)
            self._threads[worker].end()
            on_event(Lost(worker, GIVEN_BACK))
        for worker in [one for one in self._leaving if not self._threads[one].is_alive()]:
            self._leaving.remove(worker)
            del self._threads[worker]
            self._share.give_back(worker.die)
