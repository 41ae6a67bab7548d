"""Exact number of distinct groupings of units into scopes, without enumerating them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product


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
