"""Segments: all runs of units that one scope may cover, in classes of equal runs, and the features of each class.

Two runs of the same unit types, such as ``self_attn .. mlp`` in any MoE layer, are one class: whatever is learned about
one applies to all.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sktune.core.layout import OUTSIDE, Layout
from sktune.core.plan import Plan

Ints = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of the features of segments: its name, and the group that it shares a prior with."""

    group: str
    name: str


class SegmentCatalogue:
    """The segments of a layout.

    Attributes:
        n_units: number of units in the layout.
        class_of: class by first and last position, shape (n_units, n_units); -1 where no scope is allowed.
        first, last, length: positions of one segment of each class, and its number of units, shape (n_classes,).
        features: the columns of ``matrix``.
        matrix: features of each class, shape (n_classes, n_features): counts of units and inner borders by type,
            and terms for its length.
        single: ``matrix`` in single precision, for computations over all classes at every proposal.
        of_operators: columns of ``matrix`` that a segment's operators determine.
        small: columns of ``matrix`` that options may affect: the scope itself, its length, and its units by type.

    Args:
        layout: the units.
        max_layers: how many layers one scope may span; ``math.inf`` for all.
    """

    def __init__(self, layout: Layout, max_layers: float) -> None:
        self.layout = layout
        self.n_units = len(layout.units)
        self._position = {unit.name: index for index, unit in enumerate(layout.units)}
        self.types = unit_types(layout)
        names = list(dict.fromkeys(self.types))
        codes = np.array([names.index(name) for name in self.types])
        self.class_of = _classes(codes, _last_allowed(layout, max_layers))
        firsts, lasts = np.nonzero(self.class_of >= 0)
        _, where = np.unique(self.class_of[firsts, lasts], return_index=True)
        self.first, self.last = firsts[where], lasts[where]
        self.length = (self.last - self.first + 1).astype(float)
        self.features, self.matrix = self._describe()
        self.single = self.matrix.astype(np.float32)
        groups = ("scope", "unit", "unit type")
        self.of_operators = [index for index, feature in enumerate(self.features) if feature.group == "captured work"]
        self.small = np.array([index for index, feature in enumerate(self.features) if feature.group in groups])

    def positions(self, plan: Plan) -> list[tuple[int, int]]:
        """Return first and last position of each scope of ``plan``."""
        return [(self._position[scope.first], self._position[scope.last]) for scope in plan.scopes]

    def cuts(self, plan: Plan) -> list[int]:
        """Return the positions at which a scope begins right after another one."""
        return [first for (_, last), (first, _) in pairwise(self.positions(plan)) if first == last + 1]

    def border(self, position: int) -> str:
        """Return the type of the border before the unit at ``position``."""
        return f"{self.types[position - 1]} | {self.types[position]}"

    def name(self, segment: int) -> str:
        """Return a class's name for people."""
        first, last = self.first[segment], self.last[segment]
        units = self.layout.units[first : last + 1]
        layers = len({unit.layer for unit in units} - {None})
        if first == last:
            return self.types[int(first)]
        return f"{self.types[int(first)]} .. {self.types[int(last)]}" + (f" over {layers} layers" if layers > 1 else "")

    def digest(self, segment: int) -> str:
        """Return a name of a class that it has in every layout: a digest of its types in their order."""
        types = self.types[int(self.first[segment]) : int(self.last[segment]) + 1]
        return hashlib.sha256("\n".join(types).encode()).hexdigest()[:12]

    def _describe(self) -> tuple[tuple[Feature, ...], Matrix]:
        units = self.layout.units
        length = self.length
        crossing = np.array([0.0] + [float(left.layer != right.layer) for left, right in pairwise(units)])
        borders = [""] + [self.border(position) for position in range(1, self.n_units)]
        columns: list[tuple[str, str, Matrix]] = [
            ("scope", "scope", np.ones(len(length))),
            ("unit", "unit", length),
            ("crossing", "crossing", self._inner(crossing)),
        ]
        for group, labels, count in (
            ("unit key", [unit.key for unit in units], self._covered),
            ("unit type", self.types, self._covered),
            ("border type", borders, self._inner),
        ):
            for label in dict.fromkeys(label for label in labels if label):
                values = count(np.array([float(label == other) for other in labels]))
                if values.any():
                    columns.append((group, label, values))
        for name in ("operators", "written_bytes"):
            inside = np.array([float(getattr(unit.work, name)) for unit in units])
            between = np.array([0.0, *(float(getattr(unit.work_between, name)) for unit in units[:-1])])
            if inside.any():  # in units of a typical unit
                columns.append(("captured work", name, (self._covered(inside) + self._inner(between)) / inside.mean()))
        for label in dict.fromkeys(self.types):
            count_of = self._covered(np.array([float(label == other) for other in self.types]))
            columns.append(("beside", f"beside {label}", np.where(count_of > 0, length - count_of, 0.0)))
        for knot in _knots(int(length.max())):
            columns.append(("length", f"beyond {knot}", np.maximum(0.0, length - knot)))
            columns.append(("length step", f"more than {knot}", (length > knot).astype(float)))
        features = tuple(Feature(group, name) for group, name, _ in columns)
        return features, np.column_stack([values for _, _, values in columns])

    def _covered(self, per_unit: Matrix) -> Matrix:
        sums = np.concatenate([[0.0], np.cumsum(per_unit)])
        covered: Matrix = sums[self.last + 1] - sums[self.first]
        return covered

    def _inner(self, per_border: Matrix) -> Matrix:
        """Sum over the borders inside; ``per_border[i]`` belongs to the border before unit ``i``."""
        sums = np.cumsum(per_border)
        inner: Matrix = sums[self.last] - sums[self.first]
        return inner


def unit_types(layout: Layout) -> list[str]:
    """Return the type of each unit: the kind of its layer, and its name there."""
    return [f"{OUTSIDE if unit.layer is None else layout.layers[unit.layer].kind}.{unit.key}" for unit in layout.units]


def _knots(longest: int) -> list[int]:
    knots = [2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512]
    return [knot for knot in knots if knot < longest]


def _last_allowed(layout: Layout, max_layers: float) -> Ints:
    """Return for each unit the last one that a scope beginning with it may cover."""
    units = layout.units
    allowed = np.empty(len(units), dtype=np.int64)
    last = 0
    for first, unit in enumerate(units):
        last = max(last, first)
        while last + 1 < len(units):
            following = units[last + 1]
            layers = {member.layer for member in units[first : last + 2]} - {None}
            if following.place != unit.place or len(layers) > max_layers:
                break
            last += 1
        allowed[first] = last
    return allowed


def _classes(codes: Ints, last_allowed: Sequence[int] | Ints) -> Ints:
    """Number the runs of equal type sequences, shorter ones first."""
    n = len(codes)
    table = np.full((n, n), -1, dtype=np.int64)
    starts = np.arange(n)
    run = np.zeros(n, dtype=np.int64)  # the run's identity among those of its length
    known = 0
    for length in range(1, n + 1):
        keep = starts + length - 1 <= np.asarray(last_allowed)[starts]
        starts, run = starts[keep], run[keep]
        if not len(starts):
            break
        ends = starts + length - 1
        _, run = np.unique(run * (codes.max() + 1) + codes[ends], return_inverse=True)
        table[starts, ends] = known + run
        known += int(run.max()) + 1
    return table
