"""How far sktune's measurements can be trusted: false wins, missed differences, and time saved by stopping early.

    python benchmarks/measurement.py [--comparisons 200] [--plans 14] [--model examples/own_model.py:target]

1. The baseline, compiled again each time, against the baseline: on the undisturbed machine, and with a load that comes
   and goes on one core. Wins are decided by the rule of a trial, beyond a noise floor of three such measurements.
2. A difference of 2%: the reference spins for another 2% of its latency after each step.
3. Plans of the model's space, measured to the end, are replayed in random orders with the rule that stops plans which
   are significantly slower than the incumbent.

Prints tables and the machine's description, and writes them to --out. Run it on an idle machine.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from sktune.backends import backend_info
from sktune.backends.base import Backend, Compiled
from sktune.backends.this_machine import device_name, package_version
from sktune.core.outcome import Speedup
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace
from sktune.measure import latency
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.devices import Cpu
from sktune.measure.latency import Budget, Contender, Measurement, Samples
from sktune.measure.noise_floor import Threshold, noise_floor
from sktune.targets.base import Target, decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import Request, bind_space, space_spec
from sktune.worker import replays
from sktune.worker.evaluator import FLOOR_BUDGET, PlanEvaluator
from sktune.worker.jobs import Judge, Progress, silent
from sktune.worker.step_timer import quiet_collector

EXTRA = 0.02
LOOKS = 3
ORDERS = 20
LOAD = """
import ctypes, os, random, signal, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the benchmark
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
chance = random.Random(0)
while True:
    end = time.monotonic() + chance.uniform(0.2, 2.0)
    while time.monotonic() < end:
        pass
    time.sleep(chance.uniform(0.2, 2.0))
"""


@dataclass
class Bench:
    """A target and its backend, on which steps are compared."""

    target: Target
    backend: Backend
    space: SearchSpace
    budget: Budget

    def __post_init__(self) -> None:
        self._replay = replays.prepare(self.target)[0]
        self.baseline = self.backend.compile(Plan())
        self._rng = np.random.default_rng(0)

    def compare(self, threshold: Threshold, budget: Budget, extra_s: float = 0.0) -> tuple[Speedup, Measurement]:
        """Compare the baseline, made ``extra_s`` slower, with a new copy of it, by the rule of a trial."""

        def enough(speedup: Speedup) -> bool:
            return threshold.comparison(speedup) is not Comparison.UNDECIDED

        steps = [self.contender(self.baseline, extra_s), self.contender(self.backend.compile(Plan()))]
        with quiet_collector():
            found = latency.measure(steps, budget, self._rng, Cpu(), enough)
        return latency.compare(found.counted, 1), found

    def contender(self, compiled: Compiled, extra_s: float = 0.0) -> Contender:
        """Return a compiled step, ``extra_s`` slower, that starts from the same state each time."""
        inputs = self._replay.inputs[0]

        def prepare() -> None:
            self._replay.start.restore()
            compiled.step.prepare()

        def run() -> None:
            compiled.step.run(*inputs)
            end = time.perf_counter() + extra_s
            while time.perf_counter() < end:
                pass

        return Contender(run, prepare)


def main() -> None:
    """Run the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--plans", type=int, default=14, help="that keep every bit, for the third part")
    parser.add_argument("--seconds", type=float, default=1.0, help="limit of one comparison; trials have 2")
    parser.add_argument("--model", default="examples/own_model.py:target")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/measurement-cpu-2-cores.md"))
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        bench = opened(arguments.model, Budget(seconds=arguments.seconds, wait_s=arguments.seconds))
        looks = [bench.compare(Threshold(), FLOOR_BUDGET)[0] for _ in range(LOOKS)]
        threshold = Threshold(noise_floor(looks))
        parts = list(comparisons(bench, threshold, looks[0].baseline_ms, arguments.comparisons))
        parts += ["", *saved(bench, threshold, arguments.plans)]
    floor = f"noise floor {threshold.noise_floor:.2%} from {LOOKS} looks of {FLOOR_BUDGET.seconds:g} s"
    made_with = f"torch {package_version('torch')}, Python {sys.version.split()[0]}; {device_name('cpu')}"
    head = [
        f"# python {' '.join(sys.argv)}, {time.strftime('%Y-%m-%d')}\n",
        f"{made_with}; baseline {looks[0].baseline_ms:.3f} ms a step; {floor}; {time.perf_counter() - began:.0f} s\n",
    ]
    text = "\n".join([*head, *parts, ""])
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


def opened(model: str, budget: Budget) -> Bench:
    """Load the model and capture its step."""
    torch.set_grad_enabled(False)
    request = Request(model)
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    info = backend_info(spec.backend)
    target = load(spec, takes_torchair=info.takes_torchair(spec.device))
    layout = trace_layout(target, wanted)
    backend = info.load()(target, layout, decode_inputs(target, 0, 1)[0], **info.settings_of(spec))
    return Bench(target, backend, bind_space(wanted, layout, spec), budget)


