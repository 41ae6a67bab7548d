"""Synthetic landscapes: a plan's saving is the sum of its scopes' savings, with parameters drawn from a seed.

A scope's saving is a sum over its units and inner borders, a fixed term, a mild quadratic penalty on its length, and a
term for every border of layers that it crosses; options scale the borders' part and add a term to each scope. The
variants break assumptions of a model of segments: some scopes fail, some neighbours interact, long scopes fall off a
cliff, one unit spoils every scope that contains it, or the optimum is far from the starting points.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from benchmarks.landscape import Truth
from benchmarks.landscapes.failing import FAILING_SHARE, Faults
from benchmarks.landscapes.optimum import Savings, best_tied_saving
from sktune.core.layout import Layer, Layout, Unit
from sktune.core.outcome import Reason, ScopeTime
from sktune.core.plan import Option, Options, Plan, Scope
from sktune.core.space import LAYERS_PER_SCOPE, OptionRules, SearchSpace, SpaceSpec, bind, limit_of

BASELINE_MS = 20.0
BEST_GAIN = 0.08
"""The best plan is this much faster than the baseline."""
NOISE = 0.003

DENSE = ("input_norm", "q_proj", "self_attn", "o_proj", "post_norm", "mlp")
MOE = ("input_norm", "q_proj", "self_attn", "o_proj", "post_norm", "gate", "dispatch", "experts", "combine")
SMALL_DENSE = ("input_norm", "self_attn", "post_norm", "mlp")
SMALL_MOE = ("input_norm", "self_attn", "post_norm", "gate", "experts")
OPTIONS: Mapping[str, tuple[Option, ...]] = {"fusion": (0, 1), "early": (1, 0, 2), "split": (4, 1, 2, 8)}
SMALL_OPTIONS: Mapping[str, tuple[Option, ...]] = {"fusion": (0, 1), "early": (1, 0, 2)}


@dataclass(frozen=True, slots=True)
class Traits:
    """How a variant differs from the plain landscape.

    Attributes:
        failing_share: share of the segments that fail, half by a crash and half by a mismatch.
        coupling: standard deviation of the term between adjacent scopes, relative to that of a unit's saving.
        longest: number of units beyond which a scope loses a lot; 0 for no such cliff.
        spoiler: whether scopes with one particular unit save nothing.
        is_shuffled: whether most units are better left out.
    """

    failing_share: float = 0.0
    coupling: float = 0.0
    longest: int = 0
    spoiler: bool = False
    is_shuffled: bool = False


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of savings, one entry for each unit of the layout; ``scale_ms`` converts them to ms."""

    unit: npt.NDArray[np.float64]
    border: npt.NDArray[np.float64]
    """Of the border before the unit."""
    coupling: npt.NDArray[np.float64]
    """Between a scope that ends before the unit and one that starts at it."""
    fixed: float
    per_length2: float
    border_factor: Savings
    per_scope: Savings


