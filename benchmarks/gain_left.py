"""How often the bound on what is left to gain holds, and how wide it is.

    python -m benchmarks.gain_left --landscape llama-float32 --landscape test-devices --seeds 100 --jobs 2

After some numbers of trials, the bound is compared with what the best plan of the space truly saves beyond the plan
that the search would name then. Landscapes are those of benchmarks/search.py. With SOURCE:TARGET, as in
benchmarks/earlier.py, each search learns from one on the source.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from benchmarks.earlier import findings, informed
from benchmarks.landscape import replay
from benchmarks.search import landscape_source
from sktune.backends.this_machine import device_name
from sktune.core.space import SearchSpace
from sktune.samplers.partition import PARTITION, PartitionSampler

COLUMNS = ("landscape", "trials", "seeds", "holds", "median bound", "median expectation", "median truth",
           "largest truth above it")  # fmt: skip


class Watched(PartitionSampler):
    """Notes the bound and the expectation after some numbers of trials, as a search that goes on would show them."""

    def __init__(self, at: Sequence[int], space: SearchSpace, seed: int) -> None:
        super().__init__(space, seed, probes=True)
        self.at = at
        self.noted: dict[int, tuple[float, float]] = {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> Any:
        """Note what is known, then propose."""
        self.note(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
        return super().sample_relative(study, trial, search_space)

    def note(self, trials: Sequence[FrozenTrial]) -> None:
        """Note what is known after these trials, if it is to be known."""
        if len(trials) in self.at and len(trials) not in self.noted:
            self.noted[len(trials)] = self.gain_left(trials), self.outlook(trials).expected_gain_left


def bounds(name: str, at: Sequence[int], seed: int) -> list[tuple[float, float, float]]:
    """Return the bound, the expectation and the truth after each number of trials, as shares of the baseline."""
    torch.set_num_threads(1)
    learns = ":" in name
    landscape = informed(name, seed, partial(findings, seed=seed)) if learns else landscape_source(name)(seed)
    watched = Watched(at, landscape.space, seed)
    run = replay(landscape, replace(PARTITION, factory=lambda *_: watched), max(at), seed)
    watched.note(run.trials)
    achievable = (landscape.baseline_ms - landscape.best_ms) / landscape.baseline_ms
    return [(*watched.noted[count], (1 - run.gains[count - 1]) * achievable) for count in at]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", action="append", required=True, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--at", default="10,20,40", metavar="N,N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    at = [int(part) for part in arguments.at.split(",")]
    lines = [f"{device_name('cpu')}; shares of the baseline step", "",
             "| " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * (len(COLUMNS) - 1)]  # fmt: skip
    print("\n".join(lines))
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        for name in arguments.landscape:
            results = np.array(list(pool.map(partial(bounds, name, at), seeds)))
            for index, count in enumerate(at):
                bound, expected, truth = results[:, index].T
                beyond = np.maximum(0.0, truth - bound).max()
                middle = [f"{np.median(each):.2%}" for each in (bound, expected, truth)]
                holds = f"{np.mean(truth <= bound + 1e-9):.0%}"
                lines.append("| " + " | ".join(
                    (name, str(count), str(len(seeds)), holds, *middle, f"{beyond:.2%}")
                ) + " |")  # fmt: skip
                print(lines[-1], flush=True)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