def comparisons(bench: Bench, threshold: Threshold, baseline_ms: float, count: int) -> Iterator[str]:
    """Run the first two parts and return the lines of their table."""
    yield "| comparison | times | faster | slower | same | undecided | rounds, median | disturbed rounds |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    yield counted("baseline with itself, machine as it is", bench, threshold, bench.budget, 0.0, count)
    with load_that_comes_and_goes():
        yield counted("baseline with itself, load that comes and goes", bench, threshold, bench.budget, 0.0, count)
    # Plans that may win are measured longer.
    longer = Budget(seconds=4 * bench.budget.seconds)
    yield counted(f"a true difference of {EXTRA:.0%}", bench, threshold, longer, EXTRA * baseline_ms / 1e3, count)


def counted(name: str, bench: Bench, threshold: Threshold, budget: Budget, extra_s: float, count: int) -> str:
    """Return a row of the table."""
    verdicts: Counter[Comparison] = Counter()
    rounds, disturbed = [], []
    for _ in range(count):
        speedup, measurement = bench.compare(threshold, budget, extra_s)
        verdicts[threshold.comparison(speedup)] += 1
        rounds.append(speedup.rounds)
        disturbed.append(float(measurement.disturbed.mean()))
    shares = " | ".join(f"{verdicts[verdict] / count:.1%}" for verdict in Comparison)
    return f"| {name} | {count} | {shares} | {median(rounds):.0f} | {mean(disturbed):.0%} |"


@contextmanager
def load_that_comes_and_goes() -> Iterator[None]:
    """Keep one core busy for random periods of 0.2 to 2 s, and idle in between."""
    child = subprocess.Popen([sys.executable, "-c", LOAD])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def saved(bench: Bench, threshold: Threshold, plans: int) -> Iterator[str]:
    """Measure plans to the end, replay them in random orders, and return the savings and losses of stopping early."""
    recorded = record(bench, plans)
    whole = [latency.compare(samples, 1) for samples in recorded]
    best = max(range(len(whole)), key=lambda index: whole[index].ratio)
    spent_s, lost = [], 0
    order = list(range(len(recorded)))
    chance = random.Random(0)
    for _ in range(ORDERS):
        chance.shuffle(order)
        incumbent, spent = 1.0, 0.0
        for index in order:
            seconds, speedup = replayed(recorded[index], Threshold(threshold.noise_floor, incumbent).is_out_of_reach)
            spent += seconds
            incumbent = max(incumbent, speedup.bounds[0])
            lost += index == best and speedup.rounds < len(recorded[index])
        spent_s.append(spent)
    full_s = sum(float(samples.sum()) for samples in recorded)
    yield "| plans | speedups | measured to the end | stopped early, median order | saved | fastest plan stopped |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: |"
    ratios = [speedup.ratio for speedup in whole]
    yield (
        f"| {len(recorded)} | {min(ratios):.3f} to {max(ratios):.3f} | {full_s:.1f} s | {median(spent_s):.1f} s "
        f"| {1 - median(spent_s) / full_s:.0%} | {lost} of {ORDERS} |"
    )


def record(bench: Bench, plans: int) -> list[Samples]:
    """Return the samples of ``plans`` plans that keep every bit: starting points, then random ones, each to the end."""
    chance = random.Random(0)
    waiting = [bench.space.plan(point.values) for point in bench.space.starting_points]
    tried = {Plan()}
    recorded: list[Samples] = []

    class Recording(Progress):
        def measured(self, names: Sequence[str], measurement: Measurement) -> None:  # noqa: ARG002
            recorded.append(measurement.counted)

    evaluator = PlanEvaluator(bench.target, bench.backend, Recording(), Budget(halfwidth=0.0))
    while len(recorded) < plans and len(tried) < bench.space.size:
        plan = (
            waiting.pop(0)
            if waiting
            else bench.space.plan({name: chance.choice(values) for name, values in bench.space.choices.items()})
        )
        if plan not in tried:
            tried.add(plan)
            evaluator.judge(Judge(plan, ""), silent)
    return recorded


def replayed(samples: Samples, enough: Callable[[Speedup], bool]) -> tuple[float, Speedup]:
    """Return the seconds that a measurement would have taken with ``enough``, and its result."""
    budget = Budget()
    spent_s = np.cumsum(samples.sum(axis=1))
    look = budget.min_rounds
    while look < len(samples):
        speedup = latency.compare(samples[:look], 1)
        if enough(speedup):
            return float(spent_s[look - 1]), speedup
        look = max(look + 2, int(np.searchsorted(spent_s, spent_s[look - 1] + budget.look_s)) // 2 * 2)
    return float(spent_s[-1]), latency.compare(samples, 1)


if __name__ == "__main__":
    main()
