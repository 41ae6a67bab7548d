"""A worker that measures for a fraction of a search's time: few tests are about its figures."""

import gc

gc.disable()  # as a worker does while it imports

from dataclasses import replace
from functools import partial

from sktune.measure.latency import Budget
from sktune.runners.worker import judge, server

vars(judge)["Budget"] = partial(Budget, seconds=0.6, wait_s=0.2)
judge.SHORTLIST_BUDGET = replace(judge.SHORTLIST_BUDGET, seconds=1.0, wait_s=0.2)
judge.FINAL_BUDGET = replace(judge.FINAL_BUDGET, seconds=1.5, wait_s=0.5)
judge.FLOOR_BUDGET = replace(judge.FLOOR_BUDGET, seconds=0.4, wait_s=0.2)

if __name__ == "__main__":
    server.main()
