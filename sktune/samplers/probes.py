"""Probes: trials in which every layer has a different partition and different options.

One compile of a model with dozens of layers of one kind observes dozens of segments, each by its own time. A probe is
not a plan of a space whose layers share parameters: the model learns from it, but it is never the result.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from sktune.core.plan import Option, Options, Plan, Scope
from sktune.core.space import JOIN, NEW, OUT, SearchSpace
from sktune.learning.best_partition import Partitioner
from sktune.learning.history import Learned, Point
from sktune.learning.savings import Posterior

DRAWS = 8
MAX_PROBES = 3
MIN_LAYERS = 6
"""Number of layers of one kind from which a probe is more informative than a plan of the space."""
PROBE_UNCERTAINTY = 0.3
"""Share of the best plan's expected saving that is yet to be found, above which a probe is worth a trial."""


class Prober:
    """Makes probes; see the module."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        layout = learned.space.layout
        counts = Counter(layer.kind for layer in layout.layers)
        self._pays = max(counts.values(), default=0) >= MIN_LAYERS
        free = replace(learned.space, per_layer=True, choices=_free_choices(learned.space))
        self._free = free
        self._partitioner = Partitioner(free, learned.catalogue) if self._pays else None

    def probe(self, posterior: Posterior, rng: np.random.Generator) -> Plan | None:
        """Return a probe if it is likely to be more informative than a plan of the space."""
        learned = self._learned
        if not self._partitioner or not learned.knows_scope_times or learned.feasibility.has_failures:
            return None
        if learned.probes >= MAX_PROBES or not learned.ranked:
            return None
        draws = posterior.draw(DRAWS, rng)
        value = learned.model.value(draws, [self._options()]) + posterior.draw_unknown(DRAWS, rng)
        best = self._partitioner.solve(value, learned.model.cut(draws, 1)).score
        incumbent = draws @ learned.model.row(learned.incumbent)
        if float((best - incumbent).mean()) < PROBE_UNCERTAINTY * float(best.mean()):
            return None
        plan = self._patchwork(posterior, rng)
        return plan if plan.scopes and plan not in learned.seen else None

    def _options(self) -> Options:
        scopes = self._learned.incumbent.scopes
        return scopes[0].options if scopes else ()

    def _patchwork(self, posterior: Posterior, rng: np.random.Generator) -> Plan:
        """Return a plan in which each layer is cut from the best plan of another draw, from coarse to fine scopes."""
        assert self._partitioner
        learned, model = self._learned, self._learned.model
        layout = learned.space.layout
        count = len(layout.layers)
        draws = posterior.draw(count, rng)
        options = self._options_of_layers(count, rng)
        value = np.empty((len(learned.catalogue.first), count), np.float32)
        for chosen in dict.fromkeys(options):
            layers = [layer for layer, of_layer in enumerate(options) if of_layer == chosen]
            value[:, layers] = model.value(draws[layers], [chosen])
        value += posterior.draw_unknown(count, rng)
        reach = np.ptp(value[learned.catalogue.last == learned.catalogue.first]) or posterior.chosen.unit_sd
        value += reach * np.linspace(-1.0, 1.0, count)[rng.permutation(count)]
        solution = self._partitioner.solve(value, model.cut(draws, 1))
        plans = [self._free.plan({**solution.decode(layer), **self._first_options()}) for layer in range(count)]
        scopes: list[Scope] = []
        for first, last, layer in self._spans():
            for begins, ends in learned.catalogue.positions(plans[layer]):
                start, end = max(begins, first), min(ends, last)
                if start <= end:
                    units = layout.units
                    scopes.append(Scope(units[start].name, units[end].name, options[layer]))
        return Plan(tuple(scopes), learned.incumbent.options)

    def _options_of_layers(self, count: int, rng: np.random.Generator) -> list[Options]:
        """Return options for each layer's scopes: equally often each combination that has no value that often changes
        bits except for those of the best plan."""
        learned, changes_bits = self._learned, self._learned.feasibility.changes_bits
        allowed = changes_bits(self._options())
        trusted = [
            combination.of_scope
            for combination in learned.combinations
            if combination.of_step == learned.incumbent.options and changes_bits(combination.of_scope) <= allowed
        ]
        rounds = [rng.permutation(len(trusted)) for _ in range(0, count, len(trusted))]
        return [trusted[int(index)] for index in np.concatenate(rounds)[:count]]

    def _spans(self) -> list[tuple[int, int, int]]:
        """Return first and last position of each layer, and its number; units outside of layers join one."""
        numbers: list[int] = []
        for unit in self._learned.space.layout.units:
            numbers.append(numbers[-1] if numbers and unit.layer is None else unit.layer or 0)
        starts = [index for index, number in enumerate(numbers) if index == 0 or number != numbers[index - 1]]
        ends = [*(start - 1 for start in starts[1:]), len(numbers) - 1]
        return [(start, end, numbers[start]) for start, end in zip(starts, ends, strict=True)]

    def _first_options(self) -> Point:
        return {name: self._free.choices[name][0] for name in self._free.option_names}


def _free_choices(space: SearchSpace) -> dict[str, tuple[Option, ...]]:
    """Return the parameters of the same space with a separate one for each unit."""
    free = replace(space, per_layer=True)
    units: dict[str, tuple[Option, ...]] = {free.parameter(unit): (OUT, NEW, JOIN) for unit in space.layout.units}
    shared = {space.parameter(unit) for unit in space.layout.units}
    return units | {name: choices for name, choices in space.choices.items() if name not in shared}
