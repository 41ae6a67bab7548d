"""Kernel Tuner's strategies on a landscape (package ``kernel_tuner``, 1.5; extra ``bench``).

Its strategies run unchanged, with their own defaults, through its ``CostFunc`` and a runner that looks up latencies.
The starting points are evaluated first and count; the best of them is ``x0`` if a strategy takes one, and all are in a
random first generation. As in Kernel Tuner's own simulation, only distinct points count.
"""

import random
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kernel_tuner import util
from kernel_tuner.interface import Options, strategy_map
from kernel_tuner.runners.runner import Runner

from benchmarks.landscape import Landscape, Record, Run
from sktune.core.outcome import Reason
from sktune.core.plan import Option
from sktune.core.space import SearchSpace

STRATEGIES: Mapping[str, Any] = strategy_map
WITHOUT_X0 = ("bayes_opt",)
LISTED_POINTS = 20_000
"""``bayes_opt`` scores a list of all points of a space; of larger spaces, it gets this many."""
MAX_IDLE = 10_000
"""Known points that a strategy may ask for in a row before it is considered finished."""

Point = tuple[int, ...]
"""The index of each parameter's value, as Kernel Tuner computes with values."""


def replay(landscape: Landscape, strategy: str, trials: int, seed: int) -> Run:
    """Search ``landscape`` with a strategy of Kernel Tuner for ``trials`` distinct points, starting points included."""
    random.seed(seed)
    np.random.seed(seed)  # what the strategies draw from
    record = Record(landscape, seed, scope_times=False)
    budget = util.TuningBudget(max_fevals=trials)
    runner = _Lookup(landscape, record)
    points = [_point_of(landscape.space, point.values) for point in landscape.space.starting_points][:trials]
    tune_params = {name: list(range(len(choices))) for name, choices in landscape.space.choices.items()}
    options = Options(
        objective=["time"], objective_higher_is_better=[False], budget=budget, verbose=False, tune_params=tune_params,
        strategy_options=Options(),
    )  # fmt: skip
    results = runner.run(points, options)
    best = min(range(len(points)), key=lambda index: util.get_result_cost(results[index], ["time"], [False])[0])
    first = [points.pop(best), *points]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while not budget.is_done():
            before = budget.num_fevals
            chosen: dict[str, Any] = {"max_fevals": trials - before}
            if strategy not in WITHOUT_X0:
                chosen["x0"] = list(first[0])
            options["strategy_options"] = Options(chosen)
            STRATEGIES[strategy].tune(_Product(tune_params, first), runner, options)
            if budget.num_fevals == before:
                break
    return record.run


def _point_of(space: SearchSpace, values: Any) -> Point:
    return tuple(choices.index(values[name]) for name, choices in space.choices.items())


class _Lookup(Runner):  # type: ignore[misc]
    """Answers from a landscape."""

    def __init__(self, landscape: Landscape, record: Record) -> None:
        super().__init__()
        self.dev = self
        self.max_threads = 1024
        self._space, self._baseline_ms, self._record = landscape.space, landscape.baseline_ms, record
        self._known: dict[Point, dict[str, Any]] = {}
        self._idle = 0
        self._returned = time.perf_counter()

    def get_device_info(self) -> Any:
        """See ``Runner``."""
        return self

    def get_environment(self, tuning_options: Any) -> dict[str, Any]:  # noqa: ARG002
        """See ``Runner``."""
        return {}

    def run(self, parameter_space: Sequence[Sequence[Any]], tuning_options: Any) -> list[dict[str, Any] | None]:
        """Return a result for each point; None once the budget is spent."""
        asked_s = time.perf_counter() - self._returned
        results: list[dict[str, Any] | None] = []
        for element in parameter_space:
            point = tuple(int(index) for index in element)
            if point in self._known:
                self._idle += 1
            elif tuning_options.budget.is_done():
                results.append(None)
                continue
            else:
                self._known[point] = self._evaluate(point, asked_s / len(parameter_space))
                tuning_options.budget.add_evaluations(1)
                self._idle = 0
            results.append(dict(self._known[point]))
        if self._idle > MAX_IDLE:
            raise util.StopCriterionReached("nothing new is asked for")
        self._returned = time.perf_counter()
        return results

    def _evaluate(self, point: Point, asked_s: float) -> dict[str, Any]:
        values: dict[str, Option] = {
            name: choices[index] for (name, choices), index in zip(self._space.choices.items(), point, strict=True)
        }
        outcome = self._record.add(self._space.plan(values), asked_s)
        result: dict[str, Any] = dict(zip(self._space.choices, point, strict=True))
        if outcome.speedup is not None:
            return {**result, "time": outcome.speedup.latency_ms}
        if outcome.reason is Reason.SLOWER:  # the baseline itself, which is known
            return {**result, "time": self._baseline_ms}
        is_compiled = outcome.reason is Reason.MISMATCH
        return {**result, "__error__": util.RuntimeFailedConfig() if is_compiled else util.CompilationFailedConfig()}


class _Product:
    """The part of Kernel Tuner's ``Searchspace`` that strategies use, without a list of all points.

    Every point is valid, so neighbours and samples need no list. The first sample contains the starting points.
    """

    def __init__(self, tune_params: dict[str, list[int]], first: Sequence[Point]) -> None:
        self.tune_params = tune_params
        self.params_values = tuple(tuple(values) for values in tune_params.values())
        self.size = int(np.prod([float(len(values)) for values in self.params_values]))
        self._first = list(first)

    def __getattr__(self, name: str) -> Any:
        # Only bayes_opt uses it.
        if name == "list":
            return self._listed()
        raise AttributeError(name)

    def get_random_sample(self, num_samples: int) -> list[Point]:
        """See ``Searchspace.get_random_sample``."""
        sample = dict.fromkeys(self._first[:num_samples] if num_samples > 1 else ())
        while len(sample) < min(num_samples, self.size):
            sample[self._draw()] = None
        return list(sample)

    def is_param_config_valid(self, param_config: Point) -> bool:  # noqa: ARG002
        """See ``Searchspace.is_param_config_valid``."""
        return True

    def get_random_neighbor(self, param_config: Point, neighbor_method: str | None = None) -> Point:  # noqa: ARG002
        """Return a point that differs in one parameter."""
        index = random.choice([place for place, values in enumerate(self.params_values) if len(values) > 1])
        others = self.get_param_neighbors(param_config, index, "Hamming", randomize=True)
        return (*param_config[:index], others[0], *param_config[index + 1 :])

    def get_param_neighbors(
        self, param_config: Point, index: int, neighbor_method: str, randomize: bool  # noqa: ARG002
    ) -> list[int]:  # fmt: skip
        """Return the other values of one parameter."""
        others = [value for value in self.params_values[index] if value != param_config[index]]
        if randomize:
            random.shuffle(others)
        return others

    def _listed(self) -> list[Point]:
        """Return all points of a small space; otherwise the starting points and random ones."""
        if self.size <= LISTED_POINTS:
            return [tuple(map(int, point)) for point in np.ndindex(*map(len, self.params_values))]
        return self.get_random_sample(LISTED_POINTS)

    def _draw(self) -> Point:
        return tuple(random.choice(values) for values in self.params_values)
