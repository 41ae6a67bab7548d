"""Landscapes of sktune's cost model of Atlas A3: the published model with 61 layers, and a smaller one.

All figures are simulated. On one stream a step is a sum over tasks, so a plan's time is assembled from pieces that are
computed once, and the optimum of the tied space is exact (``best_tied_saving``). A test compares both with
``StepModel``.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, cached_property
from itertools import groupby, product

import numpy as np

from benchmarks.landscape import Truth
from benchmarks.landscapes.failing import Fails
from benchmarks.landscapes.optimum import Savings, best_tied_saving
from benchmarks.real_pairs import set_values
from sktune.core.layout import Layout
from sktune.core.outcome import ScopeTime
from sktune.core.plan import Option, Options, Plan
from sktune.core.space import LAYERS_PER_SCOPE, NEW, OUT, SearchSpace, limit_of
from sktune.sim.constants import Constants, load_constants
from sktune.sim.deployment import deploy
from sktune.sim.launch import first_use_us, gaps_us, head_us, superkernel_gaps_us, with_first_uses
from sktune.sim.operators import Operator
from sktune.sim.superkernel import busy_us, fuse
from sktune.sim.trace import trace_operators
from sktune.targets.base import Target
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import Request, bind_space, space_spec

NOISE = 0.003
LONG_GAPS_US = {
    "dispatch_gap_us": 1.0, "gap_into_mix_us": 0.0, "gap_out_of_mix_us": 0.0, "head_us": 1.0, "head_per_aiv_us": 0.0,
    "head_per_aic_us": 0.0, "first_use_us": 0.0, "barrier_mix_us": 1.5, "early_start_us": 0.75, "icache_fetch_us": 1.0,
}  # fmt: skip
"""The first estimates of A3, where all results were measured, and all kernels have hooks for early start: with the gaps
of A2 hardly more than noise is gained."""


def with_long_gaps(target: Target, layout: Layout) -> tuple[tuple[Operator, ...], Constants]:
    """Return the operators of a target, and the constants of the landscapes; see ``LONG_GAPS_US``."""
    constants = set_values(load_constants(), LONG_GAPS_US)
    operators = deploy(trace_operators(target, layout, constants), constants)
    every_type = tuple(sorted({operator.type for operator in operators}))
    hooked = constants.early_start_types.model_copy(update={"value": every_type})
    return operators, constants.model_copy(update={"early_start_types": hooked})


class SimulatedLandscape:
    """See ``benchmarks.landscape.Landscape``.

    Args:
        name: for tables.
        space: tied; its options are those of SuperKernel scopes.
        operators: of one stream, unfused.
        constants: of the device.
    """

    def __init__(self, name: str, space: SearchSpace, operators: Sequence[Operator], constants: Constants) -> None:
        self.name, self.space, self.noise = name, space, NOISE
        self._pieces = _Pieces(operators, constants, scope_options(space))
        self._position = {unit.name: index for index, unit in enumerate(space.layout.units)}
        self._range = self._operator_ranges(operators)
        self._last = len(operators) - 1

    def over(self, space: SearchSpace, name: str) -> "SimulatedLandscape":
        """Return the same landscape with a space that has other starting points."""
        landscape = copy(self)
        landscape.space, landscape.name = space, name
        return landscape

    @property
    def baseline_ms(self) -> float:
        """See ``Landscape.baseline_ms``."""
        return self._pieces.alone_ms(0, self._last)

    @cached_property
    def best_ms(self) -> float:
        """See ``Landscape.best_ms``."""
        return self.best_without(lambda first, last: False)

    def best_without(self, fails: Fails) -> float:
        """See ``benchmarks.landscapes.failing.Thinnable``."""
        layout = self.space.layout
        units = groupby(layout.units, key=lambda unit: unit.name if unit.layer is None else unit.layer)
        segments = [list(inside) for _, inside in units]
        kinds = [
            inside[0].name if inside[0].layer is None else layout.layers[inside[0].layer].kind for inside in segments
        ]
        lengths = dict(zip(kinds, map(len, segments), strict=True))
        limits = [limit_of(value) for value in self.space.choices[LAYERS_PER_SCOPE]]
        outside = [unit.name for unit in layout.units if unit.layer is None]

        def saving_ms(first: int, last: int) -> Savings:
            saving = self._saving_ms(first, last)
            return np.full_like(saving, -np.inf) if fails(first, last) else saving

        return self.baseline_ms - float(best_tied_saving(kinds, lengths, limits, saving_ms, outside).max())

    def evaluate(self, plan: Plan) -> Truth:
        """See ``Landscape.evaluate``."""
        self.space.layout.check(plan)
        total_ms, reached, before = 0.0, 0, 0
        times: list[ScopeTime] = []
        for scope in plan.scopes:
            units = self._position[scope.first], self._position[scope.last]
            first, last = self._operators_of(*units)
            total_ms += self._gap(reached, first - 1, before, units[0] - 1, times)
            latency_ms = float(self._pieces.fused_ms(first, last)[self._pieces.index(scope.options)])
            times.append(ScopeTime(scope.first, scope.last, True, self._pieces.alone_ms(first, last), latency_ms))
            total_ms += latency_ms
            reached, before = last + 1, units[1] + 1
        total_ms += self._gap(reached, self._last, before, len(self._position) - 1, times)
        return Truth(total_ms, scope_times=tuple(times))

    def _gap(self, first: int, last: int, first_unit: int, last_unit: int, times: list[ScopeTime]) -> float:
        """Return the time of the operators between two scopes; only gaps with units are observed."""
        if first > last:
            return 0.0
        latency_ms = self._pieces.alone_ms(first, last)
        if first_unit <= last_unit:
            units = self.space.layout.units
            gap = ScopeTime(units[first_unit].name, units[last_unit].name, False, latency_ms, latency_ms)
            times.append(gap)
        return latency_ms

    def _saving_ms(self, first: int, last: int) -> Savings:
        inside = self._operators_of(first, last)
        return self._pieces.alone_ms(*inside) - self._pieces.fused_ms(*inside)

    def _operators_of(self, first: int, last: int) -> tuple[int, int]:
        return self._range[first][0], self._range[last][1]

    def _operator_ranges(self, operators: Sequence[Operator]) -> list[tuple[int, int]]:
        """Return first and last operator of each unit; every unit of a decoder layer has some."""
        ranges: dict[str, tuple[int, int]] = {}
        for index, operator in enumerate(operators):
            if operator.unit is not None:
                ranges[operator.unit] = ranges.get(operator.unit, (index, index))[0], index
        return [ranges[unit.name] for unit in self.space.layout.units]


class _Pieces:
    """Times of runs of operators, in ms: unfused, and in one scope for each set of options."""

    def __init__(self, operators: Sequence[Operator], constants: Constants, options: Sequence[Options]) -> None:
        assert len({operator.stream for operator in operators}) == 1
        operators = with_first_uses(operators)
        self._operators, self._constants = operators, constants
        self._index = {chosen: index for index, chosen in enumerate(options)}
        self._fusion = [dict(chosen) for chosen in options]
        self._gap_us = gaps_us(operators, constants)
        self._gap_us[0] = 0.0  # nothing comes before
        alone = [
            wait + head_us(operator, constants) + first_use_us(operator, constants) + busy_us(operator, constants)
            for wait, operator in zip(self._gap_us, operators, strict=True)
        ]
        self._alone_until = np.cumsum([0.0, *alone]) / 1e3
        classes: dict[Operator, int] = {}
        bare = (replace(op, name="", unit=None, module="", position=0, after=()) for op in operators)
        self._class = [classes.setdefault(operator, len(classes)) for operator in bare]
        self._superkernels: dict[tuple[int, ...], tuple[str, Savings]] = {}
        self._known: dict[tuple[int, int], Savings] = {}
        runs = [list(run) for _, run in groupby(range(len(operators)), key=lambda index: operators[index].can_fuse)]
        self._run_of = [number for number, run in enumerate(runs) for _ in run]
        self._ends = [(run[0], run[-1]) for run in runs]
        self._runs_until = np.cumsum([np.zeros(len(options)), *(self._run_ms(*ends) for ends in self._ends)], axis=0)

    def index(self, options: Options) -> int:
        """Return the index of a scope's options in arrays."""
        return self._index[options]

    def alone_ms(self, first: int, last: int) -> float:
        """Return the time of the operators ``first`` to ``last``, unfused."""
        return float(self._alone_until[last + 1] - self._alone_until[first])

    def fused_ms(self, first: int, last: int) -> Savings:
        """Return their time in one scope, which splits at operators that cannot be fused."""
        if (first, last) not in self._known:
            begin, end = self._run_of[first], self._run_of[last]
            if begin == end:
                self._known[first, last] = self._run_ms(first, last)
            else:
                between = self._runs_until[end] - self._runs_until[begin + 1]
                ends = self._run_ms(first, self._ends[begin][1]) + self._run_ms(self._ends[end][0], last)
                self._known[first, last] = between + ends
        return self._known[first, last]

    def _run_ms(self, first: int, last: int) -> Savings:
        if not self._operators[first].can_fuse:
            return np.full(len(self._fusion), self.alone_ms(first, last))
        key = tuple(self._class[first : last + 1])
        if key not in self._superkernels:
            operators = self._operators[first : last + 1]
            kernels = [fuse(operators, options, self._constants) for options in self._fusion]
            assert not any(kernel.hang for kernel in kernels), kernels[0].hang
            self._superkernels[key] = kernels[0].kind, np.array([kernel.duration_us for kernel in kernels]) / 1e3
        kind, durations_ms = self._superkernels[key]
        before_us, after_us = superkernel_gaps_us(kind, self._operators[first], self._operators[last], self._constants)
        longer_us = before_us * (first > 0) + after_us * (last < len(self._operators) - 1)
        return durations_ms + (self._gap_us[first] + longer_us) / 1e3


