"""``python -m tests.command``: the command ``sktune``, started warm, with workers that measure briefly."""

import os
import sys

if __name__ == "__main__":
    from tests.warm import delegate

    delegate("tests.command", lingers=True)

import sktune.cli
from sktune.agents import jobs, mcp_server
from sktune.backends import info
from sktune.worker import runner
from tests import empty_studies

COMMAND = (sys.executable, "-P", "-m", "tests.command")


def main() -> None:
    """Run the command."""
    runner.SERVER = "tests.quick_server"
    empty_studies.install()
    info.FINAL_PROCESSES = int(os.environ.get("SKTUNE_TESTS_FINAL_PROCESSES", "1"))
    for module in (jobs, mcp_server):
        vars(module)["COMMAND"] = COMMAND
    sktune.cli.main()


if __name__ == "__main__":
    main()
