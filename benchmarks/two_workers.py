"""Figures of one search by two workers, each on a core of its own, beside those of one worker on one core.

    python -m benchmarks.two_workers [--model llama] [--trials 10] --out FILE.md

Plans that both searches tried are compared: how far their speedups differ, and how far two measurements of the same
code differ (the noise floor of the search). Run it on an idle machine with at least two cores.
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import sktune
from sktune.backends.installed import device_name, package_version
from sktune.core.outcome import Speedup
from sktune.core.plan import Plan
from sktune.reports.plan_names import plan_name
from sktune.study.result import SearchResult


def main() -> None:
    """Search twice, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results, seconds = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        cores = sorted(os.sched_getaffinity(0))[:2]
        for workers in (1, 2):
            os.sched_setaffinity(0, cores[:workers])
            began = time.perf_counter()
            runs = Path(folder) / str(workers)
            results[workers] = sktune.search(arguments.model, trials=arguments.trials, workers=workers, runs=runs)
            seconds[workers] = time.perf_counter() - began
    machine = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    head = [
        f"# python -m benchmarks.two_workers {' '.join(sys.argv[1:])}, {time.strftime('%Y-%m-%d')}",
        "",
        machine,
        "",
    ]
    text = "\n".join([*head, *table(results[1], results[2], seconds[1], seconds[2]), ""])
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def table(one: SearchResult, two: SearchResult, one_s: float, two_s: float) -> Iterator[str]:
    """Return the lines of the comparison."""
    floors = [result.facts.noise_floor for result in (one, two)]
    by_one, by_two = speedups(one), speedups(two)
    common = [plan for plan in by_one if plan in by_two]
    yield "| plan | one worker (95% interval) | two workers (95% interval) | ratio |"
    yield "| --- | ---: | ---: | ---: |"
    ratios = []
    for plan in common:
        first, second = by_one[plan], by_two[plan]
        ratios.append(second.ratio / first.ratio)
        yield f"| {plan_name(plan, one.facts.layout)} | {shown(first)} | {shown(second)} | {ratios[-1]:.3f} |"
    beyond = sum(abs(math.log(ratio)) > math.log1p(max(floors)) for ratio in ratios)
    pairs = [(by_one[plan].bounds, by_two[plan].bounds) for plan in common]
    apart = sum(max(one_low, two_low) > min(one_high, two_high) for (one_low, one_high), (two_low, two_high) in pairs)
    yield ""
    yield (
        f"{len(common)} common plans of {len(one.trials)} and {len(two.trials)} trials; noise floors {floors[0]:.2%} "
        f"and {floors[1]:.2%}; {beyond} ratios beyond the larger one, {apart} pairs of intervals apart."
    )
    for name, result, seconds in (("One worker", one, one_s), ("Two workers", two, two_s)):
        yield f"\n{name}, {seconds:.0f} s: {result}"


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
