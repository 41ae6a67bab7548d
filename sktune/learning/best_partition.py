"""Partitioning: the best legal plan if every scope has a value and values add up, found exactly.

Dynamic programming over positions, for a batch of problems (draws of a model, combinations of options). If the layers
of a kind share their choices, the inside of a kind is solved for each way in which its first and last scope can connect
to its neighbours, and these ways are combined by variable elimination (max-sum on a small graph).

A template is the units that layers of a kind share, and how scopes may run between them. A scope is inside a template,
runs from the tail of one into the head of the next, or covers some of them completely. A shape is the set of templates
that may be covered completely; for each shape, all connections are known beforehand.

The joint maximum is found by max-sum: variables are eliminated one by one, the one with the smallest table first, for a
batch of problems.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from sktune.core.space import JOIN, LAYERS_PER_SCOPE, NEW, OUT, SearchSpace, Segment, limit_of
from sktune.learning.segments import SegmentCatalogue

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


Values = npt.NDArray[np.float64] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class Factor:
    """A table over variables; the last axis is the problem."""

    variables: tuple[str, ...]
    table: Values


class Elimination:
    """Maximises a sum of factors over all their variables."""

    def __init__(self, factors: Sequence[Factor]) -> None:
        self._steps: list[tuple[str, tuple[str, ...], Values]] = []
        remaining = list(factors)
        while variables := list(dict.fromkeys(name for factor in remaining for name in factor.variables)):
            name = min(variables, key=lambda name: _size(remaining, name))
            involved = [factor for factor in remaining if name in factor.variables]
            others = tuple(dict.fromkeys(other for factor in involved for other in factor.variables if other != name))
            joined = sum(_aligned(factor, (name, *others)) for factor in involved)
            assert isinstance(joined, np.ndarray)
            self._steps.append((name, others, joined))
            remaining = [factor for factor in remaining if name not in factor.variables]
            remaining.append(Factor(others, joined.max(axis=0)))
        self.score: Values = np.asarray(sum(factor.table for factor in remaining))

    def assignment(self, problem: int = 0) -> dict[str, int]:
        """Return the best value of each variable."""
        chosen: dict[str, int] = {}
        for name, others, joined in reversed(self._steps):
            at = tuple(chosen[other] for other in others)
            chosen[name] = int(np.argmax([row[(*at, problem)] for row in joined]))
        return chosen


def _size(factors: Sequence[Factor], name: str) -> int:
    sizes: dict[str, int] = {}
    for factor in factors:
        if name in factor.variables:
            sizes |= dict(zip(factor.variables, factor.table.shape, strict=False))
    return math.prod(sizes.values())


def _aligned(factor: Factor, variables: Sequence[str]) -> Values:
    order = [factor.variables.index(name) for name in variables if name in factor.variables]
    table = factor.table.transpose(*order, len(order))
    shape = [factor.table.shape[factor.variables.index(name)] if name in factor.variables else 1 for name in variables]
    return table.reshape(*shape, table.shape[-1])


Choices = dict[str, bool | int | str]


@dataclass(frozen=True)
class Solution:
    """The best plan of each problem.

    Attributes:
        score: total value, shape (n_problems,); 0 for the plan without scopes.
        decode: takes the index of a problem; returns the parameters of its best plan, without options.
    """

    score: Values
    decode: Callable[[int], Choices]


class Partitioner:
    """Finds the best plan of a space; see the module."""

    def __init__(self, space: SearchSpace, catalogue: SegmentCatalogue) -> None:
        self._space, self._catalogue = space, catalogue
        segments = space.segments
        is_free = len({segment.template for segment in segments}) == len(segments)
        self._solver: _FreeSolver | _TiedSolver = (
            _FreeSolver(space, catalogue) if is_free else _TiedSolver(space, catalogue)
        )

    def solve(self, value: Values, cut: Values) -> Solution:
        """Return the best plans.

        Args:
            value: of a scope by class, shape (n_classes, n_problems); ``-inf`` for forbidden scopes.
            cut: value of a scope that begins right after another one, by its first position, shape (n_units,
                n_problems).
        """
        return self._solver.solve(value, cut)


class _FreeSolver:
    """For spaces in which every unit has a separate parameter: one pass over the positions."""

    def __init__(self, space: SearchSpace, catalogue: SegmentCatalogue) -> None:
        self._limits = space.choices.get(LAYERS_PER_SCOPE)
        self._parameters = [space.parameter(unit) for unit in space.layout.units]
        table = catalogue.class_of
        self._earliest = [int(np.argmax(table[: last + 1, last] >= 0)) for last in range(catalogue.n_units)]
        self._classes = [
            np.ascontiguousarray(table[first : last + 1, last]) for last, first in enumerate(self._earliest)
        ]

    def solve(self, value: Values, cut: Values) -> Solution:
        n, shape = len(self._classes), (len(self._classes) + 1, value.shape[1])
        cuts: Any = cut.astype(value.dtype)
        ends_in = np.full(shape, -math.inf, value.dtype)
        ends_out = np.zeros(shape, value.dtype)
        begins = np.zeros(shape, value.dtype)  # best value before a scope that begins here
        for last, classes in enumerate(self._classes):
            begins[last] = np.maximum(ends_out[last], ends_in[last] + cuts[last])
            inside = value[classes]
            inside += begins[self._earliest[last] : last + 1]
            ends_in[last + 1] = inside.max(axis=0)
            ends_out[last + 1] = np.maximum(ends_out[last], ends_in[last])

        def decode(problem: int) -> Choices:
            return self._decode(value[:, problem], begins[:, problem], ends_in[:, problem], ends_out[:, problem])

        return Solution(np.maximum(ends_in[n], ends_out[n]), decode)

    def _decode(self, value: Values, begins: Values, ends_in: Values, ends_out: Values) -> Choices:
        choices = [OUT] * len(self._classes)
        position = len(self._classes)
        in_scope = ends_in[position] > ends_out[position]
        while position > 0:
            if not in_scope:
                position -= 1
                in_scope = ends_in[position] > ends_out[position]
                continue
            last = position - 1
            first = self._earliest[last]
            first += int(np.argmax(value[self._classes[last]] + begins[first:position]))
            choices[first:position] = [NEW] + [JOIN] * (last - first)
            position = first
            in_scope = begins[position] > ends_out[position]
        values: Choices = dict(zip(self._parameters, choices, strict=True))
        if self._limits:
            values[LAYERS_PER_SCOPE] = max(self._limits, key=limit_of)
        return values


FORBIDDEN = -1e9
"""Stands for ``-inf`` where counts are multiplied with values."""


class _TiedSolver:
    """For spaces in which the layers of a kind share their parameters."""

    def __init__(self, space: SearchSpace, catalogue: SegmentCatalogue) -> None:
        self._space, self._class_of = space, catalogue.class_of
        self._n_classes = len(catalogue.first)
        templates = Templates(space)
        self._templates, self._shapes = templates.by_name, templates.shapes
        self._tables = [self._link_tables(shape) for shape in self._shapes]

    def solve(self, value: Values, cut: Values) -> Solution:
        terms = np.maximum(np.vstack([value, cut, np.full((1, value.shape[1]), FORBIDDEN)]), FORBIDDEN)
        insides = {name: _Inside(template, self._class_of, terms, cut) for name, template in self._templates.items()}
        best = np.full(value.shape[1], -math.inf)
        chosen = np.zeros(value.shape[1], dtype=int)
        eliminations = []
        for number, (shape, tables) in enumerate(zip(self._shapes, self._tables, strict=True)):
            factors = [
                Factor((f"begin {name}", f"end {name}"), inside.table)
                for name, inside in insides.items()
                if name not in shape.whole
            ]
            factors += [
                Factor(names, (counts @ terms).reshape(*sizes, value.shape[1])) for names, sizes, counts in tables
            ]
            eliminations.append(Elimination(factors))
            score = eliminations[-1].score
            better = score > best
            best, chosen = np.where(better, score, best), np.where(better, number, chosen)

        def decode(problem: int) -> Choices:
            number = int(chosen[problem])
            return self._decode(self._shapes[number], eliminations[number].assignment(problem), insides, problem)

        return Solution(best, decode)

    def _link_tables(self, shape: Shape) -> list[tuple[tuple[str, ...], tuple[int, ...], Any]]:
        """Return for each pair of variables how often each class and cut counts, by the variables' values."""
        cells: dict[tuple[str, ...], dict[tuple[int, int], float]] = {}
        sizes: dict[tuple[str, ...], tuple[int, ...]] = {}
        for link, count in shape.links:
            left = self._templates[link.left] if link.left else None
            right = self._templates[link.right] if link.right else None
            named = [(f"end {left.name}", left.ends)] if left else []
            named += [(f"begin {right.name}", right.begins)] if right else []
            names = tuple(name for name, _ in named)
            sizes[names] = tuple(size for _, size in named)
            table = cells.setdefault(names, {})
            ends = range(left.ends) if left else (None,)
            begins = range(right.begins) if right else (None,)
            for cell, (end, begin) in enumerate(product(ends, begins)):
                has_tail = left is not None and end is not None and end < left.length
                for column in self._link_terms(link, end if has_tail else None, begin):
                    table[cell, column] = table.get((cell, column), 0.0) + count
        return [
            (names, sizes[names], _sparse(table, math.prod(sizes[names]), self._n_classes + len(self._class_of) + 1))
            for names, table in cells.items()
        ]

    def _link_terms(self, link: Link, tail: int | None, begin: int | None) -> Iterator[int]:
        """Yield the rows of the terms (classes, then cuts by position, then ``FORBIDDEN``) that a link adds."""
        end = -2  # last position of the scope before
        head = 0 if begin is None else max(0, begin - NEW_AT_FIRST)
        for first, last in link.without_tail if tail is None else link.with_tail:
            start = link.left_offset + tail if first is None and tail is not None else first
            stop = link.right_offset + head - 1 if last is None else last
            if start is None or stop < start:  # an empty head
                continue
            yield int(self._class_of[start, stop])  # -1, the last row, is forbidden
            if start == end + 1:
                yield self._n_classes + start
            end = stop
        if begin == NEW_AT_FIRST and end + 1 == link.right_offset:
            yield self._n_classes + link.right_offset

    def _decode(
        self, shape: Shape, chosen: Mapping[str, int], insides: "Mapping[str, _Inside]", problem: int
    ) -> Choices:
        choices: Choices = {}
        for name, template in self._templates.items():
            if name in shape.whole:
                of_template = [JOIN] * template.length
            else:
                of_template = insides[name].choices(chosen[f"begin {name}"], chosen[f"end {name}"], problem)
            for position, choice in enumerate(of_template):
                unit = self._space.layout.units[template.offset + position]
                choices[self._space.parameter(unit)] = choice
        if LAYERS_PER_SCOPE in self._space.choices:
            choices[LAYERS_PER_SCOPE] = shape.limit
        return choices


