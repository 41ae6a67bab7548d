"""Figures of a search by two workers, each on a core of its own, beside those of one worker on one core.

    python -m benchmarks.two_workers [--model llama] [--trials 6] [--processes 25] --runs FOLDER --out FILE.md

A shared machine changes its speed from one second to the next and a plan's ratio with it, so two searches that are
made one after the other differ, however they are made. Here three searches, by one worker, by two, and by one again,
make their final comparisons at the same time: in turns of a second, in which the two others are suspended, and none
starts its next process before all have compared in theirs. What is left is the difference that a second worker makes,
beside that between two searches by one. (``benchmarks.beside`` does the same for trials.)

Run it on an otherwise idle machine with at least two cores. The studies are kept in FOLDER.
"""

import argparse
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Self

from benchmarks.beside import send
from sktune.backends.this_machine import device_name, package_version
from sktune.core.outcome import BASELINE_REPEAT, Speedup
from sktune.measure import samples
from sktune.measure.noise_floor import noise_floor
from sktune.measure.verdict import students_t
from sktune.reports.study import verdict_line
from sktune.study.result import SearchResult, stored_result

WORKERS = {"one worker": 1, "two workers": 2, "one worker again": 1}
SEARCH = """
import sys
from pathlib import Path
import sktune
from sktune.backends import info
from sktune.tuning import dies

model, trials, workers, processes, runs = sys.argv[1:]
info.FINAL_PROCESSES = int(processes)
dies.LOCKS = Path(runs)  # while the others are suspended, they hold the same cores
sktune.search(model, trials=int(trials), workers=int(workers), runs=runs)
"""
TURN_S = 1.0
USUAL_PROCESSES = 3
"""Of a final comparison: the noise floor is that of so many, as the largest of many copies would be larger."""
POLL_S = 0.02


class Search:
    """A search in a process, suspended except in its turns.

    Args:
        name: one of ``WORKERS``.
        model, trials, processes: of the search.
        runs: an empty folder.
    """

    def __init__(self, name: str, model: str, trials: int, processes: int, runs: Path) -> None:
        self.name, self._runs = name, runs
        cores = sorted(os.sched_getaffinity(0))[: WORKERS[name]]
        words = [model, str(trials), str(WORKERS[name]), str(processes), str(runs)]
        with (runs / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SEARCH, *words],
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        send(signal.SIGCONT, self._process.pid)
        self._process.terminate()
        self._process.wait()

    def has_compared(self, process: int) -> bool:
        """Return whether it has made its final comparison in process number ``process``."""
        return bool(list(self._runs.glob(f"*/{samples.FOLDER}/final-{process}.npz")))

    def turn(self, process: int, seconds: float) -> None:
        """Let it go on for ``seconds``, or until it has compared in process number ``process``."""
        until_s = time.monotonic() + seconds
        send(signal.SIGCONT, self._process.pid)
        while time.monotonic() < until_s and not self.has_compared(process):
            if self._process.poll() is not None:
                raise SystemExit(f"{self.name} ended early: {(self._runs / 'log.txt').read_text()[-500:]}")
            time.sleep(POLL_S)
        send(signal.SIGSTOP, self._process.pid)

    def result(self) -> SearchResult:
        """Let the search end, and return its result."""
        send(signal.SIGCONT, self._process.pid)
        if self._process.wait():
            raise SystemExit(f"{self.name} failed: {(self._runs / 'log.txt').read_text()[-500:]}")
        (database,) = self._runs.glob("*/study.db")
        return stored_result(database.parent.name, self._runs)


@dataclass(frozen=True)
class Difference:
    """How much larger the winner's figure is in one search than in another, as a share.

    Attributes:
        reported: of the figures that the searches report.
        paired: the mean over processes that had their turns together; without the first, which had none.
        low, high: 95% interval of ``paired`` (Student's t).
    """

    reported: float
    paired: float
    low: float
    high: float


def main() -> None:
    """Search, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--processes", type=int, default=25)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    chance = random.Random(0)
    with ExitStack() as stack:
        searches = []
        for number, name in enumerate(WORKERS):
            runs = arguments.runs / str(number)
            runs.mkdir(parents=True)
            searches.append(
                stack.enter_context(Search(name, arguments.model, arguments.trials, arguments.processes, runs))
            )
            searches[-1].turn(1, math.inf)
        for process in range(2, arguments.processes + 1):
            while waiting := [search for search in searches if not search.has_compared(process)]:
                for search in chance.sample(waiting, len(waiting)):
                    search.turn(process, TURN_S)
        results = [search.result() for search in searches]
        lines = list(table(results))
    machine = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    head = [f"# python -m benchmarks.two_workers {' '.join(sys.argv[1:])}, {time.strftime('%Y-%m-%d')}", "", machine]
    text = "\n".join([*head, "", *lines, ""])
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def table(results: Sequence[SearchResult]) -> Iterator[str]:
    """Return the lines of the table."""
    named = list(zip(WORKERS, results, strict=True))
    plans = {result.best_plan for result in results}
    if len(plans) > 1:
        yield "The searches have different winners; compare their trials."
    else:
        yield "| searches | figure reported by the second | process by process (95% interval) | noise floor |"
        yield "| --- | ---: | ---: | ---: |"
        for (name, one), (other_name, other) in combinations(named, 2):
            found = difference(one, other)
            floors = " and ".join(f"{_noise_floor(result):.2%}" for result in (one, other))
            paired = f"{found.paired:+.2%} ({found.low:+.2%} to {found.high:+.2%})"
            yield f"| {name}, {other_name} | {found.reported:+.2%} | {paired} | {floors} |"
    for name, result in named:
        yield f"\n{name}: {verdict_line(result)}"


def difference(one: SearchResult, other: SearchResult) -> Difference:
    """Return the difference of the figures of two searches' common winner."""
    of_one, of_other = _speedups(one), _speedups(other)
    logs = [math.log(second.ratio / first.ratio) for first, second in zip(of_one, of_other, strict=True)][1:]
    halfwidth = students_t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    paired, low, high = (math.expm1(mean(logs) + side * halfwidth) for side in (0, -1, 1))
    return Difference((other.speedup or 1.0) / (one.speedup or 1.0) - 1, paired, low, high)


def _speedups(result: SearchResult) -> Sequence[Speedup]:
    assert result.comparison is not None
    assert result.winner is not None
    return result.comparison.speedups[str(result.winner.number)]


def _noise_floor(result: SearchResult) -> float:
    assert result.comparison is not None
    return noise_floor(result.comparison.speedups[BASELINE_REPEAT][:USUAL_PROCESSES])


if __name__ == "__main__":
    main()
