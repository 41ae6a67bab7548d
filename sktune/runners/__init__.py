"""What runs a plan and reports its outcome: a worker process, or a program that the user's script starts.

Which plan comes next is decided in ``tuning``.
"""

from collections.abc import Mapping

from sktune.backends import backend_info
from sktune.backends.info import attribute_at
from sktune.runners.base import Runner, RunnerFactory, RunnerSetup

RUNNERS: Mapping[str, str] = {
    "worker": "sktune.runners.worker.client:WorkerRunner",
    "program": "sktune.runners.program.runner:ProgramRunner",
}
"""Where the factory of each runner is, by the name that a target's spec gives; imported when it is needed."""


def make_runner(setup: RunnerSetup) -> Runner:
    """Return the runner of a target: its backend's where that has one for the models that sktune builds."""
    address = RUNNERS[setup.spec.runner]
    if setup.spec.runner == "worker":
        address = backend_info(setup.spec.backend).runner or address
    make: RunnerFactory = attribute_at(address)
    return make(setup)