class SyntheticLandscape:
    """See ``benchmarks.landscape.Landscape``.

    Args:
        name: for tables.
        traits: how it differs from the plain landscape.
        seed: of all parameters.
        kinds: units of a layer, by kind.
        layers: the kind of each layer.
        options: option to its values; the first is the default.
    """

    def __init__(
        self,
        name: str,
        traits: Traits,
        seed: int,
        kinds: Mapping[str, tuple[str, ...]],
        layers: Sequence[str],
        options: Mapping[str, tuple[Option, ...]],
    ) -> None:
        self.name, self.baseline_ms, self.noise = name, BASELINE_MS, NOISE
        self.space = space_of(kinds, layers, options)
        self._traits = traits
        self._faults = Faults(self.space.layout, seed, traits.failing_share)
        self._units = self.space.layout.units
        self._position = {unit.name: index for index, unit in enumerate(self._units)}
        self._option_index = {chosen: index for index, chosen in enumerate(_combinations(options))}
        rng = np.random.default_rng(seed)
        self._terms = self._draw(rng, kinds, len(self._option_index))
        weights = self._tied(rng.lognormal(0.0, 0.7, size=sum(map(len, kinds.values()))), kinds)
        self._baseline_until = np.cumsum([0.0, *(BASELINE_MS * weights / weights.sum())])
        self._until = {
            "unit": np.cumsum([0.0, *self._terms.unit]),
            "border": np.cumsum([0.0, *self._terms.border]),
        }
        moe = [index for index, unit in enumerate(self._units) if self._kind(unit) == layers[-1]]
        self._spoiler = self._units[moe[rng.integers(1, len(kinds[layers[-1]]) - 1)]].key if traits.spoiler else ""
        self._savings: dict[tuple[int, int], Savings] = {}

    @cached_property
    def best_ms(self) -> float:
        """True latency of the best plan."""
        return self.baseline_ms * (1 - BEST_GAIN)

    @cached_property
    def scale_ms(self) -> float:
        """Milliseconds of one unit of saving, so that the best plan saves ``BEST_GAIN``."""
        return self.baseline_ms * BEST_GAIN / self._best_saving()

    def evaluate(self, plan: Plan) -> Truth:
        """See ``Landscape.evaluate``."""
        self.space.layout.check(plan)
        ranges = [(self._position[scope.first], self._position[scope.last]) for scope in plan.scopes]
        failure = self._faults.failure(plan)
        if failure and failure.reason is Reason.CRASHED:
            return failure
        pieces: list[ScopeTime] = []
        reached = 0
        for scope, (first, last) in zip(plan.scopes, ranges, strict=True):
            if first > reached:
                pieces.append(self._piece(reached, first - 1, None))
            saving = self._saving(first, last)[self._option_index[scope.options]]
            if pieces and pieces[-1].in_scope:
                saving += self._terms.coupling[first]
            pieces.append(self._piece(first, last, float(saving)))
            reached = last + 1
        if reached < len(self._units):
            pieces.append(self._piece(reached, len(self._units) - 1, None))
        truth = failure or Truth(sum(piece.latency_ms for piece in pieces))
        return replace(truth, scope_times=tuple(pieces))

    def _piece(self, first: int, last: int, saving: float | None) -> ScopeTime:
        baseline_ms = float(self._baseline_until[last + 1] - self._baseline_until[first])
        saved_ms = 0.0 if saving is None else saving * self.scale_ms
        names = self._units[first].name, self._units[last].name
        return ScopeTime(*names, saving is not None, baseline_ms, baseline_ms - saved_ms)

    def _kind(self, unit: Unit) -> str:
        assert unit.layer is not None
        return self.space.layout.layers[unit.layer].kind

    def _saving(self, first: int, last: int) -> Savings:
        if (first, last) not in self._savings:
            self._savings[first, last] = self._compute_saving(first, last)
        return self._savings[first, last]

    def _compute_saving(self, first: int, last: int) -> Savings:
        terms, length = self._terms, last - first + 1
        units = self._until["unit"][last + 1] - self._until["unit"][first]
        borders = self._until["border"][last + 1] - self._until["border"][first + 1]
        saving = units + borders * terms.border_factor + terms.fixed + terms.per_scope
        saving -= terms.per_length2 * length**2
        if self._traits.longest and length > self._traits.longest:
            saving -= 4.0 + 0.5 * (length - self._traits.longest)
        if self._spoiler and any(
            unit.key == self._spoiler and self._kind(unit) == self._kind(self._units[-1])
            for unit in self._units[first : last + 1]
        ):
            saving = np.minimum(saving, 0.0)
        result: Savings = saving
        return result

    def _feasible_saving(self, first: int, last: int) -> Savings:
        if self._faults.fails(first, last):
            return np.full(len(self._option_index), -np.inf)
        return self._saving(first, last)

    def _best_saving(self) -> float:
        if self._traits.coupling:
            return self._best_of_all()
        layout = self.space.layout
        kinds = [layer.kind for layer in layout.layers]
        lengths = {kind: len(keys) for kind, keys in layout.kinds.items()}
        limits = [limit_of(value) for value in self.space.choices[LAYERS_PER_SCOPE]]
        return float(best_tied_saving(kinds, lengths, limits, self._feasible_saving).max())

    def _best_of_all(self) -> float:
        """Return the best saving by enumeration, as adjacent scopes interact."""
        best = 0.0
        for ranges in _groupings(tuple(self.space.layout.kinds.items()), self._layer_kinds):
            saving = np.zeros(len(self._option_index))
            for first, last in ranges:
                saving += self._saving(first, last)
            saving += sum(self._terms.coupling[right[0]] for left, right in pairwise(ranges) if left[1] + 1 == right[0])
            best = max(best, float(saving.max()))
        return best

    @property
    def _layer_kinds(self) -> tuple[str, ...]:
        return tuple(layer.kind for layer in self.space.layout.layers)

    def _draw(self, rng: np.random.Generator, kinds: Mapping[str, tuple[str, ...]], combinations: int) -> _Terms:
        count = sum(map(len, kinds.values()))
        is_shuffled = self._traits.is_shuffled
        unit = rng.normal(-0.15, 0.5, count) if is_shuffled else rng.normal(0.3, 0.4, count)
        border = rng.normal(0.1, 0.5, count) if is_shuffled else rng.gamma(2.0, 0.3, count)
        coupling = rng.normal(0.0, self._traits.coupling, count)
        crossing = {pair: rng.normal(0.0, 0.8) for pair in product(kinds, repeat=2)}
        borders = self._tied(border, kinds)
        for index, (left, right) in enumerate(pairwise(self._units), start=1):
            if left.layer != right.layer:
                borders[index] = crossing[self._kind(left), self._kind(right)]
        factor, per_scope = rng.normal(0.0, 0.2, combinations), rng.normal(0.0, 0.15, combinations)
        effects = self._option_effects(rng)
        return _Terms(
            unit=self._tied(unit, kinds),
            border=borders,
            coupling=self._tied(coupling, kinds),
            fixed=float(rng.normal(-0.4, 0.2)),
            per_length2=0.004,
            border_factor=1 + effects[0] + 0.1 * factor,
            per_scope=effects[1] + 0.1 * per_scope,
        )

    def _option_effects(self, rng: np.random.Generator) -> tuple[Savings, Savings]:
        """Return the sum of the effects of each combination's values, on borders and on scopes."""
        effects = {
            (name, value): rng.normal(0.0, (0.15, 0.1)) if index else np.zeros(2)
            for name in self.space.option_names
            for index, value in enumerate(self.space.choices[name])
        }
        defaults = self.space.options.defaults
        rows = [
            sum((effects[name, {**defaults, **dict(chosen)}[name]] for name in defaults), np.zeros(2))
            for chosen in self._option_index
        ]
        of_border, of_scope = np.array(rows).T
        return of_border, of_scope

    def _tied(self, values: npt.NDArray[np.float64], kinds: Mapping[str, tuple[str, ...]]) -> npt.NDArray[np.float64]:
        """Return values for all units, the same in all layers of a kind."""
        names = [(kind, key) for kind, keys in kinds.items() for key in keys]
        of_key = dict(zip(names, values, strict=True))
        return np.array([of_key[self._kind(unit), unit.key] for unit in self._units])


