"""Searches on machines that fail: ``python -m benchmarks.faults [RUNS]``.

Each run is a search of 40 trials on five dies in virtual time, with the real coordinator and a random schedule of
faults; see ``tests/engines/fault_campaign.py``. The exit code is 1 if a trial is not told exactly once, a plan is
blamed for a machine, a lease is left, or another plan than the fastest wins.
"""

import logging
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engines import fault_campaign

DIES = 5


def main(runs: int) -> int:
    """Run the campaign, print a table of the faults, and return the exit code."""
    logging.disable(logging.WARNING)
    kinds, failed, coordinators, began = Counter[str](), Counter[str](), 0, time.perf_counter()
    for seed in range(runs):
        faults = fault_campaign.schedule(seed, DIES)
        with TemporaryDirectory() as folder:
            campaign = fault_campaign.search(Path(folder), faults, dies=DIES, seed=seed)
        coordinators += campaign.coordinators
        problems = fault_campaign.problems(campaign)
        for kind in {fault.kind for fault in faults}:
            kinds[kind] += 1
            failed[kind] += bool(problems)
        if problems:
            print(f"seed {seed}: {'; '.join(problems)}\n  {faults}")
    print("| fault | searches with it | of these wrong |\n| --- | --- | --- |")
    for kind, count in sorted(kinds.items()):
        print(f"| {kind} | {count} | {failed[kind]} |")
    print(f"\n{runs} searches, {coordinators} coordinators, {time.perf_counter() - began:.0f} s")
    return int(any(failed.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
