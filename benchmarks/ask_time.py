"""Time that the partition sampler takes for one proposal as a study grows, without the storage.

    python benchmarks/ask_time.py [--trials 1000] [--layers 61] [--units 12] [--kernels 8] [--failing]

Every layer has separate parameters. The study is in memory; each trial reports its latency and scope times, from a
landscape that is a sum over units, borders and options. Prints a table and the machine.
"""

import argparse
import platform
import resource
import time
import warnings
from collections.abc import Sequence
from statistics import median
from typing import Any

import optuna
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

from benchmarks.landscapes.failing import Faults
from sktune.backends.this_machine import device_name
from sktune.core.codec import encoded
from sktune.core.layout import Kernel, Layer, Layout, Unit
from sktune.core.outcome import Outcome, ScopeTime, Speedup
from sktune.core.plan import Plan
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.learning.attributes import OUTCOME
from sktune.samplers.partition import PartitionSampler
from sktune.study.strategy import distributions

UNIT_MS = 0.03
WINDOW = 20
"""Each row is the median of this many proposals."""


class Timed(PartitionSampler):
    """The sampler, with the seconds of each proposal; reading trials counts as time of the storage."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(space, seed)
        self.sampler_s: list[float] = []
        self.storage_s: list[float] = []

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose, and record the time."""
        began = time.perf_counter()
        study.get_trials(deepcopy=False)
        read = time.perf_counter()
        point = super().sample_relative(study, trial, search_space)
        self.storage_s.append(read - began)
        self.sampler_s.append(time.perf_counter() - read - self.storage_s[-1])
        return point


def space_of(layers: int, units: int, kernels: int = 0) -> SearchSpace:
    """Return a space with parameters for each layer of a model whose first layers are dense, with three options.

    Each unit has ``kernels`` kernels of 40 types; with none, the sampler does not know the operators.
    """
    keys = [f"unit_{index}" for index in range(units)]
    layout_units = tuple(Unit(f"layers.{layer}.{key}", key, layer) for layer in range(layers) for key in keys)
    kinds = tuple(Layer(f"layers.{layer}", "dense" if layer < 3 else "moe") for layer in range(layers))
    layout = Layout(layout_units, kinds).with_kernels(
        (unit.name, Kernel(f"T{(int(unit.key[5:]) + 7 * number) % 40}", "vector" if number else "cube"))
        for unit in layout_units for number in range(kernels)
    )  # fmt: skip
    options: dict[str, tuple[bool | int | str, ...]] = {"fusion": (0, 1), "early": (1, 0, 2), "split": (4, 1)}
    rules = OptionRules({"fusion": 0, "early": 1, "split": 4})
    return bind(SpaceSpec(per_layer=True, layers_per_scope=[1, 2, "all"]), layout, options, rules)


def judged(space: SearchSpace, plan: Plan) -> Outcome:
    """Return the outcome of a trial of ``plan``."""
    units = space.layout.units
    position = {unit.name: index for index, unit in enumerate(units)}
    baseline_ms = len(units) * UNIT_MS
    pieces = []
    for scope in plan.scopes:
        covered = range(position[scope.first], position[scope.last] + 1)
        each = [0.1 if int(units[index].key.rpartition("_")[2]) % 3 else 0.25 for index in covered]
        changed = 0.02 * len(scope.options) * (1 if len(covered) > 8 else -1)
        saved_ms = UNIT_MS * (sum(each) - 0.15 - max(0, len(covered) - 24) * 0.1 + changed)
        alone_ms = len(covered) * UNIT_MS
        pieces.append(ScopeTime(scope.first, scope.last, True, alone_ms, alone_ms - saved_ms))
    latency_ms = baseline_ms - sum(piece.baseline_ms - piece.latency_ms for piece in pieces)
    ratio = baseline_ms / latency_ms
    speedup = Speedup(baseline_ms, latency_ms, ratio, (ratio * 0.997, ratio * 1.003), 60)
    return Outcome(speedup=speedup, scope_times=tuple(pieces))


def run(space: SearchSpace, trials: int, failing: bool = False) -> Timed:
    """Search for ``trials`` trials, ``failing`` with a fifth of the segments, and return the sampler with its times."""
    sampler = Timed(space, 0)
    faults = Faults(space.layout, 0) if failing else None
    study = optuna.create_study(sampler=sampler)
    wanted = distributions(space)
    for point in space.starting_points:
        study.enqueue_trial(dict(point.values))
    for _ in range(trials):
        trial = study.ask(wanted)
        plan = space.plan(trial.params)
        if faults and (failure := faults.failure(plan)):
            outcome = Outcome(failure.reason, blamed=failure.blamed, changes_bits=failure.changes_bits)
            trial.set_user_attr(OUTCOME, encoded(outcome))
            study.tell(trial, state=TrialState.PRUNED)
            continue
        outcome = judged(space, plan)
        trial.set_user_attr(OUTCOME, encoded(outcome))
        assert outcome.speedup is not None
        study.tell(trial, outcome.speedup.latency_ms)
    return sampler


def rows(sampler: Timed, trials: int) -> Sequence[str]:
    """Return the table's rows, one for each number of trials."""
    lines = []
    for count in (20, 50, 100, 200, 500, 1000, 2000):
        if count > trials:
            break
        proposals = sampler.sampler_s[max(0, count - WINDOW) : count]
        storage = sampler.storage_s[max(0, count - WINDOW) : count]
        if proposals:
            middle, worst = 1e3 * median(proposals), 1e3 * max(proposals)
            lines.append(f"| {count} | {middle:.1f} | {worst:.1f} | {1e3 * median(storage):.2f} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--units", type=int, default=12)
    parser.add_argument("--kernels", type=int, default=0, help="of each unit; 0: the operators are not known")
    parser.add_argument("--failing", action="store_true", help="a fifth of the segments fail")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", ExperimentalWarning)
    space = space_of(arguments.layers, arguments.units, arguments.kernels)
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sampler = run(space, arguments.trials, arguments.failing)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{arguments.layers} layers of {arguments.units} units, parameters per layer, three options; "
          f"{device_name('cpu')}, Python {platform.python_version()}\n")  # fmt: skip
    print("| trials | ask, ms (median) | ask, ms (worst) | reading the storage, ms |\n| ---: | ---: | ---: | ---: |")
    print("\n".join(rows(sampler, arguments.trials)))
    print(f"\nPeak memory {peak_mib:.0f} MiB, {before_mib:.0f} MiB of it before the search.")


if __name__ == "__main__":
    main()
