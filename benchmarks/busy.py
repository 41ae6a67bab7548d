"""The same search alone and beside a process that keeps a core busy: time, winner, gain held, false claims.

    python -m benchmarks.busy [--searches sim,inductor] [--pairs 1] [--trials 6] [--out FILE.md]

Each search beside a load is paired with one alone, in alternating order, with empty caches. Loads are a process of the
lowest priority kept to one core, the same on any core, and one of normal priority kept to one core. Afterwards, without
any load:

* the winners of a pair are measured side by side, with the threads of the search alone: the gain that the winner of the
  search beside the load holds is its share of the other's gain (1 - 1 / speedup);
* the finalists of each search beside a load are measured again with its own threads, in as many fresh processes as a
  search has. A claim is false if the two 95% intervals of a plan do not overlap, or if the plan that won is slower than
  the baseline. The same is done for the search alone: what it shows is not caused by the load.

Takes about 20 minutes on two cores. Run it on an otherwise idle machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sktune.backends import backend_info
from sktune.backends.this_machine import device_name, package_version
from sktune.core.outcome import FinalRow, Speedup
from sktune.core.plan import Plan
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.machine import Machine, Placement
from sktune.study.result import SearchResult, stored_result
from sktune.tuning.request import Request, space_spec
from sktune.worker.jobs import Compare, RunnerSetup
from sktune.worker.runner import WorkerRunner

STUDY = "busy"
GOAL_TIME, GOAL_GAIN = 2.5, 0.95
VERIFY_STEPS = 512
COLUMNS = {
    "search": "---", "load": "---", "alone": "---:", "beside it": "---:", "ratio": "---:", "processor time": "---",
    "threads": "---", "winner alone": "---", "winner beside it": "---", "gain held": "---:",
    "false claims alone": "---:", "false claims beside it": "---:",
}  # fmt: skip
"""Headings of the table, and how their columns are aligned."""
SPINNER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the benchmark
os.nice(int(sys.argv[1]))
if sys.argv[2]:
    os.sched_setaffinity(0, {int(sys.argv[2])})
while True:
    pass
"""


@dataclass(frozen=True, slots=True)
class Load:
    """A process that never waits: its priority, and whether it is kept to one core."""

    name: str
    nice: int
    is_pinned: bool


LOADS = (
    Load("lowest priority, one core", 19, True),
    Load("lowest priority, any core", 19, False),
    Load("normal priority, one core", 0, True),
)


@dataclass(frozen=True, slots=True)
class Search:
    """A kind of search: its name, and the arguments of its command."""

    name: str
    model: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One search.

    Attributes:
        wall_s, processor_s: time that it took, and processor time of all its processes.
        result: its study.
        runs: folder of its study and caches.
    """

    wall_s: float
    processor_s: float
    result: SearchResult
    runs: Path

    @property
    def winner(self) -> Plan:
        """The plan that won; the empty plan if none did."""
        return self.result.best_plan

    @property
    def threads(self) -> str:
        """How many threads steps had."""
        made_with = self.result.facts.fingerprint
        return "-" if self.result.is_simulated else made_with.get("threads", "all")


def main() -> None:
    """Run the pairs, measure their winners again, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", default="sim,inductor")
    parser.add_argument("--pairs", type=int, default=1, help="of each search with each load")
    parser.add_argument("--trials", type=int, default=6, help="of a search on Inductor; simulated ones have 40")
    parser.add_argument("--model", default="llama", help="of the search on Inductor")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/busy-cpu-2-cores.md"))
    arguments = parser.parse_args()
    simulated = Search("simulated, 61 layers", "deepseek-v3", ("--scale", "full", "--backend", "sim", "--trials", "40"))
    name = f"Inductor, {arguments.model}, {arguments.trials} trials, verified on {VERIFY_STEPS} steps"
    options = ("--trials", str(arguments.trials), "--verify-steps", str(VERIFY_STEPS))
    real = Search(name, arguments.model, options)
    chosen = [{"sim": simulated, "inductor": real}[name] for name in arguments.searches.split(",")]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        work = [(search, load, pair) for search in chosen for pair in range(arguments.pairs) for load in LOADS]
        rows = [
            compared(search, load, Path(folder) / str(number), is_alone_first=number % 2 == 0)
            for number, (search, load, _) in enumerate(work)
        ]
    made_with = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    lines = [
        f"# python -m benchmarks.busy {' '.join(sys.argv[1:])}".rstrip(),
        "",
        f"{time.strftime('%Y-%m-%d')}; {made_with}; {time.perf_counter() - began:.0f} s in all.",
        f"Goals: at most {GOAL_TIME} times the time of the search alone, {GOAL_GAIN:.0%} of its gain, no false claim.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"| {' | '.join(COLUMNS.values())} |",
        *rows,
        "",
    ]
    text = "\n".join(lines)
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def compared(search: Search, load: Load, folder: Path, *, is_alone_first: bool) -> str:
    """Run a pair of searches, and return its row of the table."""
    runs: dict[bool, Run] = {}
    for is_busy in (False, True) if is_alone_first else (True, False):
        with running(load) if is_busy else running(None):
            runs[is_busy] = searched(search, folder / ("busy" if is_busy else "alone"))
    alone, busy = runs[False], runs[True]
    cells = [
        search.name,
        load.name,
        f"{alone.wall_s:.0f} s",
        f"{busy.wall_s:.0f} s",
        f"{busy.wall_s / alone.wall_s:.2f}",
        f"{alone.processor_s:.0f} s, {busy.processor_s:.0f} s",
        f"{alone.threads}, {busy.threads}",
        shown(alone),
        shown(busy),
        gain_held(search, alone, busy),
        false_claims(search, alone),
        false_claims(search, busy),
    ]
    row = f"| {' | '.join(cells)} |"
    print(row, flush=True)
    return row


