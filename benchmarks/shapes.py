"""How good the answer for several shapes is, and how many trials it takes.

    python -m benchmarks.shapes --model llama-float32 --trials 20 --seeds 100 --jobs 2

A model's shapes are all of its recorded landscapes, MODEL-BATCHxCONTEXT (benchmarks/landscapes). Each seed is one
search as ``sktune search --shapes --trials N`` makes it: the same trials at the first shape and at the others, the same
plans tried elsewhere, and a final comparison of these, of three processes with the noise of one measurement each. What
is shown is true: the single plan against the best one of all plans that work at every shape, and each shape's plan
against the best one there.
"""

import argparse
import copy
import math
import multiprocessing
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from optuna.trial import FrozenTrial

from benchmarks.landscape import FAILURES, replay
from benchmarks.landscapes.recorded import RecordedLandscape, names, recorded
from sktune.backends.this_machine import device_name
from sktune.core.earlier import EarlierStudy
from sktune.core.plan import Plan
from sktune.core.shapes import StepShape, parse_shapes
from sktune.learning.history import Learned
from sktune.samplers.partition import PARTITION, PartitionSampler
from sktune.study.shapes import best_single, fewest_plans
from sktune.tuning.shapes import MAX_SOURCES, Allotment, in_order, plans_to_cross

