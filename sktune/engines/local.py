"""The engine of one host: each worker has a die, or on a CPU cores, to itself."""

import itertools
import queue
import time
from collections.abc import Mapping, Sequence
from typing import Self

from sktune.engines.base import EngineEvent, Lost, OnEvent, RunnerCall, Worker
from sktune.engines.dies import Die
from sktune.engines.runner_thread import END_S, RunnerThread
from sktune.engines.share import GIVEN_BACK, FirstPlaces, Share
from sktune.worker.jobs import DurationEstimates, Opened, RunnerFactory, RunnerSetup


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

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Engine.pace``."""
        return self._factory(self._setup).pace(opened, trials)

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
