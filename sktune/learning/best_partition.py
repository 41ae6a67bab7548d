"""Partitioning: the best legal plan if every scope has a value and values add up, found exactly.

Dynamic programming over positions, for a batch of problems (draws of a model, combinations of options). If the layers
of a kind share their choices, the inside of a kind is solved for each way in which its first and last scope can connect
to its neighbours, and these ways are combined by variable elimination (max-sum on a small graph).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from sktune.core.space import JOIN, LAYERS_PER_SCOPE, NEW, OUT, SearchSpace, limit_of
from sktune.learning.elimination import Elimination, Factor, Values
from sktune.learning.segments import SegmentCatalogue
from sktune.learning.templates import NEW_AT_FIRST, OUT_AT_FIRST, Link, Shape, Template, Templates

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
