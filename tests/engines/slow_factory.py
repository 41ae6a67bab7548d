"""A factory of runners whose trials take time, for engines that start them in other processes."""

import os
import time
from pathlib import Path

from sktune.core.outcome import Outcome
from sktune.runners.base import JudgeRequest, Report, RunnerSetup
from tests.engines.fault_campaign import LAYOUT, truth
from tests.fake_runner import FakeRunner

JUDGE_S = float(os.environ.get("SKTUNE_TESTS_JUDGE_S", "0.25"))


class SleepingRunner(FakeRunner):
    """Sleeps while it judges; a plan that truly crashes does not take its process with it."""

    def judge(self, request: JudgeRequest, report: Report, /) -> Outcome:
        """Judge a plan after a while."""
        report("compile")
        time.sleep(JUDGE_S)
        return super().judge(request, lambda stage: None)


def sleeping(setup: RunnerSetup) -> SleepingRunner:
    """Return a runner."""
    folder = Path(setup.folder) / "runners"
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    return SleepingRunner(fault=truth, layout=LAYOUT)
