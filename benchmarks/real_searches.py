"""Real searches with different seeds, compared with the best plan of a recorded landscape.

    python benchmarks/real_searches.py --seeds 1-10 --jobs 2 --runs FOLDER

Each search is a ``sktune search`` on its own core and in its own folder below ``--runs``; a finished one is not run
again. The result is the share of the recorded optimum's gain that the winner reaches in the search's final
comparison. It may be above 1: a landscape's space is only part of the preset's, and the machine's speed varies.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script can only import modules beside it

from benchmarks.landscape import gain
from benchmarks.landscapes.recorded import RECORDED
from benchmarks.search import TARGET
from sktune.backends.this_machine import device_name, package_version


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of one search: the last line that it printed."""

    seed: int
    line: dict[str, Any]

    @property
    def speedup(self) -> float:
        """The winner's; 1 without one."""
        speedup: float = self.line["speedup"]
        return speedup


def main() -> None:
    """Run missing searches, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", default="deepseek-v3-bfloat16", choices=RECORDED)
    parser.add_argument("--model", default="deepseek-v3")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", default="1-10", metavar="A-B")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time, each on its own core")
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[: arguments.jobs]:
        cores.put(core)

    def searched(seed: int) -> SearchOutcome:
        core = cores.get()
        try:
            return search(arguments.model, arguments.trials, seed, arguments.runs / f"seed-{seed}", core)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        found = list(pool.map(searched, range(int(first), int(last or first) + 1)))
    print(table(found, arguments.landscape))


def search(model: str, trials: int, seed: int, runs: Path, core: int) -> SearchOutcome:
    """Run one search on ``core`` to its end, and return its result."""
    options = ["--model", model, "--trials", str(trials), "--seed", str(seed), "--runs", str(runs), "--json"]
    command = ["taskset", "-c", str(core), sys.executable, "-m", "sktune.cli", "search", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return SearchOutcome(seed, json.loads(done.stdout.splitlines()[-1]))


def table(found: list[SearchOutcome], landscape_name: str) -> str:
    """Return a page with a row for each search."""
    landscape = RECORDED[landscape_name](0)
    best = landscape.baseline_ms / landscape.best_ms
    held = [gain(landscape, landscape.baseline_ms / each.speedup) for each in found]
    rows = [
        f"| {each.seed} | {_ci(each)} | {share:.3f} | {sum(each.line['pruned'].values())} |"
        for each, share in zip(found, held, strict=True)
    ]
    versions = f"sktune {package_version('sktune')}, torch {package_version('torch')}"
    good = sum(share >= TARGET for share in held)
    lines = [
        f"# python benchmarks/real_searches.py {shlex.join(sys.argv[1:])}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}; {device_name('cpu')}; {versions}",
        "",
        f"{landscape_name}: the recorded optimum is {best:.3f} times as fast as its baseline.",
        f"{good} of {len(found)} searches hold {TARGET} of its gain.",
        "",
        "| seed | winner's speedup (95% interval) | gain held | pruned |",
        "| ---: | --- | ---: | ---: |",
        *rows,
    ]
    return "\n".join(lines)


def _ci(outcome: SearchOutcome) -> str:
    low, high = outcome.line["ci95"] or (1.0, 1.0)
    return f"{outcome.speedup:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