@contextmanager
def running(load: Load | None) -> Iterator[None]:
    """Run a load meanwhile."""
    if load is None:
        yield
        return
    core = str(max(os.sched_getaffinity(0))) if load.is_pinned else ""
    with subprocess.Popen([sys.executable, "-c", SPINNER, str(load.nice), core]) as process:
        try:
            time.sleep(0.5)
            yield
        finally:
            process.kill()


def searched(search: Search, runs: Path) -> Run:
    """Run one search with empty caches."""
    options = ["--model", search.model, *search.options, "--study", STUDY, "--runs", str(runs), "--json"]
    runs.mkdir(parents=True)
    began = time.perf_counter()
    with (runs / "log").open("wb") as log:
        command = [sys.executable, "-m", "sktune.cli", "search", *options]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"a search failed:\n{(runs / 'log').read_text()[-2000:]}")
    wall_s = time.perf_counter() - began
    return Run(wall_s, used.ru_utime + used.ru_stime, stored_result(STUDY, runs), runs)


def shown(run: Run) -> str:
    """Return a winner's trial and speedup."""
    winner = run.result.winner
    if winner is None:
        return "no scope"
    doubt = " ({:.3f} to {:.3f})".format(*winner.speedup.ci95) if winner.speedup.ci95 else ""
    return f"{len(winner.plan.scopes)} scopes, {winner.speedup.ratio:.3f}{doubt}"


def gain_held(search: Search, alone: Run, busy: Run) -> str:
    """Return the share of the gain of the winner alone that the other winner has, both measured alone."""
    if alone.winner == busy.winner:
        return "100%, the same plan"
    if alone.result.is_simulated:
        speedups = [run.result.winner.speedup if run.result.winner else None for run in (alone, busy)]
        one, other = (gain(speedup) for speedup in speedups)
    else:
        plans = [("1", alone.winner), ("2", busy.winner)]
        rows = measured(search, [(name, plan) for name, plan in plans if plan.scopes], Placement(), alone.runs)
        found = {row.name: row.speedup for row in rows}
        one, other = gain(found.get("1")), gain(found.get("2"))
    return f"{other / one:.0%}" if one > 0 else "nothing to hold"


def gain(speedup: Speedup | None) -> float:
    """Return the share of the baseline's time that is saved."""
    return 1 - 1 / speedup.ratio if speedup else 0.0


def false_claims(search: Search, run: Run) -> str:
    """Return how many of the figures in a final comparison are false, as measured without the load."""
    if run.result.is_simulated:
        return "-"
    claimed = {row.name: row.speedup for row in run.result.final if row.name.isdigit() and row.speedup}
    plans = {str(record.number): record.judged_plan for record in run.result.trials}
    placement = Machine.look().placement_as_in(run.result.facts.fingerprint)
    found = {
        row.name: row.speedup
        for row in measured(search, [(name, plans[name]) for name in claimed], placement, run.runs)
    }
    winner = str(run.result.winner.number) if run.result.winner else ""
    false = [name for name, speedup in claimed.items() if is_false(speedup, found.get(name), is_winner=name == winner)]
    return f"{len(false)} of {len(claimed)}"


def is_false(claimed: Speedup, found: Speedup | None, *, is_winner: bool) -> bool:
    """Whether a figure contradicts what was measured without the load."""
    if found is None:
        return False
    apart = claimed.bounds[0] > found.bounds[1] or claimed.bounds[1] < found.bounds[0]
    return apart or (is_winner and found.bounds[1] <= 1)


def measured(search: Search, plans: Sequence[tuple[str, Plan]], placement: Placement, runs: Path) -> Sequence[FinalRow]:
    """Measure plans in fresh processes, as many as a search has, and combine them as it does."""
    request = Request(search.model, runs=runs)
    spec, preset = request.target()
    setup = RunnerSetup(spec, space_spec(request, spec, preset), runs / "again", request.cache, placement=placement)
    with WorkerRunner(setup) as runner:
        processes = [
            runner.run(Compare(plans, number), lambda stage: None)
            for number in range(1, backend_info(spec.backend).final_processes + 1)
        ]
    return FinalComparison.of([(compared.rows, compared.noise) for compared in processes], ()).rows


if __name__ == "__main__":
    main()
