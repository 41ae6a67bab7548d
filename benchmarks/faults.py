"""Searches on machines that fail: ``python -m benchmarks.faults [RUNS]``, or ``--ray [RUNS]`` on a real cluster.

Each run is a search of 40 trials on five dies in virtual time, with the real coordinator and a random schedule of
faults; see ``benchmarks/fault_campaign.py``. The exit code is 1 if a trial is not told exactly once, a plan is
blamed for a machine, a lease is left, or another plan than the fastest wins.

With ``--ray`` a cluster of four nodes on this host, with a die each, runs searches of 40 trials that sleep half a
second: on one die, on four, on four with plans that fail, of which each is confirmed on a second die, and on four of
which nodes are killed as well. The table has the wall time of the trials.
"""

import itertools
import logging
import os
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import fault_campaign
from benchmarks.slow_factory import sleeping, sound
from sktune.core.events.base import Event
from sktune.tuning.loop import run
from sktune.worker.jobs import RunnerFactory

DIES = 5
DIES_ON_RAY, TRIALS_ON_RAY = 4, 40


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


def on_ray(runs: int) -> int:
    """Search on a real cluster, print a table of wall times, and return the exit code."""
    from tests.cluster.local_cluster import add_host, local_cluster

    logging.disable(logging.WARNING)
    is_wrong = False
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    print("| dies | plans fail | nodes killed | trials | requeued | seconds |\n| --- | --- | --- | --- | --- | --- |")
    with local_cluster(DIES_ON_RAY) as cluster:
        on_four = ((DIES_ON_RAY, 0, sound), (DIES_ON_RAY, 0, sleeping), (DIES_ON_RAY, 2, sleeping))
        searches = ((1, 0, sound), *on_four)
        for seed, (dies, kills, factory) in itertools.product(range(runs), searches):
            is_wrong |= _search_on_ray(cluster, seed, dies, kills, factory)
            for _ in range(DIES_ON_RAY + 1 - len(cluster.list_all_nodes())):
                add_host(cluster)
    return int(is_wrong)


def _search_on_ray(cluster: Any, seed: int, dies: int, kills: int, factory: RunnerFactory) -> bool:
    """Print the row of a search, and return whether a trial was not told once or was blamed for a machine."""
    rng = random.Random(seed)
    strikes = set(rng.sample(range(5, TRIALS_ON_RAY - 5), kills))
    times: list[float] = []
    told: list[int] = []
    requeued = 0

    def listen(event: Event) -> None:
        nonlocal requeued
        if event.event in ("trial_leased", "trial_finished"):
            times.append(time.monotonic())
        requeued += event.event == "trial_requeued"
        if event.event == "trial_finished":
            told.append(event.to_dict()["trial"])
            if len(told) in strikes:
                node = rng.choice([node for node in cluster.list_all_nodes() if not node.head])
                cluster.remove_node(node, allow_graceful=False)

    with TemporaryDirectory() as folder:
        request = fault_campaign.prepared(Path(folder), TRIALS_ON_RAY)
        request = replace(request, engine="ray", address=cluster.address, workers=dies)
        result = run(request, listen, runner_factory=factory)
    fails = "no" if factory is sound else "yes"
    print(f"| {dies} | {fails} | {kills} | {len(told)} | {requeued} | {times[-1] - times[0]:.1f} |", flush=True)
    blamed = any(record.outcome and "lost" in record.outcome.detail for record in result.trials)
    return blamed or sorted(told) != list(range(TRIALS_ON_RAY))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    sys.exit(on_ray(*numbers or [1]) if "--ray" in sys.argv else main(*numbers or [100]))
