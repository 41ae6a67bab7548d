"""Runners: they run a plan and report its outcome, in a worker process or in a program that the user's script starts.

Which plan comes next is decided in ``tuning``.
"""

from collections.abc import Mapping

from sktune.backends import backend_info
from sktune.backends.info import attribute_at
from sktune.worker.jobs import Runner, RunnerFactory, RunnerSetup

RUNNERS: Mapping[str, str] = {
    "worker": "sktune.worker.runner:WorkerRunner",
    "program": "sktune.recipes.runner:ProgramRunner",
}
"""Import path of each runner's factory, by the name that a target's spec gives; imported on first use."""


def make_runner(setup: RunnerSetup) -> Runner:
    """Return the runner for a target; a backend may have its own for models that sktune builds."""
    address = RUNNERS[setup.spec.runner]
    if setup.spec.runner == "worker":
        address = backend_info(setup.spec.backend).runner or address
    make: RunnerFactory = attribute_at(address)
    return make(setup)
