"""Segments that fail, in any landscape: half of them crash the compiler, half change bits.

Which ones is drawn by the seed, and is the same in whichever layer of its kind a scope begins. ``failing-NAME`` is the
landscape ``NAME`` of ``benchmarks/search.py`` with a fifth of its segments failing.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from benchmarks.landscape import Landscape, Truth
from sktune.core.layout import Layout, Unit
from sktune.core.outcome import Reason
from sktune.core.plan import Plan

FAILING_SHARE = 0.2

Fails = Callable[[int, int], bool]
"""Whether a scope over the units ``first`` to ``last``, both included, fails."""


class Faults:
    """The segments of a layout that fail, ``share`` of them, drawn by ``seed``."""

    def __init__(self, layout: Layout, seed: int, share: float = FAILING_SHARE) -> None:
        self._layout, self._seed, self._share = layout, seed, share
        self._position = {unit.name: index for index, unit in enumerate(layout.units)}

    def fails(self, first: int, last: int) -> bool:
        """Return whether a scope over these units fails."""
        return self._reason(first, last) is not None

    def failure(self, plan: Plan) -> Truth | None:
        """Return how ``plan`` fails, None where it does not.

        The first scope that crashes ends a compile, and is known. Only what compiles can be compared: of a plan that
        changes bits the scopes that do are known for every other plan.
        """
        ranges = [(self._position[scope.first], self._position[scope.last]) for scope in plan.scopes]
        reasons = [self._reason(first, last) for first, last in ranges]
        if Reason.CRASHED in reasons:
            return Truth(None, Reason.CRASHED, plan.scopes[reasons.index(Reason.CRASHED)].label)
        if Reason.MISMATCH not in reasons:
            return None
        if self._chance(plan.digest) >= 0.5:
            return Truth(None, Reason.MISMATCH)
        changes_bits = [scope.label for scope, reason in zip(plan.scopes, reasons, strict=True) if reason]
        return Truth(None, Reason.MISMATCH, changes_bits[0], tuple(changes_bits))

    def _reason(self, first: int, last: int) -> Reason | None:
        chance = self._chance(self._segment(first, last)) / self._share if self._share else 1.0
        return None if chance >= 1 else Reason.CRASHED if chance < 0.5 else Reason.MISMATCH

    def _segment(self, first: int, last: int) -> tuple[str, str, str, str, int]:
        """Return what a scope is, whichever of its kind's layers it begins in."""
        units = self._layout.units[first : last + 1]
        layers = [unit.layer for unit in units if unit.layer is not None]
        reach = layers[-1] - layers[0] if layers else 0
        return self._kind(units[0]), units[0].key, self._kind(units[-1]), units[-1].key, reach

    def _kind(self, unit: Unit) -> str:
        return "" if unit.layer is None else self._layout.layers[unit.layer].kind

    def _chance(self, what: object) -> float:
        """Return a number from 0 to 1 that belongs to ``what``, in every process."""
        digest = hashlib.sha256(repr((self._seed, what)).encode()).digest()
        return int.from_bytes(digest[:8], "big") / math.ldexp(1, 64)


class Thinnable(Landscape, Protocol):
    """A landscape whose optimum is known without some of its segments, too."""

    def best_without(self, fails: Fails) -> float:
        """Return the true latency, in ms, of the best plan none of whose scopes ``fails``."""
        ...


class FailingLandscape:
    """``landscape`` with a share of its segments failing; see ``benchmarks.landscape.Landscape``."""

    def __init__(self, landscape: Thinnable, seed: int, share: float = FAILING_SHARE) -> None:
        self.name, self.space = f"failing-{landscape.name}", landscape.space
        self.baseline_ms, self.noise = landscape.baseline_ms, landscape.noise
        self._landscape, self._faults = landscape, Faults(landscape.space.layout, seed, share)

    @cached_property
    def best_ms(self) -> float:
        """See ``Landscape.best_ms``."""
        return self._landscape.best_without(self._faults.fails)

    def evaluate(self, plan: Plan) -> Truth:
        """See ``Landscape.evaluate``; scope times are those of the plan that runs."""
        failure = self._faults.failure(plan)
        if failure and failure.reason is Reason.CRASHED:
            return failure
        truth = self._landscape.evaluate(plan)
        if failure is None or truth.latency_ms is None:
            return truth
        return replace(failure, scope_times=truth.scope_times)


def with_failures(source: Callable[[int], Thinnable], seed: int) -> FailingLandscape:
    """Return what ``source`` makes of ``seed``, with the seed's failing segments."""
    return FailingLandscape(source(seed), seed)
