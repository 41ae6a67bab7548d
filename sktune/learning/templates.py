"""Templates: the units that layers of a kind share, and how scopes may run between them.

A scope is inside a template, runs from the tail of one into the head of the next, or covers some of them completely. A
shape is the set of templates that may be covered completely; for each shape, all connections are known beforehand.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from sktune.core.space import LAYERS_PER_SCOPE, SearchSpace, limit_of
from sktune.core.space_size import Segment

OUT_AT_FIRST, NEW_AT_FIRST = 0, 1
"""How a template begins; ``1 + n`` means that its first ``n`` units join the scope before."""


@dataclass(frozen=True)
class Template:
    """Units that share their parameters wherever they occur."""

    name: str
    length: int
    offset: int
    count: int
    is_layer: bool
    breaks: frozenset[int]

    @property
    def begins(self) -> int:
        """Number of ways to begin: out, new, or a head of 1 to length - 1 units."""
        return 1 + max(1, self.length)

    @property
    def ends(self) -> int:
        """Number of ways to end: a tail that begins at 0 to length - 1, or out."""
        return self.length + 1


@dataclass(frozen=True)
class Link:
    """The scopes, by first and last position, between two templates that are not covered completely.

    ``None`` as first position is the left template's tail, as last position the right one's head.
    """

    left: str | None
    between: tuple[str, ...]
    right: str | None
    left_offset: int
    right_offset: int
    with_tail: tuple[tuple[int | None, int | None], ...]
    without_tail: tuple[tuple[int | None, int | None], ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for links of equal value, whatever their position."""

        def relative(pieces: Sequence[tuple[int | None, int | None]]) -> tuple[tuple[int | None, int | None], ...]:
            base = self.right_offset
            return tuple(
                (None if first is None else first - base, None if last is None else last - base)
                for first, last in pieces
            )

        return self.left, self.between, self.right, relative(self.with_tail), relative(self.without_tail)


@dataclass(frozen=True)
class Shape:
    """The templates that scopes cover completely, under one limit of layers, and the resulting links."""

    whole: frozenset[str]
    limit: bool | int | str
    links: tuple[tuple[Link, int], ...]


class Templates:
    """The templates of a space.

    Attributes:
        by_name: each template, at its first occurrence.
        shapes: all shapes that differ in their links.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space, self._segments = space, space.segments
        self._offsets = np.concatenate([[0], np.cumsum([segment.length for segment in self._segments])]).tolist()
        counts = Counter(segment.template for segment in self._segments)
        self.by_name: dict[str, Template] = {}
        for segment, offset in zip(self._segments, self._offsets, strict=False):
            self.by_name.setdefault(
                segment.template,
                Template(
                    segment.template, segment.length, offset, counts[segment.template], segment.is_layer, segment.breaks
                ),
            )
        self.shapes = self._all_shapes()

    def _all_shapes(self) -> list[Shape]:
        passable = [name for name, template in self.by_name.items() if not template.breaks - {0}]
        limits = sorted(self._space.choices.get(LAYERS_PER_SCOPE, ("all",)), key=limit_of, reverse=True)
        shapes: dict[object, Shape] = {}
        for chosen in product((False, True), repeat=len(passable)):
            whole = frozenset(name for name, is_whole in zip(passable, chosen, strict=True) if is_whole)
            for limit in limits:
                links = self._links(whole, limit_of(limit))
                counts = Counter(link.key for link in links)
                distinct = {link.key: link for link in links}
                key = (whole, frozenset(counts.items()))
                shapes.setdefault(
                    key, Shape(whole, limit, tuple((link, counts[key]) for key, link in distinct.items()))
                )
        return list(shapes.values())

    def _links(self, whole: frozenset[str], limit: float) -> list[Link]:
        links: list[Link] = []
        broken = [index for index, segment in enumerate(self._segments) if segment.template not in whole]
        for left, right in zip([None, *broken], [*broken, None], strict=True):
            first = 0 if left is None else left + 1
            stop = len(self._segments) if right is None else right
            left_segment = None if left is None else self._segments[left]
            right_segment = None if right is None else self._segments[right]
            if left_segment is None and right_segment is None and not whole:
                continue
            links.append(
                Link(
                    left_segment.template if left_segment else None,
                    tuple(segment.template for segment in self._segments[first:stop]),
                    right_segment.template if right_segment else None,
                    0 if left is None else self._offsets[left],
                    self._offsets[stop],
                    self._pieces(first, stop, right_segment, limit, left_segment) if left_segment else (),
                    self._pieces(first, stop, right_segment, limit, None),
                )
            )
        return links

    def _pieces(
        self, first: int, stop: int, right: Segment | None, limit: float, tail: Segment | None
    ) -> tuple[tuple[int | None, int | None], ...]:
        """Return the scopes between two segments that are not covered completely, within the limit of layers."""
        pieces: list[tuple[int | None, int | None]] = []
        start: int | None = None
        is_open, layers = tail is not None, 0 if tail is None else int(tail.is_layer)
        for index in range(first, stop):
            segment = self._segments[index]
            if not (is_open and 0 not in segment.breaks and (not segment.is_layer or layers < limit)):
                if is_open:
                    pieces.append((start, self._offsets[index] - 1))
                start, layers, is_open = self._offsets[index], 0, True
            layers += segment.is_layer
        border = self._offsets[stop] - 1
        if right is None:
            return (*pieces, (start, border)) if is_open else tuple(pieces)
        # Whether the head joins is the right one's choice: with an empty head the scope ends at the border.
        if is_open and 0 not in right.breaks and (not right.is_layer or layers < limit):
            return (*pieces, (start, None))
        if is_open:
            pieces.append((start, border))
        return (*pieces, (border + 1, None))
