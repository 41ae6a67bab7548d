"""Every plan of a space in a fixed order, from simple to complex."""

from collections.abc import Iterator
from itertools import combinations, product

from optuna.samplers import BaseSampler

from sktune.core.space import SearchSpace, Values
from sktune.samplers.procedure import Procedure, ProcedureSampler
from sktune.study.strategy import Strategy


def _grid(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001 - nothing is random
    return ProcedureSampler(space, _walk)


GRID = Strategy("grid", _grid, starts_alone=True)
"""Walks the whole space: first plans with one parameter set, then with two, and so on."""


def _walk(space: SearchSpace) -> Procedure:
    point: Values = space.simplest
    for point in points(space):
        yield point
    return point


def points(space: SearchSpace) -> Iterator[Values]:
    """Return all points of ``space``, by the number of parameters that differ from the simplest one."""
    simplest = space.simplest
    others = {
        name: tuple(value for value in choices if value != simplest[name]) for name, choices in space.choices.items()
    }
    for count in range(len(others) + 1):
        for names in combinations(others, count):
            for values in product(*(others[name] for name in names)):
                yield {**simplest, **dict(zip(names, values, strict=True))}
