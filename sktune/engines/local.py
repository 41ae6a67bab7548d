"""The engine of one host: each worker has a die, or on a CPU cores, to itself."""

import queue
import time
from collections.abc import Mapping, Sequence
from typing import Self

from sktune.engines.base import Call, EngineEvent, OnEvent, Worker
from sktune.engines.dies import Die
from sktune.engines.runner_thread import END_S, RunnerThread
from sktune.runners.base import DurationEstimates, Opened, RunnerFactory, RunnerSetup


class LocalEngine:
    """Runs a thread of this process for each worker; an ``Engine``.

    Args:
        setup: of the search; each worker's differs in its die.
        dies: one for each worker.
        factory: makes a runner.
    """

    def __init__(self, setup: RunnerSetup, dies: Sequence[Die], factory: RunnerFactory) -> None:
        self._setup, self._dies, self._factory = setup, dies, factory
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        self._threads: dict[Worker, RunnerThread] = {}

    def __enter__(self) -> Self:
        for die in self._dies:
            worker = Worker(str(die))
            thread = RunnerThread(worker, die, die.setup(self._setup), self._factory, self._events.put)
            self._threads[worker] = thread
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads.values():
            thread.end()
        until_s = time.monotonic() + END_S
        for thread in self._threads.values():
            thread.join(max(0.0, until_s - time.monotonic()))

    def submit(self, worker: Worker, call: Call, /) -> None:
        """See ``Engine.submit``."""
        self._threads[worker].submit(call)

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:
        """See ``Engine.wait``."""
        try:
            on_event(self._events.get(timeout=timeout_s))
        except queue.Empty:
            return

    def discard(self, worker: Worker, /) -> None:
        """See ``Engine.discard``."""
        self._threads[worker].end()

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Engine.pace``."""
        return self._factory(self._setup).pace(opened, trials)
