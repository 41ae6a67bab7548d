"""Names of plans by their shape: "whole step", "each layer, 61 scopes", "self_attn of each layer, 61 scopes"."""

from collections import Counter
from collections.abc import Iterator, Sequence

from sktune.core.language import Sentences
from sktune.core.layout import OUTSIDE, Layout
from sktune.core.outcome import BASELINE, BASELINE_REPEAT
from sktune.core.plan import Option, Options, Plan, Scope, options_text
from sktune.reports.texts import TEXTS

ENGLISH = Sentences(TEXTS, "en")
REFERENCES = {
    BASELINE: "final.baseline",
    BASELINE_REPEAT: "final.baseline_again",
    "uncompiled": "final.uncompiled",
    "torch.compile(mode='max-autotune')": "final.max_autotune",
}
"""What finalists are compared with in the final comparison, with the keys of their names."""
MAX_GROUPS = 2
"""Most kinds of scopes that a name lists."""
MOST = 0.75
"""Share of the scopes, or of the units, that gives a plan with more kinds its name."""


def plan_name(plan: Plan, layout: Layout | None, say: Sentences = ENGLISH) -> str:
    """Return a plan's shape in a few words; plans that differ only in options have the same name."""
    count = len(plan.scopes)
    if not count:
        return say("shape.none")
    scopes = say.counted(count, "scope")
    if layout is None:
        return scopes
    spans = [(first, last) for first, last, _ in _placed(plan, layout)]
    if spans == [(0, len(layout.units) - 1)]:
        return say("shape.whole_step")
    groups = Counter(_shape(first, last, layout, say) for first, last in spans)
    if len(groups) > MAX_GROUPS:
        return say("shape.named", shape=_mixed(groups, spans, layout, say), scopes=scopes)
    parts = [names for (kind, names, _), times in groups.items() if kind == "part" and times == len(layout.layers)]
    if len(parts) == len(groups):
        shape = say("shape.part", part=say("shape.and").join(parts))
    else:
        names = (_group(group, times, layout, say) for group, times in groups.items())
        shape = say("shape.and").join(dict.fromkeys(names))
    return say("shape.named", shape=shape, scopes=scopes)


def plan_options(plan: Plan) -> str:
    """Return the options of all scopes and of the step, each once."""
    return options_text(_all_options(plan))


def _all_options(plan: Plan) -> Options:
    of_scopes = dict.fromkeys(option for scope in plan.scopes for option in scope.options)
    return (*of_scopes, *plan.options)


def _mixed(
    groups: "Counter[tuple[str, str, int]]", spans: Sequence[tuple[int, int]], layout: Layout, say: Sentences
) -> str:
    """Return what most scopes of a plan are, or else how much of the step they cover."""
    (group, times), *_ = groups.most_common(1)
    if times >= MOST * len(spans):
        return say("shape.mostly", shape=_group(group, times, layout, say))
    lengths = [last - first + 1 for first, last in spans]
    if max(lengths) >= MOST * len(layout.units):
        return say("shape.mostly_one")
    return say("shape.pieces") if sum(lengths) == len(layout.units) else say("shape.mixed")


def _placed(plan: Plan, layout: Layout) -> Iterator[tuple[int, int, Scope]]:
    """Yield the first and last position of each scope, as far as the layout has its units."""
    position = {unit.name: index for index, unit in enumerate(layout.units)}
    for scope in plan.scopes:
        if scope.first in position and scope.last in position:
            yield position[scope.first], position[scope.last], scope


def _shape(first: int, last: int, layout: Layout, say: Sentences) -> tuple[str, str, int]:
    """Return the kind of a scope: ``layers`` with their number, ``part`` of a layer, ``outside``, or ``across``."""
    units = layout.units
    inside = units[first : last + 1]
    layers = list(dict.fromkeys(unit.layer for unit in inside))
    begins, ends = _is_edge(first, -1, layout), _is_edge(last, 1, layout)
    if None not in layers and begins and ends:
        return "layers", "", len(layers)
    way = "shape.range" if len(layers) == 1 else "shape.range_next" if len(layers) == 2 else "shape.range_over"
    ends_of = {"first": inside[0].key, "last": inside[-1].key, "layers": len({*layers} - {None})}
    names = inside[0].key if len(inside) == 1 else say(way, **ends_of)
    if layers == [None]:
        return "outside", names, 1
    if len(layers) == 1:
        return "part", names, 1
    return "across", names, len(layers)


def _is_edge(position: int, step: int, layout: Layout) -> bool:
    """Whether a layer begins (``step`` -1) or ends (1) at this unit."""
    neighbour = position + step
    units = layout.units
    if not 0 <= neighbour < len(units):
        return units[position].layer is not None
    return units[neighbour].layer != units[position].layer


def _group(shape: tuple[str, str, int], times: int, layout: Layout, say: Sentences) -> str:
    kind, names, layers = shape
    if kind == "layers" and layers == len(layout.layers):
        return say("shape.all_layers")
    if kind == "layers" and layers == 1:
        return say("shape.each_layer") if times == len(layout.layers) else say("shape.some_layers", count=times)
    if kind == "layers":
        return say("shape.runs_of_layers", layers=layers)
    if kind == "part":
        is_each = times == len(layout.layers)
        return say("shape.part", part=names) if is_each else say("shape.part_of_some", part=names, count=times)
    return names


def kind_of(unit: int, layout: Layout) -> str:
    """Return the layer kind of the unit at a position; ``step`` outside of layers."""
    layer = layout.units[unit].layer
    return OUTSIDE if layer is None else layout.layers[layer].kind


def trial_name(number: int, plan: Plan, layout: Layout | None, say: Sentences = ENGLISH) -> str:
    """Return a plan's name with the number of its trial."""
    return say("shape.of_trial", name=plan_name(plan, layout, say), number=number)


def distinct_names(plans: Sequence[Plan], layout: Layout | None, say: Sentences = ENGLISH) -> list[str]:
    """Return names that tell ``plans`` apart as far as shape and options do: plans of one shape, by their options."""
    names = [plan_name(plan, layout, say) for plan in plans]
    shared: dict[str, set[tuple[str, Option]]] = {}
    for name, plan in zip(names, plans, strict=True):
        shared[name] = shared.get(name, {*_all_options(plan)}) & {*_all_options(plan)}
    own = (
        options_text(tuple(option for option in _all_options(plan) if option not in shared[name]))
        for name, plan in zip(names, plans, strict=True)
    )
    return [f"{name}; {options}" if options else name for name, options in zip(names, own, strict=True)]


def spans_and_options(plan: Plan, layout: Layout) -> list[tuple[int, int, int]]:
    """Return each scope's first and last position, and a number that is equal for scopes with equal options."""
    numbers = {options: number for number, options in enumerate(dict.fromkeys(scope.options for scope in plan.scopes))}
    return [(first, last, numbers[scope.options]) for first, last, scope in _placed(plan, layout)]
