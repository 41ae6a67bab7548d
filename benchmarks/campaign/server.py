"""The worker of a search of the campaign: sktune's own, started warm."""

import sys

if __name__ == "__main__":
    from tests.warm import delegate

    delegate("benchmarks.campaign.server", [int(file) for file in sys.argv[1:3]])

import time

from benchmarks.campaign.scene import read_controls
from sktune.worker import server


def main() -> None:
    """Serve the client."""
    read_controls()
    server.STARTED_S = time.perf_counter()
    server.main()


if __name__ == "__main__":
    main()
