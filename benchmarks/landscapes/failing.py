"""Segments that fail, in any landscape: half of them crash the compiler, half change bits.

They are drawn from the seed, and are the same in all layers of a kind. ``failing-NAME`` is the landscape ``NAME`` of
``benchmarks/search.py`` with a fifth of its segments failing.
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
    """The failing segments of a layout, a ``share`` of all, drawn from ``seed``."""

    def __init__(self, layout: Layout, seed: int, share: float = FAILING_SHARE) -> None:
        self._layout, self._seed, self._share = layout, seed, share
        self._position = {unit.name: index for index, unit in enumerate(layout.units)}

    def fails(self, first: int, last: int) -> bool:
        """Return whether a scope over these units fails."""
        return self._reason(first, last) is not None

    def failure(self, plan: Plan) -> Truth | None:
        """Return how ``plan`` fails; None if it does not.

        The first scope that crashes ends the compile, and is reported. Only plans that compile can be compared: for
        half of the plans that change bits, the scopes that do are reported.
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
        """Return the identity of a scope, the same in all layers of a kind."""
        units = self._layout.units[first : last + 1]
        layers = [unit.layer for unit in units if unit.layer is not None]
        reach = layers[-1] - layers[0] if layers else 0
        return self._kind(units[0]), units[0].key, self._kind(units[-1]), units[-1].key, reach

    def _kind(self, unit: Unit) -> str:
        return "" if unit.layer is None else self._layout.layers[unit.layer].kind

    def _chance(self, what: object) -> float:
        """Return a number from 0 to 1 derived from ``what``, the same in every process."""
        digest = hashlib.sha256(repr((self._seed, what)).encode()).digest()
        return int.from_bytes(digest[:8], "big") / math.ldexp(1, 64)


class Thinnable(Landscape, Protocol):
    """A landscape whose optimum is also known without some of its segments."""

    def best_without(self, fails: Fails) -> float:
        """Return the true latency, in ms, of the best plan without scopes for which ``fails`` is true."""
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
        """See ``Landscape.evaluate``; a plan that changes bits has scope times."""
        failure = self._faults.failure(plan)
        if failure and failure.reason is Reason.CRASHED:
            return failure
        truth = self._landscape.evaluate(plan)
        if failure is None or truth.latency_ms is None:
            return truth
        return replace(failure, scope_times=truth.scope_times)


def with_failures(source: Callable[[int], Thinnable], seed: int) -> FailingLandscape:
    """Return the landscape of ``source`` for ``seed``, with failing segments drawn from the same seed."""
    return FailingLandscape(source(seed), seed)
