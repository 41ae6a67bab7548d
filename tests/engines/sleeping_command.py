"""``python -m tests.engines.sleeping_command``: the command ``sktune`` on a host of any name, whose trials sleep."""

if __name__ == "__main__":
    from tests.warm import delegate

    delegate("tests.engines.sleeping_command")

import os
import socket
from functools import partial

import sktune.cli
from benchmarks import slow_factory
from sktune.study import heartbeat, storage
from sktune.tuning import loop
from sktune.tuning.loop import run

HOST = "SKTUNE_TESTS_HOST"


def main() -> None:
    """Run the command."""
    host = os.environ[HOST]
    vars(socket)["gethostname"] = lambda: host
    slow_factory.JUDGE_S = 0.2
    heartbeat.BEAT_S, heartbeat.SILENT_S, heartbeat.LOOK_S = 0.2, 4.0, 0.2
    storage.IDLE_S = 5.0
    vars(loop)["run"] = partial(run, runner_factory=slow_factory.sleeping)
    sktune.cli.main()


if __name__ == "__main__":
    main()
