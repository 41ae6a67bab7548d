"""What a second worker on another core does to a trial's figure.

    python -m benchmarks.beside [--model llama] [--point "whole step, C++ wrapper"] [--blocks 40] --out FILE.md

A plan and the baseline are timed on one core, as in a trial, while a search on another core is suspended (A) or goes
on (B), in blocks of ABBA or BAAB by a coin toss, so that what the machine does meanwhile cancels out. The final
comparison needs no such table: one worker at a time makes it. Run it on an otherwise idle machine with two cores.
"""

import argparse
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
import numpy.typing as npt

from benchmarks.measurement import opened
from sktune.backends.inductor.info import RETAINED_MEMORY
from sktune.backends.this_machine import device_name, package_version
from sktune.core.outcome import Speedup
from sktune.measure import latency
from sktune.measure.devices import Cpu
from sktune.measure.latency import Budget
from sktune.measure.verdict import students_t
from sktune.worker.process_tree import descendants
from sktune.worker.step_timer import quiet_collector

WINDOW = Budget(seconds=3.0, wait_s=0.0, halfwidth=0.0)
SEARCH = "import sys, sktune; sktune.search(sys.argv[1], trials=1000, runs=sys.argv[2])"
IDLE = 3
"""Index of the idle time in a line of /proc/stat."""
STARTS_S = 20.0
"""After this the search has opened the model, and makes trials."""


@dataclass(frozen=True)
class Window:
    """A plan's speedup, and the share of the time that the other core was busy."""

    speedup: Speedup
    busy: float


@dataclass(frozen=True)
class Block:
    """The windows of one block."""

    alone: Sequence[Window]
    beside: Sequence[Window]

    @property
    def difference(self) -> float:
        """Of the mean log ratio beside the search from that alone."""
        return _log_ratio(self.beside) - _log_ratio(self.alone)


def main() -> None:
    """Time all blocks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--point", default="whole step, C++ wrapper", help="starting point to time")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    variables = {**RETAINED_MEMORY, "OMP_NUM_THREADS": "1"}
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **variables})
    machine = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    here, there = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.sched_setaffinity(0, {here})
        window = window_of(arguments.model, arguments.point)
        with searching(arguments.model, there, Path(folder) / "runs") as neighbour:
            chance = random.Random(0)
            blocks = [block(window, neighbour, there, chance) for _ in range(arguments.blocks)]
    head = [
        f"# python -m benchmarks.beside {' '.join(sys.argv[1:])}",
        "",
        f"{time.strftime('%Y-%m-%d')}; {machine}",
        "",
    ]
    text = "\n".join([*head, *table(blocks), ""])
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def window_of(model: str, point: str) -> Callable[[], Speedup]:
    """Return what times the plan of a starting point in one window."""
    bench = opened(model, WINDOW)
    plan = next(bench.space.plan(each.values) for each in bench.space.starting_points if each.name == point)
    steps = [bench.contender(bench.baseline), bench.contender(bench.backend.compile(plan))]
    rng = np.random.default_rng(0)

    def window() -> Speedup:
        with quiet_collector():
            return latency.compare(latency.measure(steps, WINDOW, rng, Cpu()).counted, 1)

    window()  # the first steps are slow
    return window


@contextmanager
def searching(model: str, core: int, runs: Path) -> Iterator[int]:
    """Search on one core; yields the process ID."""
    search = subprocess.Popen(
        [sys.executable, "-c", SEARCH, model, str(runs)],
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(STARTS_S)
        yield search.pid
        if search.poll() is not None:
            raise SystemExit("the search ended before the last block; what was timed beside it is nothing")
    finally:
        send(signal.SIGCONT, search.pid)
        search.terminate()
        search.wait()


def block(window: Callable[[], Speedup], neighbour: int, core: int, chance: random.Random) -> Block:
    """Time one block of four windows, while the process ``neighbour`` on ``core`` is suspended or goes on."""
    found: dict[signal.Signals, list[Window]] = {signal.SIGSTOP: [], signal.SIGCONT: []}
    first, second = chance.sample(sorted(found), 2)
    for number in (first, second, second, first):
        send(number, neighbour)
        before = ticks(core)
        speedup = window()
        spent = ticks(core) - before
        found[number].append(Window(speedup, float(1 - spent[IDLE] / max(1, spent.sum()))))
    return Block(found[signal.SIGSTOP], found[signal.SIGCONT])


def ticks(core: int) -> npt.NDArray[np.int64]:
    """Return what a core has done so far, in clock ticks by kind (/proc/stat, proc_stat(5))."""
    lines = Path("/proc/stat").read_text().splitlines()
    return np.array(next(line.split()[1:9] for line in lines if line.startswith(f"cpu{core} ")), dtype=np.int64)


def send(number: signal.Signals, pid: int) -> None:
    """Send a signal to a process and all below it."""
    for each in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(each, number)


def table(blocks: Sequence[Block]) -> Iterator[str]:
    """Return the lines of the table."""
    differences = [block.difference for block in blocks]
    halfwidth = students_t(len(blocks) - 1) * stdev(differences) / math.sqrt(len(blocks))
    low, high = (math.expm1(mean(differences) + side * halfwidth) for side in (-1, 1))
    yield "| search on the other core | that core is busy | baseline, ms (median of windows) | mean speedup |"
    yield "| --- | ---: | ---: | ---: |"
    for name, windows in {
        "suspended": [each for block in blocks for each in block.alone],
        "goes on": [each for block in blocks for each in block.beside],
    }.items():
        busy = mean(each.busy for each in windows)
        baseline_ms = median(each.speedup.baseline_ms for each in windows)
        yield f"| {name} | {busy:.0%} | {baseline_ms:.3f} | {math.exp(_log_ratio(windows)):.4f} |"
    yield ""
    yield (
        f"Beside the search the speedup changes by {math.expm1(mean(differences)):+.2%} (95% interval {low:+.2%} to "
        f"{high:+.2%}, {len(blocks)} blocks of four windows of {WINDOW.seconds:g} s)."
    )


def _log_ratio(windows: Sequence[Window]) -> float:
    return mean(math.log(window.speedup.ratio) for window in windows)


if __name__ == "__main__":
    main()
