"""A thread that owns a runner: it makes it, performs its calls and closes it.

It lives as long as the runner. The kernel ends a worker's process with the thread that started it (``PR_SET_PDEATHSIG``
in prctl(2)), so that no process outlives it, whatever becomes of its own process.
"""

import math
import queue
import threading

from sktune.core.errors import PeerLostError, described
from sktune.engines.base import EngineEvent, Joined, Lost, OnEvent, RunnerCall, Worker, perform
from sktune.engines.dies import Die
from sktune.worker.jobs import Runner, RunnerFactory, RunnerSetup

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
