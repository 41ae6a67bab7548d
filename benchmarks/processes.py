"""How far fresh processes disagree about the same plans, with and without keeping the memory that steps free.

    python -m benchmarks.processes [--model deepseek-v3] [--processes 16] [--jobs 2] --out FILE.md

Each process measures the model's starting points interleaved with the baseline, like a process of the final comparison.
All sets of three then show how wide the interval of three processes is, and how often it contains the mean of all.
Prints a table and writes it with the machine's description. Run it on an idle machine.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt
from multiprocessing import Queue
from pathlib import Path
from statistics import correlation, mean, median, stdev
from unittest.mock import patch

from sktune.backends.inductor import info
from sktune.backends.info import FINAL_PROCESSES
from sktune.backends.this_machine import device_name, package_version
from sktune.core.outcome import Speedup
from sktune.core.plan import Plan
from sktune.measure.verdict import students_t
from sktune.tuning.request import Request, bind_space, space_spec
from sktune.worker.jobs import Compare, RunnerSetup
from sktune.worker.runner import WorkerRunner

SETTINGS: dict[str, dict[str, str]] = {"kept": info.RETAINED_MEMORY, "as glibc adapts itself": {}}
TOGETHER = FINAL_PROCESSES
"""Number of processes of a final comparison."""
FEW_FAULTS = 10_000
"""Steps that keep their memory fault in some hundred pages once; steps that do not, hundreds of thousands."""


@dataclass(frozen=True)
class ProcessResult:
    """The measurements of one process.

    Attributes:
        page_faults: number of page faults of the process while steps were timed.
        speedups: of each plan, by its starting point's name.
    """

    page_faults: int
    speedups: Mapping[str, Speedup]


def main() -> None:
    """Measure with both settings, alternating, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deepseek-v3")
    parser.add_argument("--processes", type=int, default=16, help="with each setting")
    parser.add_argument("--jobs", type=int, default=2, help="at a time, each on its own core")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[: arguments.jobs]:
        cores.put(core)
    work = [(name, number) for number in range(arguments.processes) for name in SETTINGS]
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(arguments.jobs, initializer=_stay, initargs=(cores,)) as pool,
    ):
        plans = starting_plans(arguments.model, Path(folder))
        jobs = [
            pool.submit(measured, arguments.model, plans, name, Path(folder) / str(number)) for name, number in work
        ]
        found = [(name, job.result()) for (name, _), job in zip(work, jobs, strict=True)]
    made_with = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    lines = [
        f"# python -m benchmarks.processes {' '.join(sys.argv[1:])}",
        "",
        f"{time.strftime('%Y-%m-%d')}; {made_with}",
        "",
    ]
    text = "\n".join(
        [*lines, *table({name: [result for setting, result in found if setting == name] for name in SETTINGS}), ""]
    )
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def _stay(cores: "Queue[int]") -> None:
    """Pin this process, and the workers that it starts, to one core."""
    os.sched_setaffinity(0, {cores.get()})


def starting_plans(model: str, folder: Path) -> list[tuple[str, Plan]]:
    """Return the starting points of ``model`` that keep every bit, with their plans."""
    request = Request(model)
    spec, preset = request.target()
    with _runner(request, folder / "first") as runner:
        space = bind_space(space_spec(request, spec, preset), runner.open().layout, spec)
        plans = {point.name: space.plan(point.values) for point in space.starting_points}
        rows = runner.run(Compare(list(plans.items())), lambda stage: None).rows
    return [(row.name, plans[row.name]) for row in rows if row.name in plans and row.bit_identical]


def measured(model: str, plans: Sequence[tuple[str, Plan]], setting: str, folder: Path) -> ProcessResult:
    """Measure ``plans`` in one fresh process."""
    before: list[int] = []

    def report(stage: str) -> None:
        if stage == "measure":
            before.append(_page_faults())

    with (
        patch.object(info, "RETAINED_MEMORY", SETTINGS[setting]),
        _runner(Request(model), folder) as runner,
    ):
        rows = runner.run(Compare(plans), report).rows
        faults = _page_faults() - before[-1]
    names = [name for name, _ in plans]
    return ProcessResult(faults, {row.name: row.speedup for row in rows if row.speedup and row.name in names})


def table(found: Mapping[str, Sequence[ProcessResult]]) -> Iterator[str]:
    """Return the lines of a table with a row for each plan and setting."""
    for setting, processes in found.items():
        faulting = sum(process.page_faults > FEW_FAULTS for process in processes)
        yield f"Memory {setting}: in {faulting} of {len(processes)} processes each step takes its memory again.  "
    yield f"An interval is Student's over {TOGETHER} processes; all sets of {TOGETHER} are taken."
    yield "The correlation is that of the log ratio with the baseline's latency."
    yield ""
    yield (
        "| plan | memory | mean speedup | least | most | interval, median | intervals that hold the mean "
        "| baseline, ms | saved, ms | correlation |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for plan in next(iter(found.values()))[0].speedups:
        for setting, processes in found.items():
            yield f"| {plan} | {setting} | {_spread([process.speedups[plan] for process in processes])} |"


def _spread(speedups: Sequence[Speedup]) -> str:
    logs = [log(speedup.ratio) for speedup in speedups]
    # Without the prior of ``sktune.measure.verdict``, which is fitted to this table.
    student = students_t(TOGETHER - 1) / sqrt(TOGETHER)
    intervals = [(mean(some), student * stdev(some)) for some in combinations(logs, TOGETHER)]
    half = median(halfwidth for _, halfwidth in intervals)
    held = mean(abs(centre - mean(logs)) <= halfwidth for centre, halfwidth in intervals)
    baselines = [speedup.baseline_ms for speedup in speedups]
    saved = [speedup.baseline_ms - speedup.latency_ms for speedup in speedups]
    return " | ".join(
        [
            *(f"{exp(value):.3f}" for value in (mean(logs), min(logs), max(logs))),
            f"±{half:.1%}",
            f"{held:.0%}",
            *(f"{min(times):.3f} to {max(times):.3f}" for times in (baselines, saved)),
            f"{correlation(baselines, logs):.2f}",
        ]
    )


def _runner(request: Request, folder: Path) -> WorkerRunner:
    spec, preset = request.target()
    return WorkerRunner(RunnerSetup(spec, space_spec(request, spec, preset), folder, folder.parent / "cache"))


def _page_faults() -> int:
    """Return the number of minor page faults of this process's worker (minflt of proc_pid_stat(5))."""
    (worker,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[7])


if __name__ == "__main__":
    main()
