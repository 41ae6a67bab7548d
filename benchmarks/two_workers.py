"""Figures of one search by two workers, each on a core of its own, beside those of one worker on one core.

    python -m benchmarks.two_workers [--model llama] [--trials 10] --out FILE.md

Plans that all searches tried are compared, and what the searches recommend. One worker searches twice. The noise floor
is that of one process; a trial's figure is of one process, too, but not of the same one in two searches, and what a
search reports is the mean of several. How far those differ is the repeatability of the final comparisons, given for a
mean by the search, and for one process here. Run it on an idle machine with at least two cores.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import sktune
from sktune.backends.installed import device_name, package_version
from sktune.core.outcome import Speedup
from sktune.core.plan import Plan
from sktune.reports.plan_names import plan_name
from sktune.study.result import SearchResult

SEARCHES = {"one worker": 1, "one worker again": 1, "two workers": 2}


def main() -> None:
    """Search twice, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results: dict[str, SearchResult] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        cores = sorted(os.sched_getaffinity(0))[:2]
        for name, workers in SEARCHES.items():
            os.sched_setaffinity(0, cores[:workers])
            began = time.perf_counter()
            runs = Path(folder) / name
            results[name] = sktune.search(arguments.model, trials=arguments.trials, workers=workers, runs=runs)
            seconds[name] = time.perf_counter() - began
    machine = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    head = [
        f"# python -m benchmarks.two_workers {' '.join(sys.argv[1:])}, {time.strftime('%Y-%m-%d')}",
        "",
        machine,
        "",
    ]
    text = "\n".join([*head, *table(results, seconds), ""])
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def table(results: Mapping[str, SearchResult], seconds: Mapping[str, float]) -> Iterator[str]:
    """Return the lines of the comparison, each search with the first one."""
    figures = {name: speedups(result) for name, result in results.items()}
    first, *others = figures
    common = [plan for plan in figures[first] if all(plan in each for each in figures.values())]
    yield f"| plan | {first} (95% interval) | {' | '.join(f'{name} | ratio' for name in others)} |"
    yield f"| --- | ---: |{' ---: | ---: |' * len(others)}"
    for plan in common:
        cells = [plan_name(plan, results[first].facts.layout), shown(figures[first][plan])]
        for name in others:
            cells += [shown(figures[name][plan]), f"{figures[name][plan].ratio / figures[first][plan].ratio:.3f}"]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for name in others:
        floor = max(results[each].facts.noise_floor for each in (first, name))
        pairs = [(figures[first][plan], figures[name][plan]) for plan in common]
        logs = [abs(math.log(two.ratio / one.ratio)) for one, two in pairs]
        limit = max(of_one_process(results[each]) for each in (first, name))
        apart = sum(max(one.bounds[0], two.bounds[0]) > min(one.bounds[1], two.bounds[1]) for one, two in pairs)
        beyond = [sum(each > math.log1p(allowed) for each in logs) for allowed in (floor, limit)]
        yield (
            f"* {name} beside {first}: {winners(results[first], results[name])}. Of {len(common)} common trials "
            f"{beyond[0]} differ by more than the noise floor of a process ({floor:.2%}), {beyond[1]} by more than "
            f"processes do ({limit:.1%}), median {statistics.median(logs):.2%}; intervals that are apart: {apart}"
        )
    for name, result in results.items():
        yield f"\n{name}, {seconds[name]:.0f} s: {result}"


def winners(one: SearchResult, other: SearchResult) -> str:
    """Return how the results of two searches differ."""
    if not (one.winner and other.winner and one.repeatability and other.repeatability):
        return "not both have a winner"
    speedups = [result.winner.speedup for result in (one, other) if result.winner]
    difference = abs(speedups[1].ratio / speedups[0].ratio - 1)
    saved = " and ".join(f"{speedup.baseline_ms - speedup.latency_ms:.3f}" for speedup in speedups)
    same = "the same winner" if one.winner.plan == other.winner.plan else "other winners"
    limits = f"limits {one.repeatability:.1%} and {other.repeatability:.1%}"
    return f"{same}, {difference:.2%} apart ({limits}); it saves {saved} ms"


def of_one_process(result: SearchResult) -> float:
    """Return the relative difference that a plan's figures of single processes stay within, in 95% of cases."""
    return math.expm1(math.log1p(result.repeatability or 0.0) * math.sqrt(result.processes))


def speedups(result: SearchResult) -> dict[Plan, Speedup]:
    """Return the trials' speedups by plan."""
    return {
        record.plan: record.outcome.speedup for record in result.trials if record.outcome and record.outcome.speedup
    }


def shown(speedup: Speedup) -> str:
    """Return a speedup with its interval."""
    low, high = speedup.bounds
    return f"{speedup.ratio:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