def scope_options(space: SearchSpace) -> list[Options]:
    """Return the distinct options that the space gives to a scope."""
    one_scope: dict[str, Option] = {name: choices[0] for name, choices in space.choices.items()}
    one_scope |= {name: OUT for name, choices in space.choices.items() if NEW in choices}
    one_scope[space.parameter(space.layout.units[0])] = NEW
    combinations = product(*(space.choices[name] for name in space.option_names))
    options = (dict(zip(space.option_names, values, strict=True)) for values in combinations)
    return list(dict.fromkeys(space.plan({**one_scope, **chosen}).scopes[0].options for chosen in options))


@cache
def simulated(name: str, model: str, scale: str) -> SimulatedLandscape:
    """Return the landscape of a preset on one simulated die, traced on shapes alone."""
    request = Request(model, backend="sim", scale=scale)
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    target = load(spec)
    layout = trace_layout(target, wanted)
    operators, constants = with_long_gaps(target, layout)
    return SimulatedLandscape(name, bind_space(wanted, layout, spec), operators, constants)


def sim_61(seed: int) -> SimulatedLandscape:  # noqa: ARG001 - nothing in it is random
    """The published DeepSeek-V3: 3 dense and 58 MoE layers."""
    return simulated("sim-61", "deepseek-v3", "full")


def sim_61_bare(seed: int) -> SimulatedLandscape:
    """The same with a single starting point, which reaches 0.43 of the gain: the search must find the rest."""
    whole = sim_61(seed)
    space = replace(whole.space, starting_points=whole.space.starting_points[:1])
    return whole.over(space, "sim-61-bare")


def sim_8(seed: int) -> SimulatedLandscape:  # noqa: ARG001
    """DeepSeek-V3 at scale ``small``: 1 dense and 7 MoE layers."""
    return simulated("sim-8", "deepseek-v3", "small")


SIMULATED: Mapping[str, Callable[[int], SimulatedLandscape]] = {
    "sim-61": sim_61,
    "sim-61-bare": sim_61_bare,
    "sim-8": sim_8,
}
