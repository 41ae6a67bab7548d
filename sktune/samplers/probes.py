"""Probes: trials in which every layer has a partition, and options, of its own.

One compile of a model with dozens of layers of one kind observes as many segments, each by its own time. A probe is no
plan of a space whose layers share parameters: it teaches, and is never the answer.
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
MOST_PROBES = 3
LEAST_LAYERS = 6
"""Layers of one kind from which on a probe tells more than a plan of the space."""
PROBE_UNCERTAINTY = 0.3
"""Share of the best plan's expected saving that is still to be found, above which a probe is worth a trial."""


class Prober:
    """Makes probes: plans in which every layer has a partition, and options, of its own."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        layout = learned.space.layout
        counts = Counter(layer.kind for layer in layout.layers)
        self._pays = max(counts.values(), default=0) >= LEAST_LAYERS
        free = replace(learned.space, per_layer=True, choices=_free_choices(learned.space))
        self._free = free
        self._partitioner = Partitioner(free, learned.catalogue) if self._pays else None

    def probe(self, posterior: Posterior, rng: np.random.Generator) -> Plan | None:
        """Return a probe, where one is likely to tell more than a plan of the space."""
        learned = self._learned
        if not self._partitioner or not learned.knows_scope_times or learned.feasibility.has_failures:
            return None
        if learned.probes >= MOST_PROBES or not learned.ranked:
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
        """Return the best plans of many draws, each cut to one layer, coarse and fine ones in turn."""
        assert self._partitioner
        learned, model = self._learned, self._learned.model
        layout = learned.space.layout
        count = len(layout.layers)
        draws = posterior.draw(count, rng)
        options = self._options_of_layers(count, rng)
        value = np.empty((len(learned.catalogue.first), count), np.float32)
        for chosen in dict.fromkeys(options):
            layers = [layer for layer, own in enumerate(options) if own == chosen]
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
        """Return options for each layer's scopes: each combination as often, of those that may change bits no sooner
        than the best plan's."""
        learned, changes_bits = self._learned, self._learned.feasibility.changes_bits
        allowed = changes_bits(self._options())
        trusted = [
            each.of_scope
            for each in learned.combinations
            if each.of_step == learned.incumbent.options and changes_bits(each.of_scope) <= allowed
        ]
        rounds = [rng.permutation(len(trusted)) for _ in range(0, count, len(trusted))]
        return [trusted[int(index)] for index in np.concatenate(rounds)[:count]]

    def _spans(self) -> list[tuple[int, int, int]]:
        """Return first and last position of each layer, and its number; what lies outside of layers joins one."""
        numbers: list[int] = []
        for unit in self._learned.space.layout.units:
            numbers.append(numbers[-1] if numbers and unit.layer is None else unit.layer or 0)
        starts = [index for index, number in enumerate(numbers) if index == 0 or number != numbers[index - 1]]
        ends = [*(start - 1 for start in starts[1:]), len(numbers) - 1]
        return [(start, end, numbers[start]) for start, end in zip(starts, ends, strict=True)]

    def _first_options(self) -> Point:
        return {name: self._free.choices[name][0] for name in self._free.option_names}


def _free_choices(space: SearchSpace) -> dict[str, tuple[Option, ...]]:
    """Return the parameters of the same space with one for each unit."""
    free = replace(space, per_layer=True)
    units: dict[str, tuple[Option, ...]] = {free.parameter(unit): (OUT, NEW, JOIN) for unit in space.layout.units}
    tied = {space.parameter(unit) for unit in space.layout.units}
    return units | {name: choices for name, choices in space.choices.items() if name not in tied}
