"""Factories of runners whose trials take time, for engines that make them in other threads and processes."""

import os
import time
from pathlib import Path
from typing import Self, TypeVar

from benchmarks.fault_campaign import LAYOUT, truth
from sktune.core.files import write_text
from sktune.core.outcome import Outcome
from sktune.worker import runner
from sktune.worker.jobs import Job, Judge, Opened, Report, RunnerSetup, silent
from sktune.worker.runner import WorkerRunner
from tests.fake_runner import FakeRunner
from tests.warm import ADDRESS

JUDGE_S = 0.5

T = TypeVar("T")


def list_process(setup: RunnerSetup) -> None:
    """List this process, with its number of threads."""
    folder = Path(setup.folder) / "runners"
    folder.mkdir(exist_ok=True)
    write_text(folder / f"{os.getpid()}.threads", os.environ.get("OMP_NUM_THREADS", "not set"))


class SleepingRunner(FakeRunner):
    """Sleeps while it judges; its process is listed in the study's folder."""

    def __enter__(self) -> Self:
        assert self.setup is not None
        list_process(self.setup)
        return super().__enter__()

    def judge(self, request: Judge, report: Report, /) -> Outcome:
        """Judge a plan after a while."""
        report("compile")
        time.sleep(JUDGE_S)
        return super().judge(request, lambda stage: None)


class SleepingWorker(WorkerRunner):
    """A worker with a process of its own, which sleeps while it judges; the process is listed in the study's folder."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        self._list = Path(setup.folder) / "runners"

    def __enter__(self) -> Self:
        list_process(self._setup)
        return super().__enter__()

    def open(self) -> Opened:
        """Open the target."""
        opened = super().open()
        assert self._worker is not None
        numbers = f"{self._worker._tree.pid} {self._worker._tree.keeper_pid}"
        write_text(self._list / f"{os.getpid()}.worker", numbers)  # whole at any time: others kill what it names
        return opened

    def run(self, job: Job[T], report: Report = silent, /) -> T:
        """Do a job, and judge a plan after a while."""
        if isinstance(job, Judge):
            time.sleep(JUDGE_S)
        return super().run(job, report)


def sleeping(setup: RunnerSetup) -> SleepingRunner:
    """Return a runner without a process."""
    return SleepingRunner(fault=truth, layout=LAYOUT, setup=setup)


def sound(setup: RunnerSetup) -> SleepingRunner:
    """Return a runner without a process, with which no plan fails."""
    return SleepingRunner(layout=LAYOUT, setup=setup)


def with_process(setup: RunnerSetup) -> SleepingWorker:
    """Return a runner with a process, which starts warm where that is possible."""
    if ADDRESS in os.environ:
        runner.SERVER = "tests.quick_server"
    return SleepingWorker(setup)


def processes(folder: Path) -> list[int]:
    """Return the IDs of all processes that runners of a study have listed: their own, workers and keepers."""
    own = [int(file.stem) for file in (folder / "runners").glob("*.threads")]
    below = [int(number) for file in (folder / "runners").glob("*.worker") for number in file.read_text().split()]
    return own + below
