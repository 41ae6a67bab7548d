"""Max-sum: the joint maximum over many variables of a sum whose terms have few variables each.

Variables are eliminated one by one, the one with the smallest table first, for a batch of problems.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
