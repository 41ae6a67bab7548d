"""Search spaces: human-readable parameters, and the plan that each point stands for.

Every unit of a layer kind has a parameter: ``out`` (in no scope), ``new`` (starts a scope) or ``join``
(continues the scope before it); ``layers_per_scope`` limits how many consecutive layers one scope may
span; each option has a parameter, too. Every point is a legal plan. Different points may stand for the
same plan: ``join`` after ``out`` is ``new``.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from itertools import product
from typing import Literal

from pydantic import AliasChoices, Field

from sktune.core.documents import Document
from sktune.core.earlier import EarlierStudy
from sktune.core.errors import SpaceError, nearest
from sktune.core.layout import OUTSIDE, Layout, Unit
from sktune.core.plan import Option, Options, Plan, Scope
from sktune.core.scope_options import parse


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive units of one layer, or between layers.

    Attributes:
        template: segments with the same template share all their choices.
        length: number of units, at least 1.
        is_layer: whether it counts towards the limit of layers in one scope.
        breaks: indices of the units that a scope of the unit before must not continue into.
    """

    template: str
    length: int
    is_layer: bool
    breaks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The properties of a segment's inside that matter at its borders."""

    starts_in: bool
    ends_in: bool
    unbroken: bool
    """Whether one scope covers all its units."""


def count_groupings(segments: Sequence[Segment], limits: Sequence[float]) -> int:
    """Return how many sets of scopes are reachable, including the empty set.

    Args:
        segments: the units in execution order.
        limits: the choices for how many layers one scope may span; ``math.inf`` for all.
    """
    templates = {segment.template: segment for segment in segments}
    if len(templates) == len(segments):
        return _count_per_layer(segments, max(limits))
    shapes = {name: _shapes(segment.length, segment.breaks) for name, segment in templates.items()}
    total = 0
    for combination in product(*(shapes[name].items() for name in templates)):
        chosen = dict(zip(templates, (shape for shape, _ in combination), strict=True))
        inside = math.prod(count for _, count in combination)
        total += inside * _count_borders(segments, chosen, limits)
    return total


def _shapes(length: int, breaks: frozenset[int]) -> dict[_Shape, int]:
    """Return the number of groupings inside a segment of ``length`` units, by shape."""
    counts = {_Shape(True, True, True): 1, _Shape(False, False, False): 1}
    for unit in range(1, length):
        grown: dict[_Shape, int] = {}
        for shape, count in counts.items():
            for following in _followers(shape, can_join=unit not in breaks):
                grown[following] = grown.get(following, 0) + count
        counts = grown
    return counts


def _followers(shape: _Shape, *, can_join: bool) -> Iterator[_Shape]:
    yield _Shape(shape.starts_in, False, False)  # out
    yield _Shape(shape.starts_in, True, False)  # new
    if shape.ends_in and can_join:  # join; after a unit that is out, it would be the same as new
        yield _Shape(shape.starts_in, True, shape.unbroken)


def _count_borders(segments: Sequence[Segment], shapes: Mapping[str, _Shape], limits: Sequence[float]) -> int:
    """Return how many sets of crossed borders the first units' choices and the limits can make."""
    free = [name for name, shape in shapes.items() if shape.starts_in]
    seen: set[tuple[bool, ...]] = set()
    for joins in product((False, True), repeat=len(free)):
        joining = {name for name, join in zip(free, joins, strict=True) if join}
        seen.update(_crossed(segments, shapes, joining, limit) for limit in limits)
    return len(seen)


def _crossed(
    segments: Sequence[Segment], shapes: Mapping[str, _Shape], joining: set[str], limit: float
) -> tuple[bool, ...]:
    crossed = []
    layers = 0  # spanned so far by the scope that is open at the border
    is_open = False
    for segment in segments:
        shape = shapes[segment.template]
        may_cross = is_open and 0 not in segment.breaks and (not segment.is_layer or layers < limit)
        crosses = segment.template in joining and may_cross
        crossed.append(crosses)
        carried = layers if crosses and shape.unbroken else 0
        layers = carried + segment.is_layer
        is_open = shape.ends_in
    return tuple(crossed)


