"""A worker that starts warm and measures for a fraction of a search's time: no test is about its figures."""

import sys

if __name__ == "__main__":
    from tests.warm import delegate

    delegate("tests.quick_server", [int(file) for file in sys.argv[1:3]])

import gc

gc.disable()  # as a worker does while it imports

import time
from dataclasses import replace
from functools import partial

from sktune.measure.latency import Budget
from sktune.targets import tracing
from sktune.worker import evaluator, server, step_timer, verifier  # noqa: F401 - imported warm

evaluator.SHORTLIST_BUDGET = replace(evaluator.SHORTLIST_BUDGET, seconds=1.0, wait_s=0.2)
evaluator.FINAL_BUDGET = replace(evaluator.FINAL_BUDGET, seconds=1.5, wait_s=0.5)
evaluator.FLOOR_BUDGET = replace(evaluator.FLOOR_BUDGET, seconds=0.4, wait_s=0.2)
tracing.TIMED_STEPS = 2


def main() -> None:
    """Serve the client."""
    vars(evaluator)["Budget"] = partial(Budget, seconds=0.6, wait_s=0.2)
    server.STARTED_S = time.perf_counter()
    server.main()


if __name__ == "__main__":
    main()
