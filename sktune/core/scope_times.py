"""Scope times: the time of each piece of a step, by the units in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sktune.core.layout import Layout
from sktune.core.outcome import ScopeTime
from sktune.core.plan import Scope

DECIMALS = 6
"""Of a millisecond: whole nanoseconds, finer than any clock used here, to keep records short."""


@dataclass(frozen=True, slots=True)
class Part:
    """A timed part of a step; ``scope`` is None outside of scopes."""

    scope: Scope | None
    baseline_ms: float
    latency_ms: float


def scope_times(layout: Layout, parts: Sequence[Part]) -> tuple[ScopeTime, ...]:
    """Return the pieces that make up ``parts``, in execution order: every unit is in exactly one.

    Consecutive parts outside of scopes form one gap. Time outside of any unit is added to the piece before it, or at
    the start to the one after it, so that the pieces add up to the parts.
    """
    names = [unit.name for unit in layout.units]
    place = {name: index for index, name in enumerate(names)}
    pieces: list[_Piece] = []
    gap = _Piece(0, 0, False)
    reached = 0
    for part in parts:
        if part.scope is None:
            gap.add(part.baseline_ms, part.latency_ms)
            continue
        first, last = place[part.scope.first], place[part.scope.last]
        scope = _Piece(first, last, True, part.baseline_ms, part.latency_ms)
        pieces += _placed(gap, reached, first, pieces[-1] if pieces else scope)
        pieces.append(scope)
        gap, reached = _Piece(0, 0, False), last + 1
    pieces += _placed(gap, reached, len(names), pieces[-1] if pieces else None)
    return tuple(
        ScopeTime(names[piece.first], names[piece.last], piece.in_scope,
                  round(piece.baseline_ms, DECIMALS), round(piece.latency_ms, DECIMALS))
        for piece in pieces
    )  # fmt: skip


@dataclass(slots=True)
class _Piece:
    first: int
    last: int
    in_scope: bool
    baseline_ms: float = 0.0
    latency_ms: float = 0.0

    def add(self, baseline_ms: float, latency_ms: float) -> None:
        self.baseline_ms += baseline_ms
        self.latency_ms += latency_ms


def _placed(gap: _Piece, first: int, end: int, neighbour: _Piece | None) -> list[_Piece]:
    """Return the gap as a piece of units ``first`` to ``end - 1``; if there are none, add its time to ``neighbour``."""
    if first < end:
        return [_Piece(first, end - 1, False, gap.baseline_ms, gap.latency_ms)]
    if neighbour:
        neighbour.add(gap.baseline_ms, gap.latency_ms)
    return []
