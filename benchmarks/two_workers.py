"""Figures of one search by two workers, each on a core of its own, beside those of one worker on one core.

    python -m benchmarks.two_workers [--model llama] [--trials 6] [--runs FOLDER] --out FILE.md

One worker and two search in turn, twice each, and every two of the four searches are compared: the plan that both
recommend, and the trials that both made.

On a shared machine a plan's ratio depends on how fast the machine is at the moment, so two searches differ by what
their minutes differ, however they are made. Their samples also tell how they differ at equal speed: blocks of both are
compared in which baseline and plan took the same time together, a tenth of the blocks at a time. That difference is
what the noise floor, which compares two copies of the baseline at the same time, can be held against.

Run it on an idle machine with at least two cores. Searches that are in FOLDER already are only compared again.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

import sktune
from sktune.backends.installed import device_name, package_version
from sktune.core.plan import Plan
from sktune.measure import samples
from sktune.measure.confidence_sequence import block_log_ratios
from sktune.reports.study import verdict_line
from sktune.study.result import SearchResult, stored_result

SEARCHES = {"one worker": 1, "two workers": 2, "one worker again": 1, "two workers again": 2}
SLICES = 10
"""Of the blocks of two searches, by speed."""
MIN_BLOCKS = 5
"""Of either search in a slice that counts."""

Blocks = npt.NDArray[np.float64]
"""Shape (blocks, 2): the mean log time of baseline and plan, and their log ratio."""


@dataclass(frozen=True)
class Search:
    """A search by its name in the table."""

    name: str
    result: SearchResult

    @property
    def speedups(self) -> Mapping[Plan, float]:
        """Of each plan that was measured in a trial."""
        outcomes = {record.plan: record.outcome for record in self.result.trials if record.outcome}
        return {plan: outcome.speedup.ratio for plan, outcome in outcomes.items() if outcome.speedup}

    def trial_blocks(self, plan: Plan) -> Blocks:
        """Return the blocks of the trial that tried ``plan``."""
        return self._blocks(f"trial-{self._number(plan):04d}.npz", -1)

    def final_blocks(self, plan: Plan) -> Blocks:
        """Return the blocks of a finalist in all processes of the final comparison."""
        return self._blocks("final-*.npz", str(self._number(plan)))

    def _number(self, plan: Plan) -> int:
        return next(record.number for record in self.result.trials if record.plan == plan)

    def _blocks(self, pattern: str, contender: str | int) -> Blocks:
        found = []
        for path in sorted((self.result.folder / samples.FOLDER).glob(pattern)):
            recorded = samples.read(path)
            column = recorded.names.index(contender) if isinstance(contender, str) else contender
            rounds = len(recorded.seconds) // 2 * 2
            quiet = ~recorded.disturbed[:rounds].reshape(-1, 2).any(axis=1)
            pairs = recorded.seconds[:rounds][:, [0, column]].reshape(-1, 2, 2)[quiet]
            found.append(np.stack([np.log(pairs).mean(axis=(1, 2)), block_log_ratios(pairs.reshape(-1, 2), 1)], axis=1))
        return np.concatenate(found)


def main() -> None:
    """Search, compare every two searches, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--runs", type=Path, help="where the studies are kept")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cores = sorted(os.sched_getaffinity(0))[:2]
        searches = []
        for name, workers in SEARCHES.items():
            os.sched_setaffinity(0, cores[:workers])
            runs = (arguments.runs or Path(folder)) / name
            if studies := [path.parent.name for path in runs.glob("*/study.db")]:
                result = stored_result(studies[0], runs)
            else:
                result = sktune.search(arguments.model, trials=arguments.trials, workers=workers, runs=runs)
            searches.append(Search(name, result))
        lines = list(table(searches))
    machine = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    head = [
        f"# python -m benchmarks.two_workers {' '.join(sys.argv[1:])}, {time.strftime('%Y-%m-%d')}",
        "",
        machine,
        "",
    ]
    text = "\n".join([*head, *lines, ""])
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def table(searches: Sequence[Search]) -> Iterator[str]:
    """Return the lines of the comparison of every two searches, then what each found."""
    yield (
        "| searches | winner | its figures differ by | at equal speed | noise floor | trials of both "
        "| their figures, median | at equal speed |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for one, other in combinations(searches, 2):
        yield f"| {one.name}, {other.name} | {' | '.join(_compared(one, other))} |"
    yield from _together(searches)
    for search in searches:
        yield f"\n{search.name}: {verdict_line(search.result)}"


def _together(searches: Sequence[Search]) -> Iterator[str]:
    """Return a line about the searches of two workers as one, beside those of one worker; none if winners differ."""
    plans = {search.result.best_plan for search in searches}
    if len(plans) > 1 or not all(search.result.winner for search in searches):
        return
    (plan,) = plans
    kinds = [[search for search in searches if SEARCHES[search.name] == workers] for workers in (1, 2)]
    logs = [statistics.mean(math.log(search.result.speedup or 1.0) for search in kind) for kind in kinds]
    matched = at_equal_speed(*(np.concatenate([search.final_blocks(plan) for search in kind]) for kind in kinds))
    yield (
        f"\nThe winner of two workers, both searches together, beside that of one worker: "
        f"{math.expm1(logs[1] - logs[0]):+.2%}, at equal speed {math.expm1(matched):+.2%}."
    )


def _compared(one: Search, other: Search) -> Iterator[str]:
    plan = one.result.best_plan
    if plan == other.result.best_plan and (ratio := one.result.speedup) and (ratio_again := other.result.speedup):
        yield "the same"
        yield _percent(ratio_again / ratio - 1)
        yield _percent(math.expm1(at_equal_speed(one.final_blocks(plan), other.final_blocks(plan))))
    else:
        yield from ("different", "", "")
    yield _percent(max(search.result.comparison.noise_floor for search in (one, other) if search.result.comparison))
    common = [plan for plan in one.speedups if plan in other.speedups]
    yield str(len(common))
    yield _percent(statistics.median(abs(other.speedups[plan] / one.speedups[plan] - 1) for plan in common))
    matched = [at_equal_speed(one.trial_blocks(plan), other.trial_blocks(plan)) for plan in common]
    yield _percent(statistics.median(abs(math.expm1(each)) for each in matched if math.isfinite(each)))


def at_equal_speed(one: Blocks, other: Blocks) -> float:
    """Return the difference of two searches' log ratios of a plan, at the speeds of the machine that both saw.

    In each slice of the machine's speed the medians are subtracted, and the slices are weighted by the precision of
    that difference. NaN if no slice has blocks of both.
    """
    ends = np.quantile(np.concatenate([one, other])[:, 0], np.linspace(0, 1, SLICES + 1))
    ends[-1] = np.inf
    differences, weights = [], []
    for low, high in pairwise(ends):
        slices = [blocks[(low <= blocks[:, 0]) & (blocks[:, 0] < high), 1] for blocks in (one, other)]
        if min(map(len, slices)) >= MIN_BLOCKS:
            differences.append(np.median(slices[1]) - np.median(slices[0]))
            weights.append(1 / sum(1 / len(each) for each in slices))
    return float(np.average(differences, weights=weights)) if weights else math.nan


def _percent(share: float) -> str:
    return f"{share:.2%}"


if __name__ == "__main__":
    main()
