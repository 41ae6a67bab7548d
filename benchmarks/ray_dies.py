"""How many trials a second one search hands out on a real Ray cluster: ``python -m benchmarks.ray_dies --dies 1000``.

The dies are logical: one process of Ray holds many of them, each the actor of ``sktune.cluster.die_actor`` with its
thread, as a thousand processes do not fit on a small host. Their runners sleep instead of measuring. The engine, the
coordinator with its leases and the study (SQLite) are those of a search; proposals are random, which costs little.
"""

import argparse
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import ray

from benchmarks import fault_campaign
from sktune.cluster.die_actor import DieActor
from sktune.cluster.host_group import WorkerPlace
from sktune.cluster.hosts import THREADS, on_host
from sktune.cluster.ray_engine import RayEngine, _Actor
from sktune.core.events.base import Event
from sktune.core.outcome import Outcome
from sktune.tuning.dies import kind_of
from sktune.tuning.loop import run
from sktune.worker.jobs import EngineEvent, Judge, Report, RunnerSetup, Worker
from tests.builders import decoder_layout
from tests.cluster.local_cluster import local_cluster
from tests.fake_runner import FakeRunner

DIES_PER_PROCESS = 50
JUDGE_S = 20.0
LAYOUT = decoder_layout(tuple("abcdef"), ("self_attn", "norm", "mlp"), outside=False)
"""Six kinds of layers, so that there are plans enough."""


class SleepingRunner(FakeRunner):
    """Sleeps while it judges."""

    def judge(self, request: Judge, report: Report, /) -> Outcome:
        """Judge a plan after a while."""
        time.sleep(JUDGE_S)
        return super().judge(request, report)


def sleeping(setup: RunnerSetup) -> SleepingRunner:
    """Return a runner."""
    return SleepingRunner(latency_ms=lambda plan: 10.0 - 0.1 * len(plan.scopes), layout=LAYOUT, setup=setup)


class Box:
    """Many ``DieActor`` in one process."""

    def __init__(self) -> None:
        self._dies: dict[int, DieActor] = {}

    def start(self, place: WorkerPlace, setup: RunnerSetup) -> Worker:
        """Start a die's worker."""
        slot = place.number
        self._dies[slot] = DieActor(kind_of(setup.spec), slot, os.environ.get(THREADS), Path.cwd())
        return self._dies[slot].start(place, (), str(slot), setup, sleeping)

    def call(self, slot: int, method: str, *arguments: Any) -> tuple[EngineEvent, ...] | None:
        """Call a method of a die."""
        found: Callable[..., tuple[EngineEvent, ...] | None] = getattr(self._dies[slot], method)
        return found(*arguments)


class _Method:
    def __init__(self, box: Any, slot: int, name: str) -> None:
        self._box, self._slot, self._name = box, slot, name

    def remote(self, *arguments: Any) -> Any:
        return self._box.call.remote(self._slot, self._name, *arguments)


class _Handle:
    def __init__(self, box: Any, slot: int) -> None:
        self._box, self._slot = box, slot

    def __getattr__(self, name: str) -> _Method:
        return _Method(self._box, self._slot, name)


class BoxedRayEngine(RayEngine):
    """A ``RayEngine`` whose dies share processes."""

    _boxes: dict[int, Any]

    def _started(self, place: WorkerPlace) -> _Actor:
        self._boxes = getattr(self, "_boxes", {})
        number = place.number // DIES_PER_PROCESS
        if number not in self._boxes:
            box: Any = ray.remote(Box)
            options = {"num_cpus": 0, "max_concurrency": 3 * DIES_PER_PROCESS}
            self._boxes[number] = box.options(**options, scheduling_strategy=on_host(place.hosts[0])).remote()
        box = self._boxes[number]
        return _Actor(_Handle(box, place.number), place, box.start.remote(place, self._setup))

    def __exit__(self, *_: object) -> None:
        for box in self._boxes.values():
            ray.kill(box)


def main() -> None:
    """Search, and print a row of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dies", type=int, default=1000, metavar="N")
    parser.add_argument("--trials", type=int, default=3000, metavar="N")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    joined_s, leased_s, ended_s = list[float](), list[float](), list[float]()

    def listen(event: Event) -> None:
        times = {"worker_joined": joined_s, "trial_leased": leased_s, "trial_finished": ended_s}
        if event.event in times:
            times[event.event].append(time.perf_counter())

    began_s = time.perf_counter()
    with TemporaryDirectory() as folder, local_cluster(1, arguments.dies) as cluster:
        request = fault_campaign.prepared(Path(folder), arguments.trials)
        request = replace(request, engine="ray", address=cluster.address)
        with patch("sktune.cluster.ray_site.RayEngine", BoxedRayEngine):
            run(request, listen, runner_factory=sleeping)
    spent_s = leased_s[-1] - leased_s[0]
    print(
        f"| {arguments.dies} | {joined_s[-1] - began_s:.0f} s | {len(joined_s)} | {arguments.trials} | {len(ended_s)} "
        f"| {spent_s:.0f} s | {len(leased_s) / spent_s:.1f} |"
    )


if __name__ == "__main__":
    main()
