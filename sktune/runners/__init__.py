"""Runners: they run a plan and report its outcome, in a worker process or in a program that the user's script starts.

Which plan comes next is decided in ``tuning``.
"""

import importlib
from collections.abc import Mapping

from sktune.runners.base import Runner, RunnerFactory, RunnerSetup

RUNNERS: Mapping[str, str] = {
    "worker": "sktune.runners.worker.client:WorkerRunner",
    "program": "sktune.runners.program.runner:ProgramRunner",
}
"""Import path of each runner's factory, by the name that a target's spec gives; imported on first use."""


def make_runner(setup: RunnerSetup) -> Runner:
    """Return the runner for a target."""
    module, _, factory = RUNNERS[setup.spec.runner].partition(":")
    make: RunnerFactory = getattr(importlib.import_module(module), factory)
    return make(setup)
