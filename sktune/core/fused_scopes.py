"""What the scopes of a plan became: which of their operators the compiler put into one SuperKernel."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FusedPart:
    """Consecutive operators of a scope that became one SuperKernel, or that run as kernels of their own.

    Attributes:
        operators: how many.
        superkernel: the SuperKernel's kernel type or name; empty for kernels of their own.
        types: of the operators that run as kernels of their own.
    """

    operators: int
    superkernel: str = ""
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FusedScope:
    """One scope, or several that became the same.

    Attributes:
        labels: of the scopes.
        parts: in execution order.
        inside: types of the operators in SuperKernels, if they are known.
    """

    labels: tuple[str, ...]
    parts: tuple[FusedPart, ...]
    inside: tuple[str, ...] = ()

    @property
    def superkernels(self) -> int:
        """The number of SuperKernels that each scope became."""
        return sum(bool(part.superkernel) for part in self.parts)


@dataclass(frozen=True, slots=True)
class SeenTypes:
    """Types of operators that trials have shown.

    Attributes:
        fused: that a compiler has put into SuperKernels wherever they were in a scope.
        alone: that it never has.
    """

    fused: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()

    @classmethod
    def of(cls, scopes: Iterable[FusedScope]) -> "SeenTypes":
        """Return the types in scopes; one that was fused in one place and not in another is neither."""
        scopes = tuple(scopes)
        inside = frozenset(kind for scope in scopes for kind in scope.inside)
        outside = frozenset(kind for scope in scopes for part in scope.parts for kind in part.types)
        return cls(inside - outside, outside - inside)


def alike_together(scopes: Iterable[FusedScope]) -> tuple[FusedScope, ...]:
    """Return scopes that became the same as one entry."""
    labels: dict[FusedScope, list[str]] = {}
    for scope in scopes:
        labels.setdefault(replace(scope, labels=()), []).extend(scope.labels)
    return tuple(replace(scope, labels=tuple(names)) for scope, names in labels.items())
