"""Trials that a search needs with the findings of an earlier study, and without.

    python -m benchmarks.earlier --pair deepseek-v3-float32:deepseek-v3-bfloat16 --seeds 100 --jobs 2

A pair is a source and a target. Each is a recorded landscape or devices (benchmarks/landscapes); ``same`` is the target
itself, seen by another search. After the source's name, ``~constants`` draws the device's constants anew, ``~upgrade``
changes each by a factor of up to 1.41, ``~layers`` gives it 8 layers instead of 61, ``~weights`` changes its
operators' durations, numbers of blocks and sizes of code by about 0.3 of their spread, ``~operators`` draws what they
are like anew, ``~device`` constants and operators, and ``~permuted`` gives each effect that was found there the name of
another one of its group: a source that misleads.
For each seed, the source is searched with 40 trials, and the target without and with what was found.
"""

import argparse
import copy
import math
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path

import numpy as np
import torch

from benchmarks.landscape import Landscape, replay
from benchmarks.landscapes.devices import CONSTANTS_US, LEAST, DeviceLandscape
from benchmarks.search import TARGET, landscape_source
from sktune.backends.this_machine import device_name
from sktune.core.earlier import EarlierStudy
from sktune.learning.history import Learned
from sktune.samplers.partition import PARTITION

SOURCE_TRIALS = 40
OTHER = 10_000
"""Added to a seed for what is drawn anew."""
UPGRADE = 0.3
"""Power of the factor between two devices that stands for an upgrade of CANN: a guess, as none was measured."""


def varied(name: str, seed: int) -> Landscape:
    """Return the landscape of a source."""
    base, _, variation = name.partition("~")
    landscape = landscape_source(base)(seed)
    if not variation:
        return landscape
    assert isinstance(landscape, DeviceLandscape), f"{name}: only devices are drawn"
    if variation == "layers":
        return landscape.varied(layers=8)
    for drawn in count(seed + OTHER, OTHER):
        other = landscape_source(base)(drawn)
        assert isinstance(other, DeviceLandscape)
        changed = landscape
        if variation == "constants":
            changed = landscape.with_device(replace(landscape.device, us=other.device.us))
        elif variation == "upgrade":
            factor = {name: (us / CONSTANTS_US[name]) ** UPGRADE for name, us in other.device.us.items()}
            changed_us = {name: us * factor[name] for name, us in landscape.device.us.items()}
            changed = landscape.with_device(replace(landscape.device, us=changed_us))
        elif variation == "device":
            changed = landscape.with_device(other.device)
        if variation in ("operators", "device"):
            changed = changed.varied(drawn=drawn)
        elif variation == "weights":
            changed = changed.varied(changed=drawn)
        if changed.saving_us > LEAST * changed.potential_us:
            return changed
    raise AssertionError("no draw has a plan that saves time")


def permuted(found: EarlierStudy, seed: int) -> EarlierStudy:
    """Return a study with the effects of each group under other names of the group."""
    rng = np.random.default_rng(seed)

    def shuffle(effects: dict[str, float]) -> dict[str, float]:
        groups: dict[str, list[str]] = {}
        for name in effects:
            groups.setdefault(name.partition(":")[0] if ":" in name else "segment", []).append(name)
        return {
            name: effects[other]
            for names in groups.values()
            for name, other in zip(names, (names[index] for index in rng.permutation(len(names))), strict=True)
        }

    return replace(found, effects=shuffle(dict(found.effects)), under_law=shuffle(dict(found.under_law)), failed=())


def findings(name: str, seed: int) -> EarlierStudy:
    """Search a source, and return what was found."""
    source = varied(name, seed)
    learned = Learned(source.space)
    learned.read_once(replay(source, PARTITION, SOURCE_TRIALS, seed + OTHER).trials)
    return learned.findings(name)


def informed(pair: str, seed: int, found: Callable[[str], EarlierStudy]) -> Landscape:
    """Return the target of a pair, ``SOURCE[+SOURCE]:TARGET``, with what was found on its sources."""
    sources, _, name = pair.partition(":")
    landscape = copy.copy(landscape_source(name)(seed))
    earlier = []
    for source in sources.replace("same", name).split("+"):
        base = source.removesuffix("~permuted")
        earlier.append(found(base) if base == source else permuted(found(base), seed))
    landscape.space = replace(landscape.space, earlier=tuple(earlier))  # type: ignore[misc]
    return landscape


def trials_to_target(landscape: Landscape, trials: int, seed: int) -> float:
    """Return the first trial whose incumbent reaches ``TARGET`` of the gain; infinite if none does."""
    gains = replay(landscape, PARTITION, trials, seed, enough=TARGET).gains
    return float(len(gains)) if gains[-1] >= TARGET else math.inf


def compared(pairs: Sequence[str], trials: int, seed: int) -> list[tuple[float, float]]:
    """Return the trials that each pair's target needs without and with its source; what they share is searched once."""
    torch.set_num_threads(1)
    found = cache(lambda name: findings(name, seed))
    alone = cache(lambda name: trials_to_target(landscape_source(name)(seed), trials, seed))
    results: list[tuple[float, float]] = []
    for pair in pairs:
        with_source = trials_to_target(informed(pair, seed, found), trials, seed)
        results.append((alone(pair.partition(":")[2]), with_source))
    return results


def row(pair: str, results: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """Return the cells of a pair."""
    without, informed = zip(*results, strict=True)
    cells = [f"{statistics.median(values):g}" for values in (without, informed)]
    cells += [f"{np.quantile(np.minimum(values, 999), 0.9):g}" for values in (without, informed)]
    more = statistics.median(after - before for before, after in results if math.isfinite(before + after))
    later = sum(after > before + 1 for before, after in results) / len(results)
    source, _, target = pair.partition(":")
    return source, target, str(len(results)), *cells, f"{more:+g}", f"{later:.0%}"


COLUMNS = ("source", "target", "seeds", "without, median", "with, median", "without, p90", "with, p90",
           "difference, median", "over one trial later")  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="append", required=True, metavar="SOURCE[+SOURCE]:TARGET")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    lines = [f"{device_name('cpu')}; trials until the incumbent has {TARGET:.0%} of the gain", "",
             "| " + " | ".join(COLUMNS) + " |", "| --- | --- |" + " ---: |" * (len(COLUMNS) - 2)]  # fmt: skip
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        results = []
        for seed, each in zip(seeds, pool.map(partial(compared, arguments.pair, arguments.trials), seeds), strict=True):
            results.append(each)
            print(f"seed {seed}: {each}", file=sys.stderr, flush=True)
    by_pair = zip(arguments.pair, zip(*results, strict=True), strict=True)
    lines += ["| " + " | ".join(row(*each)) + " |" for each in by_pair]
    print("\n".join(lines))
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
