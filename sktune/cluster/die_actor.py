"""What runs on a die of a Ray cluster: a thread with a runner, and a queue of its events."""

import os
import queue
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from sktune.cluster.host_group import RayPeer, WorkerPlace
from sktune.cluster.hosts import restore_threads
from sktune.recipes.peers import LocalPeer
from sktune.tuning.dies import VISIBLE, WHOLE_HOST, Die, cores_by_die, dies_here
from sktune.tuning.local_engine import RunnerThread
from sktune.worker.jobs import EngineEvent, RunnerCall, RunnerFactory, RunnerSetup, Worker


class DieActor:
    """Runs one worker; two calls at a time, as ``news`` waits.

    Args:
        kind: see ``Die``.
        slot: number among the actors of its host.
        threads: the user's ``OMP_NUM_THREADS``.
        folder: the user's working folder, which is taken if it is there, too.
    """

    def __init__(self, kind: str, slot: int, threads: str | None, folder: Path) -> None:
        self._kind, self._slot = kind, slot
        restore_threads(threads)
        if folder.is_dir():
            os.chdir(folder)
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        self._thread: RunnerThread | None = None

    def start(
        self, place: WorkerPlace, peers: Sequence[Any], life: str, setup: RunnerSetup, factory: RunnerFactory
    ) -> Worker:
        """Start the runner's thread, and return the worker; ``peers`` are the actors on further hosts of its place."""
        die = self._die(place.hosts[0].dies, setup.placement.core_count)
        worker = Worker(f"{place.name} {die}", place.name, life)
        if die.kind == WHOLE_HOST:
            setup = replace(setup, host=re.sub(r"[^A-Za-z0-9-]+", "-", place.name))
        if peers:
            here, *others = place.hosts
            setup = replace(setup, hosts=(LocalPeer(here.name, here.address), *map(RayPeer, others, peers)))
        self._thread = RunnerThread(worker, die, die.setup(setup), factory, self._events.put)
        self._thread.start()
        return worker

    def submit(self, call: RunnerCall, left_s: float) -> None:
        """Perform a call, whose deadline is in ``left_s``."""
        assert self._thread is not None
        self._thread.submit(replace(call, deadline_s=time.monotonic() + left_s))

    def news(self, timeout_s: float) -> tuple[EngineEvent, ...]:
        """Return the next events; none after ``timeout_s``."""
        try:
            events = [self._events.get(timeout=timeout_s)]
        except queue.Empty:
            return ()
        while not self._events.empty():
            events.append(self._events.get())
        return tuple(events)

    def end(self) -> None:
        """End the runner; the actor keeps the die, so that nobody else gets it."""
        if self._thread:
            self._thread.end()

    def join(self, timeout_s: float) -> None:
        """End the runner, and wait for that."""
        self.end()
        if self._thread:
            self._thread.join(timeout_s)

    def _die(self, dies: int, cores_each: int) -> Die:
        """Return this actor's die among the ``dies`` of its host: the one that Ray assigned, or one by its slot."""
        if self._kind in VISIBLE:
            assigned = ray.get_runtime_context().get_accelerator_ids()
            if numbers := [number for of_kind in assigned.values() for number in of_kind]:
                return Die(self._kind, int(numbers[0]), cores_by_die(dies)[self._slot])
        return dies_here(self._kind, dies, cores_each)[self._slot]
