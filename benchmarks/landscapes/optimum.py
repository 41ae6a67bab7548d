"""The best plan of a tied space (layers of a kind share parameters) with additive savings: exact, without enumeration.

Layers of one kind are partitioned alike, so a layer's inside is solved by dynamic programming for each length of its
first and last run of joined units; only those lengths, and whether the first unit joins, matter at layers' borders.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

Savings = npt.NDArray[np.float64]
"""One saving for each combination of options."""
Saving = Callable[[int, int], Savings]
"""Saving of a scope over the units ``first`` to ``last``, both included; minus infinity if it fails."""


@dataclass(frozen=True, slots=True)
class _Template:
    """One partition of a layer, as far as it matters at the borders; ``inside`` is the largest saving of the rest."""

    first_run: int
    last_run: int
    is_one_scope: bool
    joins: bool
    inside: Savings


def best_tied_saving(
    kinds: Sequence[str],
    lengths: Mapping[str, int],
    limits: Sequence[float],
    saving: Saving,
    uncounted: Collection[str] = (),
) -> Savings:
    """Return the greatest saving for each combination of options.

    Args:
        kinds: the kind of each layer; units are numbered through all layers.
        lengths: number of units in a layer of each kind.
        limits: the choices of ``layers_per_scope``; infinity for ``all``.
        saving: of one scope, independent of the rest of the plan.
        uncounted: kinds that are not layers, and do not count towards the limits.
    """
    starts = np.cumsum([0, *(lengths[kind] for kind in kinds)]).tolist()
    names = list(dict.fromkeys(kinds))
    templates = [list(_templates(starts[kinds.index(name)], lengths[name], saving)) for name in names]
    counts = [kinds.count(name) for name in names]
    best = np.zeros_like(saving(0, 0))
    for chosen in product(*templates):
        inside = sum((count * each.inside for count, each in zip(counts, chosen, strict=True)), np.zeros_like(best))
        of_kind = dict(zip(names, chosen, strict=True))
        layers = [of_kind[kind] for kind in kinds]
        joins = any(each.joins for each in chosen)
        counts_layer = [kind not in uncounted for kind in kinds]
        runs = {tuple(_border_runs(layers, starts, counts_layer, limit)) for limit in (limits if joins else limits[:1])}
        for found in runs:
            total = inside.copy()
            for first, last in found:
                total += saving(first, last)
            np.maximum(best, total, out=best)
    return best


def _templates(start: int, length: int, saving: Saving) -> Iterator[_Template]:
    inside = _best_inside(start, length, saving)
    nothing = np.zeros_like(saving(start, start))
    for joins in (False, True):
        yield _Template(length, length, True, joins, nothing)
    for first_run, last_run in product(range(length), repeat=2):
        begin, end = max(first_run, 1), length - max(last_run, 1)
        if first_run + last_run > length or (begin > end and length > 1):
            continue
        rest = inside[begin, end] if begin < end else nothing
        for joins in (False, True) if first_run else (False,):
            yield _Template(first_run, last_run, False, joins, rest)


def _best_inside(start: int, length: int, saving: Saving) -> dict[tuple[int, int], Savings]:
    """Return the largest saving within units ``begin`` to ``end - 1`` of a layer."""
    best: dict[tuple[int, int], Savings] = {}
    for begin in range(length + 1):
        best[begin, begin] = np.zeros_like(saving(start, start))
        for end in range(begin + 1, length + 1):
            value = best[begin, end - 1]
            for first in range(begin, end):
                value = np.maximum(value, best[begin, first] + saving(start + first, start + end - 1))
            best[begin, end] = value
    return best


def _border_runs(
    layers: Sequence[_Template], starts: Sequence[int], counted: Sequence[bool], limit: float
) -> Iterator[tuple[int, int]]:
    """Yield the scopes that touch a border of a layer, by their first and last unit."""
    opened: tuple[int, int] | None = None  # first unit, and layers spanned
    for number, layer in enumerate(layers):
        start, end = starts[number], starts[number + 1]
        crosses = layer.joins and opened is not None and (opened[1] < limit or not counted[number])
        if opened is not None and not crosses:
            yield opened[0], start - 1
        first, reached = (
            (opened[0], opened[1] + counted[number])
            if crosses and opened is not None
            else (start, int(counted[number]))
        )
        if layer.is_one_scope:
            opened = first, reached
            continue
        if layer.first_run:
            yield first, start + layer.first_run - 1
        opened = (end - layer.last_run, int(counted[number])) if layer.last_run else None
    if opened is not None:
        yield opened[0], starts[-1] - 1