def _count_per_layer(segments: Sequence[Segment], limit: float) -> int:
    """Count by dynamic programming: borders are independent, so the widest limit includes all narrower ones."""
    states: dict[tuple[bool, int], int] = {(False, 0): 1}
    for segment in segments:
        grown: dict[tuple[bool, int], int] = {}
        for (is_open, layers), count_before in states.items():
            for shape, count in _shapes(segment.length, segment.breaks).items():
                may_cross = is_open and 0 not in segment.breaks and (not segment.is_layer or layers < limit)
                can_cross = shape.starts_in and may_cross
                for crosses in {False, can_cross}:
                    carried = layers if crosses and shape.unbroken else 0
                    state = (shape.ends_in, carried + segment.is_layer if shape.ends_in else 0)
                    grown[state] = grown.get(state, 0) + count_before * count
        states = grown
    return sum(states.values())


OUT, NEW, JOIN = "out", "new", "join"
LAYERS_PER_SCOPE = "layers_per_scope"
OPTION_STRING = "options"
"""In starting points, options as a string for ``super_kernel(label, options)``: ``stream-fusion=1:early-start=0``."""
ANY_KIND = "layer"
"""In starting points, ``layer.self_attn`` means that unit of every layer kind."""

MAX_CACHED_SCOPES = 16384

Values = Mapping[str, Option]


class SpaceSpec(Document):
    """The ``space:`` part of a YAML file, before it is bound to a model's layout."""

    units: list[str] | dict[str, list[str]] | None = None
    """Which modules inside a layer are units, for all kinds or by kind; None for the layer's children."""
    step_units: list[str] | None = None
    """Which modules outside of layers are units; None for all that are found."""
    per_layer: bool = Field(
        default=False, validation_alias=AliasChoices("per_layer", "untied"), serialization_alias="untied"
    )
    """Whether each layer has separate parameters instead of sharing those of its kind; ``untied`` in version 0.1."""
    layers_per_scope: list[int | Literal["all"]] = Field(default=[1, 2, "all"], min_length=1)
    options: dict[str, dict[str, dict[str, list[Option]]]] = {}
    """By backend, device type and option: the values to try; starting points use the first."""
    starting_points: dict[str, dict[str, Option]] = {}
    backend_starting_points: dict[str, dict[str, dict[str, Option]]] = {}
    """By backend: starting points that set its options. They come after the others."""


def _unchanged(options: Values) -> Values:
    return options


