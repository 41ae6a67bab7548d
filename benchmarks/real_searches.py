"""Real searches with different seeds, held against the best plan of a recorded landscape.

    python benchmarks/real_searches.py --seeds 1-10 --jobs 2 --runs FOLDER

Each search is a ``sktune search`` on a core of its own, in a folder of its own below ``--runs``; one that has ended
there is read and not run again. What counts is the winner's figure in the search's final comparison, by the share of
the recorded optimum's gain that it holds. It may be above 1: a landscape's space is a part of the preset's, and the
machine is another from day to day.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script finds only what lies beside it

from benchmarks.landscape import gain
from benchmarks.landscapes.recorded import RECORDED
from benchmarks.search import TARGET
from sktune.backends.installed import device_name, package_version


@dataclass(frozen=True, slots=True)
class Found:
    """What one search came to: the last line that it printed."""

    seed: int
    line: dict[str, Any]

    @property
    def speedup(self) -> float:
        """The winner's; 1 where there is none."""
        speedup: float = self.line["speedup"]
        return speedup


def main() -> None:
    """Run what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", default="deepseek-v3-bfloat16", choices=RECORDED)
    parser.add_argument("--model", default="deepseek-v3")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", default="1-10", metavar="A-B")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time, each on a core of its own")
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[: arguments.jobs]:
        cores.put(core)

    def searched(seed: int) -> Found:
        core = cores.get()
        try:
            return search(arguments.model, arguments.trials, seed, arguments.runs / f"seed-{seed}", core)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        found = list(pool.map(searched, range(int(first), int(last or first) + 1)))
    print(table(found, arguments.landscape))


def search(model: str, trials: int, seed: int, runs: Path, core: int) -> Found:
    """Run one search on ``core`` to its end, and return what it came to."""
    options = ["--model", model, "--trials", str(trials), "--seed", str(seed), "--runs", str(runs), "--json"]
    command = ["taskset", "-c", str(core), sys.executable, "-m", "sktune.cli", "search", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Found(seed, json.loads(done.stdout.splitlines()[-1]))


def table(found: list[Found], landscape_name: str) -> str:
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


def _ci(found: Found) -> str:
    low, high = found.line["ci95"] or (1.0, 1.0)
    return f"{found.speedup:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
