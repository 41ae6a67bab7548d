"""Notes in the study what becomes of a search's workers, so that a report made later can tell."""

import socket

from sktune.core.events import Event, Listener
from sktune.core.events.workers import WorkerJoined, WorkerLost, WorkerQuarantined
from sktune.engines.share import GIVEN_BACK
from sktune.study.worker_log import Fate, WorkerLog


class WorkerRecord:
    """Stores what happens to workers, then passes it on; a listener.

    Args:
        log: of the study.
        emit: called with each event.
    """

    def __init__(self, log: WorkerLog, emit: Listener) -> None:
        self._log, self._emit = log, emit
        self._hosts: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Take an event of the search."""
        match event:
            case WorkerJoined():
                self._hosts[event.worker] = event.host or socket.gethostname()
                self._add(event.worker, Fate.JOINED)
            case WorkerQuarantined():
                self._add(event.worker, Fate.QUARANTINED, event.why)
            case WorkerLost():
                self._add(event.worker, Fate.GIVEN_BACK if event.why == GIVEN_BACK else Fate.LOST, event.why)
        self._emit(event)

    def _add(self, worker: str, fate: Fate, why: str = "") -> None:
        self._log.add(worker, self._hosts.get(worker, ""), fate, why)
