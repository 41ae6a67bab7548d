"""What runs a plan and reports its outcome: a worker process, or a program that the user's script starts.

Which plan comes next is decided in ``tuning``.
"""

import importlib
from collections.abc import Mapping

from sktune.runners.base import Runner, RunnerFactory, RunnerSetup

RUNNERS: Mapping[str, str] = {
    "worker": "sktune.runners.worker.client:WorkerRunner",
    "program": "sktune.runners.program.runner:ProgramRunner",
}
"""Where the factory of each runner is, by the name that a target's spec gives; imported when it is needed."""


def make_runner(setup: RunnerSetup) -> Runner:
    """Return the runner of a target."""
    module, _, factory = RUNNERS[setup.spec.runner].partition(":")
    make: RunnerFactory = getattr(importlib.import_module(module), factory)
    return make(setup)