@dataclass(frozen=True, slots=True)
class OptionRules:
    """How a backend treats options.

    Attributes:
        defaults: the value of each option that is not given; a plan lists only values that differ.
        of_step: the options of the whole step instead of a scope.
        needs_scopes: those of them that have no effect on a plan without scopes.
        changes_bits: the values that often change bits.
        normalise: takes a scope's options and returns those that have an effect, so that plans that compile to the
            same thing are equal.
    """

    defaults: Values
    of_step: frozenset[str] = frozenset()
    needs_scopes: frozenset[str] = frozenset()
    normalise: Callable[[Values], Values] = _unchanged
    changes_bits: frozenset[tuple[str, Option]] = frozenset()


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A plan that is tried before anything is sampled.

    Attributes:
        name: for people.
        values: of every parameter.
        sets_options: whether it sets any option; if not, options have their first values, and any will do.
    """

    name: str
    values: Values
    sets_options: bool = False


@dataclass(frozen=True)
class SearchSpace:
    """Parameters and their choices for one layout.

    Attributes:
        layout: the units that plans are made of.
        choices: parameter name to its values, in a fixed order.
        options: how the backend treats the parameters that are options.
        per_layer: whether every layer has separate parameters.
        starting_points: distinct plans, in the order to try them.
        earlier: studies whose findings may hold here, too.
    """

    layout: Layout
    choices: Mapping[str, tuple[Option, ...]]
    options: OptionRules
    per_layer: bool
    starting_points: tuple[StartingPoint, ...] = ()
    earlier: tuple[EarlierStudy, ...] = ()

    @property
    def option_names(self) -> tuple[str, ...]:
        """The parameters that are options, of scopes or of the whole step."""
        return tuple(name for name in self.choices if name in self.options.defaults)

    @property
    def simplest(self) -> dict[str, Option]:
        """The point without scopes, with the first value of every other parameter."""
        return {name: OUT if choices == (OUT, NEW, JOIN) else choices[0] for name, choices in self.choices.items()}

    @cached_property
    def digest(self) -> str:
        """Digest of parameters, values and layout."""
        text = repr((self.layout.digest, sorted(self.choices.items()), sorted(self.options.defaults.items())))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """Exact number of distinct plans, including the empty one."""
        limits = [limit_of(value) for value in self.choices.get(LAYERS_PER_SCOPE, ("all",))]
        groupings = count_groupings(self.segments, limits)
        combinations = product(*(self.choices[name] for name in self.option_names))
        chosen = [self.chosen_options(dict(zip(self.option_names, values, strict=True))) for values in combinations]
        return (groupings - 1) * len(set(chosen)) + len({self._without_scopes(of_step) for _, of_step in chosen})

    def parameter(self, unit: Unit) -> str:
        """Name of the parameter of ``unit``."""
        if unit.layer is None:
            return f"{OUTSIDE}.{unit.key}"
        return (
            f"layers.{unit.layer}.{unit.key}" if self.per_layer else f"{self.layout.layers[unit.layer].kind}.{unit.key}"
        )

    @cached_property
    def _steps(self) -> tuple[tuple[str, int, int, bool], ...]:
        """Return for each unit its parameter, whether it is in a layer, whether it starts a new layer, and whether it
        has the same place as the unit before: cached, as every proposal builds plans of hundreds of units."""
        units = self.layout.units
        return tuple(
            (
                self.parameter(unit),
                int(unit.layer is not None),
                int(unit.layer is not None and unit.layer != before.layer),
                unit.place == before.place,
            )
            for before, unit in zip((units[:1] + units), units, strict=False)
        )

    def plan(self, values: Values) -> Plan:
        """Return the canonical plan that ``values`` stand for.

        Raises:
            SpaceError: a parameter is missing, or a value is not one of its choices.
        """
        self._check(values)
        limit = limit_of(values.get(LAYERS_PER_SCOPE, "all"))
        firsts: list[int] = []
        lasts: list[int] = []
        is_open, layers = False, 0
        for index, (parameter, in_layer, new_layer, may_join) in enumerate(self._steps):
            choice = values[parameter]
            if choice == OUT:
                is_open = False
            elif choice == JOIN and is_open and may_join and layers + new_layer <= limit:
                lasts[-1] = index
                layers += new_layer
            else:
                firsts.append(index)
                lasts.append(index)
                is_open, layers = True, in_layer
        of_scope, of_step = self.chosen_options(values)
        if not firsts:
            return Plan((), self._without_scopes(of_step))
        runs = zip(firsts, lasts, strict=True)
        return Plan(tuple(self._scope(first, last, of_scope) for first, last in runs), of_step)

    def _without_scopes(self, of_step: Options) -> Options:
        return tuple(option for option in of_step if option[0] not in self.options.needs_scopes)

    @cached_property
    def _scope(self) -> Callable[[int, int, Options], Scope]:
        """Return a function that makes a scope of positions; cached, as a search makes the same ones thousands of
        times."""
        units = self.layout.units
        return lru_cache(MAX_CACHED_SCOPES)(
            lambda first, last, options: Scope(units[first].name, units[last].name, options)
        )

    def chosen_options(self, values: Values) -> tuple[Options, Options]:
        """Return the options of every scope and those of the whole step, without those that have no effect."""
        defaults = self.options.defaults
        differing = {name: values[name] for name in self.option_names if values[name] != defaults[name]}
        of_step = {name: value for name, value in differing.items() if name in self.options.of_step}
        of_scope = {name: value for name, value in differing.items() if name not in of_step}
        return tuple(sorted(self.options.normalise(of_scope).items())), tuple(sorted(of_step.items()))

    def _check(self, values: Values) -> None:
        for name, choices in self.choices.items():
            if name not in values:
                raise SpaceError(f"parameter {name!r} has no value; choose one of {list(choices)}")
            if values[name] not in choices:
                raise SpaceError(f"{name} must be one of {list(choices)}, got {values[name]!r}")

    @cached_property
    def segments(self) -> list[Segment]:
        """The layout as runs of units of the same layer, or outside of layers."""
        segments: list[Segment] = []
        previous: int | str | None = "start"
        place = self.layout.units[0].place
        for unit in self.layout.units:
            if unit.layer == previous:
                last = segments[-1]
                breaks = last.breaks | ({last.length} if unit.place != place else set())
                segments[-1] = replace(last, length=last.length + 1, breaks=breaks)
            else:
                breaks = frozenset({0} if unit.place != place else ())
                segments.append(Segment(self._template(unit, len(segments)), 1, unit.layer is not None, breaks))
            previous, place = unit.layer, unit.place
        return segments

    def _template(self, unit: Unit, position: int) -> str:
        if unit.layer is None or self.per_layer:
            return f"segment {position}"
        return self.layout.layers[unit.layer].kind


def bind(spec: SpaceSpec, layout: Layout, options: Mapping[str, tuple[Option, ...]], rules: OptionRules) -> SearchSpace:
    """Bind ``spec`` to a model's ``layout`` and a backend's ``options`` (the values to try, by name).

    Raises:
        SpaceError: the space names a unit, kind or parameter that the model lacks.
    """
    bare = SearchSpace(layout, {}, rules, spec.per_layer)
    choices: dict[str, tuple[Option, ...]] = {bare.parameter(unit): (OUT, NEW, JOIN) for unit in layout.units}
    if len(layout.layers) > 1:
        choices[LAYERS_PER_SCOPE] = _layer_limits(spec, len(layout.layers))
    choices |= options
    space = SearchSpace(layout, choices, rules, spec.per_layer)
    points = [_starting_point(space, name, pattern) for name, pattern in spec.starting_points.items()]
    return replace(space, starting_points=_distinct(space, points or guide_points(space)))


def limit_of(value: Option) -> float:
    """Return a value of ``layers_per_scope`` as a number."""
    return math.inf if value == "all" else float(value)


def _layer_limits(spec: SpaceSpec, layers: int) -> tuple[Option, ...]:
    for value in spec.layers_per_scope:
        if value != "all" and value < 1:
            raise SpaceError(f"layers_per_scope must be a number from 1 up, or all; got {value!r}")
    # Limits that do not limit this model are equivalent: the widest is kept, as larger models have it, too.
    widest = max(spec.layers_per_scope, key=limit_of)
    limits = [value for value in spec.layers_per_scope if value == widest or limit_of(value) < layers]
    return tuple(dict.fromkeys(limits))


def _starting_point(space: SearchSpace, name: str, pattern: Values) -> StartingPoint:
    values = space.simplest
    options = parse(str(pattern[OPTION_STRING])) if OPTION_STRING in pattern else {}
    for key, wanted in {**pattern, **options}.items():
        value = _available_limit(space, wanted) if key == LAYERS_PER_SCOPE else wanted
        if key == OPTION_STRING or value is None:
            continue
        matches = [parameter for parameter in space.choices if _matches(parameter, key, space.layout)]
        if not matches:
            raise SpaceError(
                f"starting point {name!r} names {key!r}, which the model lacks{nearest(key, space.choices)}"
            )
        for parameter in matches:
            if value not in space.choices[parameter]:
                choices = list(space.choices[parameter])
                raise SpaceError(f"starting point {name!r}: {parameter} must be one of {choices}, got {value!r}")
            values[parameter] = value
    return StartingPoint(name, values, any(key in space.option_names for key in {**pattern, **options}))


def _available_limit(space: SearchSpace, wanted: Option) -> Option | None:
    """Return the choice that a limit of layers amounts to in this model; None if the limit is not a parameter."""
    limits = space.choices.get(LAYERS_PER_SCOPE)
    if limits is None:
        return None
    layers, widest = len(space.layout.layers), max(limits, key=limit_of)
    is_all = wanted == "all" or (isinstance(wanted, int) and wanted >= layers)
    return widest if is_all and limit_of(widest) >= layers else wanted


def _matches(parameter: str, pattern: str, layout: Layout) -> bool:
    if "." not in pattern:
        return parameter == pattern
    group, _, key = pattern.partition(".")
    kind, _, rest = parameter.partition(".")
    if not rest:
        return False
    if kind == "layers":  # layers.7.self_attn is of the kind of layer 7
        layer, _, rest = rest.partition(".")
        kind = layout.layers[int(layer)].kind
    in_group = kind != OUTSIDE if group == ANY_KIND else fnmatchcase(kind, group)
    return in_group and fnmatchcase(rest, key)


def guide_points(space: SearchSpace) -> list[StartingPoint]:
    """Return the scope guide's choices, as far as unit names reveal them, whatever the starting points of ``space``.

    Source: "Scope 决策树" in scope-analysis-guide.md of the skill model-infer-superkernel (hicann/cannbot-skills).
    """
    return [_starting_point(space, name, pattern) for name, pattern in _guide_patterns(space).items()]


def _guide_patterns(space: SearchSpace) -> dict[str, dict[str, Option]]:
    layout = space.layout
    keys = dict.fromkeys(key for keys in layout.kinds.values() for key in keys)
    attention = [key for key in keys if is_attention(key)]
    experts = [key for key in layout.kinds.get("moe", ()) if is_feed_forward(key)]
    limits = sorted(space.choices.get(LAYERS_PER_SCOPE, ()), key=limit_of)
    narrow: dict[str, Option] = {LAYERS_PER_SCOPE: limits[0]} if limits else {}
    wide: dict[str, Option] = {LAYERS_PER_SCOPE: limits[-1]} if limits else {}
    points: dict[str, dict[str, Option]] = {}
    if attention:
        points["attention only"] = {f"{ANY_KIND}.{key}": NEW for key in attention}
    if experts:
        points["MoE only"] = {f"moe.{key}": JOIN for key in experts}
    if attention and experts:
        points["attention + MoE"] = points["MoE only"] | points["attention only"]
    if layout.layers:
        points["each layer"] = {f"{ANY_KIND}.*": JOIN, **narrow}
        points["all layers"] = {f"{ANY_KIND}.*": JOIN, **wide}
    if any(unit.layer is None for unit in layout.units):
        points["whole step"] = {"*.*": JOIN, **wide}
    return points


def is_attention(key: str) -> bool:
    """Whether a unit's name says that it is an attention."""
    return _is_named(key, ("attn", "attention"))


def is_feed_forward(key: str) -> bool:
    """Whether a unit's name says that it is a feed-forward network, or a part of routed experts."""
    return _is_named(key, ("mlp", "moe", "expert", "ffn"))


def _is_named(key: str, parts: tuple[str, ...]) -> bool:
    # A post_attention_layernorm is not an attention.
    return any(part in key.lower() for part in parts) and "norm" not in key.lower()


def _distinct(space: SearchSpace, points: list[StartingPoint]) -> tuple[StartingPoint, ...]:
    plans = [(space.plan(point.values), point) for point in points]
    seen: dict[Plan, StartingPoint] = {}
    for plan, point in plans:
        if not plan.is_baseline:
            seen.setdefault(plan, point)
    return tuple(seen.values())