class _Inside:
    """The best partition of a template between its head and its tail, for every way to begin.

    Attributes:
        table: its value over all occurrences, shape (begins, ends, problems).
    """

    def __init__(self, template: Template, class_of: npt.NDArray[np.int64], terms: Values, cut: Values) -> None:
        length, offset, problems = template.length, template.offset, terms.shape[1]
        self._template = template
        window = class_of[offset : offset + length, offset : offset + length]
        self._value = terms[window]  # by first and last unit; -1, the last row, is forbidden
        self._cut = cut[offset : offset + length]
        shape = (template.begins, length + 1, problems)
        self._in, self._out, self._before = np.full(shape, -math.inf), np.full(shape, -math.inf), np.empty(shape)
        self._out[OUT_AT_FIRST, 1] = 0.0
        self._out[NEW_AT_FIRST, 0] = 0.0
        for head in range(1, length):
            self._in[NEW_AT_FIRST + head, head] = 0.0
        for position in range(length):
            self._before[:, position] = np.maximum(self._out[:, position], self._in[:, position] + self._cut[position])
            reached = (self._before[:, : position + 1] + self._value[: position + 1, position]).max(axis=1)
            np.maximum(self._in[:, position + 1], reached, out=self._in[:, position + 1])
            out = np.maximum(self._out[:, position], self._in[:, position])
            if position == 0:
                out[NEW_AT_FIRST] = -math.inf  # the first unit begins a scope
            np.maximum(self._out[:, position + 1], out, out=self._out[:, position + 1])
        self._before[:, length] = self._out[:, length]  # without a tail, the last unit is out
        self.table: Values = template.count * self._before

    def choices(self, begin: int, end: int, problem: int) -> list[str]:
        """Return the best choices of the units, given how the template begins and ends."""
        template = self._template
        head = max(0, begin - NEW_AT_FIRST)
        start = 1 if begin == OUT_AT_FIRST else head
        best = [OUT] * template.length
        best[:head] = [JOIN] * head
        best[end:] = [NEW] + [JOIN] * (template.length - end - 1) if end < template.length else []
        ends_in, ends_out = self._in[begin, :, problem], self._out[begin, :, problem]
        before = self._before[begin, :, problem]
        position, in_scope = end, bool(before[end] > ends_out[end])
        while position > start:
            if in_scope:
                reached = before[start:position] + self._value[start:position, position - 1, problem]
                first = start + int(np.argmax(reached))
                best[first:position] = [NEW] + [JOIN] * (position - first - 1)
                position, in_scope = first, bool(before[first] > ends_out[first])
            else:
                position -= 1
                in_scope = bool(ends_in[position] > ends_out[position])
        return best


def _sparse(table: Mapping[tuple[int, int], float], rows: int, columns: int) -> Any:
    entries = list(table)
    at = ([cell for cell, _ in entries], [column % columns for _, column in entries])
    return scipy.sparse.csr_array((list(table.values()), at), shape=(rows, columns))