REGRET = 0.01
PROCESSES = 3
"""Of a final comparison."""
COLUMNS = ("model", "shapes", "trials for one", "trials", "seeds", "single, median excess", "single, p90",
           "single within 1%", "plans, median", "worst regret, median", "worst regret, p90", "regret within 1%",
           "plans that fail")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What one search has found: see ``COLUMNS``; excess and regret are shares, by the true latencies."""

    trials: int
    excess: float
    plans: int
    regret: float
    failing: int


def shapes_of(model: str) -> dict[StepShape, RecordedLandscape]:
    """Return the recorded landscapes of a model by their shapes."""
    prefix = f"{model}-"
    recordings = [name for name in names() if name.startswith(prefix) and "x" in name.removeprefix(prefix)]
    sizes = [tuple(name.removeprefix(prefix).split("x")) for name in recordings]
    shapes = [parse_shapes(f"batch={batch} context={context}")[0] for batch, context in sizes]
    return dict(zip(shapes, map(recorded, recordings), strict=True))


def searched(model: str, trials: int, seed: int) -> Found:
    """Search the shapes of a model once."""
    torch.set_num_threads(1)
    landscapes = shapes_of(model)
    shapes = list(landscapes)
    allotment = Allotment.of(trials, len(shapes))
    runs: dict[StepShape, Sequence[FrozenTrial]] = {}
    tried: dict[StepShape, set[Plan]] = {}
    samplers: dict[StepShape, PartitionSampler] = {}
    for number, shape in enumerate(in_order(shapes)):
        landscape = landscapes[shape]
        sources = sorted(runs, key=shape.distance)[:MAX_SOURCES]
        space = replace(landscape.space, earlier=tuple(map(partial(_findings, landscapes, runs), sources)))
        informed = copy.copy(landscape)
        informed.space = space
        run = replay(informed, PARTITION, allotment.other if number else allotment.first, seed)
        runs[shape], tried[shape] = run.trials, set(run.plans)
        samplers[shape] = PartitionSampler(space, seed)
    works = {shape: {plan for plan in tried[shape] if _works(landscapes[shape], plan)} for shape in shapes}
    plans = list(dict.fromkeys(plan for shape in shapes for plan in works[shape]))
    expected_ms: dict[Plan, list[float]] = {plan: [] for plan in (Plan(), *plans)}
    for shape in shapes:
        baseline_ms = landscapes[shape].baseline_ms
        expected_ms[Plan()].append(baseline_ms)
        for plan, saved in zip(plans, samplers[shape].promise(runs[shape], plans), strict=True):
            failed = plan in tried[shape] and plan not in works[shape]
            expected_ms[plan].append(math.inf if failed else baseline_ms * (1 - saved))
    weights = [1.0] * len(shapes)
    wanted = plans_to_cross(
        expected_ms, [works[shape] for shape in shapes], weights, "sum", REGRET, allotment.crossings
    )
    new = sum(len(set(chosen) - works[shape]) for chosen, shape in zip(wanted, shapes, strict=True))
    return _answer(landscapes, wanted, sum(map(len, runs.values())) + new, weights, seed)


def _answer(
    landscapes: Mapping[StepShape, RecordedLandscape], wanted: Sequence[Sequence[Plan]], trials: int,
    weights: Sequence[float], seed: int,
) -> Found:  # fmt: skip
    rng = np.random.default_rng(seed)
    truth = {shape: _true_latencies(landscape) for shape, landscape in landscapes.items()}
    compared: dict[Plan, list[float]] = {}
    for number, (shape, landscape) in enumerate(landscapes.items()):
        for plan in (Plan(), *wanted[number]):
            noise = 0.0 if plan.is_baseline else landscape.noise / math.sqrt(PROCESSES) * rng.standard_normal()
            row = compared.setdefault(plan, [math.inf] * len(landscapes))
            row[number] = truth[shape].get(plan, math.inf) * (1 + noise)
    single, chosen = best_single(compared, weights, "sum"), fewest_plans(compared, weights, REGRET)
    everywhere = set.intersection(*map(set, truth.values()))
    best = min(sum(latencies[plan] for latencies in truth.values()) for plan in everywhere)
    regrets, failing = [], 0
    for number, latencies in enumerate(truth.values()):
        plan = min((*chosen, Plan()), key=lambda plan: compared[plan][number])
        failing += plan not in latencies
        regrets.append(latencies.get(plan, math.inf) / min(latencies.values()) - 1)
    excess = sum(latencies.get(single, math.inf) for latencies in truth.values()) / best - 1
    failing += sum(single not in latencies for latencies in truth.values())
    return Found(trials, excess, len(chosen), max(regrets), failing)


def _findings(
    landscapes: Mapping[StepShape, RecordedLandscape], runs: Mapping[StepShape, Sequence[FrozenTrial]], shape: StepShape
) -> EarlierStudy:
    learned = Learned(landscapes[shape].space)
    learned.read_once(runs[shape])
    return learned.findings(shape.name)


def _works(landscape: RecordedLandscape, plan: Plan) -> bool:
    return landscape.evaluate(plan).reason not in FAILURES and not plan.is_baseline


def _true_latencies(landscape: RecordedLandscape) -> dict[Plan, float]:
    """Return the latency of each plan that works, the baseline among them."""
    known = {plan: landscape.evaluate(plan).latency_ms for plan in landscape.plans}
    return {Plan(): landscape.baseline_ms} | {plan: value for plan, value in known.items() if value is not None}


def row(model: str, shapes: int, trials: int, found: Sequence[Found]) -> tuple[str, ...]:
    """Return the cells of a model."""
    excess, regret = [each.excess for each in found], [each.regret for each in found]
    return (
        model, str(shapes), str(trials), f"{statistics.median(each.trials for each in found):g}", str(len(found)),
        f"{statistics.median(excess):.2%}", f"{np.quantile(excess, 0.9):.2%}",
        f"{np.mean(np.array(excess) <= REGRET):.0%}", f"{statistics.median(each.plans for each in found):g}",
        f"{statistics.median(regret):.2%}", f"{np.quantile(regret, 0.9):.2%}",
        f"{np.mean(np.array(regret) <= REGRET):.0%}", str(sum(each.failing for each in found)),
    )  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, metavar="MODEL-DTYPE")
    parser.add_argument("--trials", type=int, action="append", metavar="N", help="for one shape; 40 by default")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    lines = [f"{device_name('cpu')}; recorded landscapes, true latencies", "",
             "| " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * (len(COLUMNS) - 1)]  # fmt: skip
    print("\n".join(lines))
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        for model in arguments.model:
            for trials in arguments.trials or [40]:
                found = list(pool.map(partial(searched, model, trials), seeds))
                lines.append("| " + " | ".join(row(model, len(shapes_of(model)), trials, found)) + " |")
                print(lines[-1], flush=True)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