def space_of(
    kinds: Mapping[str, tuple[str, ...]], layers: Sequence[str], options: Mapping[str, tuple[Option, ...]]
) -> SearchSpace:
    """Return the tied space over layers of these kinds, with the guide's starting points."""
    units = tuple(
        Unit(f"model.layers.{index}.{key}", key, index) for index, kind in enumerate(layers) for key in kinds[kind]
    )
    layout = Layout(units, tuple(Layer(f"model.layers.{index}", kind) for index, kind in enumerate(layers)))
    return bind(SpaceSpec(), layout, options, OptionRules({name: values[0] for name, values in options.items()}))


def _combinations(options: Mapping[str, tuple[Option, ...]]) -> list[Options]:
    defaults = {name: values[0] for name, values in options.items()}
    found = (dict(zip(options, values, strict=True)) for values in product(*options.values()))
    return [tuple(sorted((n, v) for n, v in chosen.items() if v != defaults[n])) for chosen in found]


@cache
def _groupings(
    kinds: tuple[tuple[str, tuple[str, ...]], ...], layers: tuple[str, ...]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return every grouping that the parameters of the space can express, as ranges of units."""
    space = space_of(dict(kinds), layers, {})
    position = {unit.name: index for index, unit in enumerate(space.layout.units)}
    plans: dict[Plan, None] = {}
    for values in product(*space.choices.values()):
        plans[space.plan(dict(zip(space.choices, values, strict=True)))] = None

    def range_of(scope: Scope) -> tuple[int, int]:
        return position[scope.first], position[scope.last]

    return tuple(tuple(map(range_of, plan.scopes)) for plan in plans)


def _full(name: str, traits: Traits, seed: int) -> SyntheticLandscape:
    layers = ("dense",) * 2 + ("moe",) * 6
    return SyntheticLandscape(name, traits, seed, {"dense": DENSE, "moe": MOE}, layers, OPTIONS)


def _small(name: str, traits: Traits, seed: int) -> SyntheticLandscape:
    layers = ("dense",) * 2 + ("moe",) * 3
    return SyntheticLandscape(name, traits, seed, {"dense": SMALL_DENSE, "moe": SMALL_MOE}, layers, SMALL_OPTIONS)


def plain(seed: int) -> SyntheticLandscape:
    """Sums over scopes, as a model of segments expects."""
    return _full("synthetic", Traits(), seed)


def deep(seed: int) -> SyntheticLandscape:
    """The same with 3 dense and 58 MoE layers, as in DeepSeek-V3."""
    layers = ("dense",) * 3 + ("moe",) * 58
    return SyntheticLandscape("synthetic-61", Traits(), seed, {"dense": DENSE, "moe": MOE}, layers, OPTIONS)


def failing(seed: int) -> SyntheticLandscape:
    """A fifth of the segments fail."""
    return _full("failing", Traits(failing_share=FAILING_SHARE), seed)


def coupled(seed: int) -> SyntheticLandscape:
    """A scope's saving depends on whether there is a scope right before it."""
    return _small("coupled", Traits(coupling=1.0), seed)


def cliff(seed: int) -> SyntheticLandscape:
    """Beyond some length a scope loses a lot."""
    return _full("cliff", Traits(longest=5), seed)


def spoiler(seed: int) -> SyntheticLandscape:
    """Any scope with one particular unit saves nothing."""
    return _full("spoiler", Traits(spoiler=True), seed)


def shuffled(seed: int) -> SyntheticLandscape:
    """Most units are better left out."""
    return _full("shuffled", Traits(is_shuffled=True), seed)


SYNTHETIC: Mapping[str, Callable[[int], SyntheticLandscape]] = {
    "synthetic": plain,
    "synthetic-61": deep,
    "failing": failing,
    "coupled": coupled,
    "cliff": cliff,
    "spoiler": spoiler,
    "shuffled": shuffled,
}
