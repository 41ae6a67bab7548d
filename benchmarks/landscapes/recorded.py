"""Recorded landscapes: every plan of a small space, really compiled, verified and measured.

``benchmarks/record_landscape.py`` writes the files ``NAME.json.gz`` beside this module; the space is ``NAME.yaml``.
"""

import gzip
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.landscape import FAILURES, Truth
from benchmarks.landscapes.failing import Fails
from sktune.core.codec import decoded
from sktune.core.errors import BadInputError
from sktune.core.layout import Layout
from sktune.core.outcome import Outcome, Reason, ScopeTime
from sktune.core.plan import Plan, Scope
from sktune.core.space import SearchSpace
from sktune.targets.presets import load_space
from sktune.tuning.request import Request, bind_space

FOLDER = Path(__file__).parent
FORMAT_VERSION = 1
ENDING = ".json.gz"
_NAME = re.compile(r"(.+)-(float32|bfloat16)(?:-(\d+)x(\d+))?")


class RecordedLandscape:
    """See ``benchmarks.landscape.Landscape``. The recorded figures are taken as the truth.

    A probe is not a plan of the space: it is assembled from the times of its scopes in recorded plans, with the same
    options.

    Args:
        name: for tables.
        space: bound to the recorded layout.
        record: as written by ``record_landscape.py``.

    Raises:
        BadInputError: the record has another format, or lacks plans of the space.
    """

    def __init__(self, name: str, space: SearchSpace, record: Mapping[str, Any]) -> None:
        if record["version"] != FORMAT_VERSION:
            raise BadInputError(f"{name}: format {record['version']}, this is {FORMAT_VERSION}; record it again")
        self.name, self.space = name, space
        self.baseline_ms: float = record["baseline_ms"]
        units = [unit.name for unit in space.layout.units]
        self._truths = {plan_of(entry, units): self._truth(entry, units) for entry in record["plans"]}
        if len(self._truths) != space.size - 1:
            raise BadInputError(
                f"{name}: {len(self._truths)} of {space.size - 1} plans are recorded; record the others"
            )
        widths = [(entry["ci95"][1] - entry["ci95"][0]) / entry["ratio"] for entry in record["plans"] if entry["ratio"]]
        self.noise = statistics.median(widths) / 2 / 1.96
        self.best_ms = self.best_without(lambda first, last: False)

    @property
    def plans(self) -> Sequence[Plan]:
        """All plans of the space but the empty one."""
        return tuple(self._truths)

    def best_without(self, fails: Fails) -> float:
        """See ``benchmarks.landscapes.failing.Thinnable``."""
        position = {unit.name: index for index, unit in enumerate(self.space.layout.units)}
        scopes = {scope for plan in self._truths for scope in plan.scopes}
        failing = {scope for scope in scopes if fails(position[scope.first], position[scope.last])}
        known = ((plan, truth.latency_ms) for plan, truth in self._truths.items() if truth.latency_ms is not None)
        return min([self.baseline_ms, *(ms for plan, ms in known if failing.isdisjoint(plan.scopes))])

    def evaluate(self, plan: Plan) -> Truth:
        """See ``Landscape.evaluate``.

        Raises:
            BadInputError: a scope of a probe was never observed.
        """
        if plan.is_baseline:
            return Truth(self.baseline_ms)
        return self._truths.get(plan) or self._assembled(plan)

    def _truth(self, entry: Mapping[str, Any], units: list[str]) -> Truth:
        reason = Reason(entry["reason"]) if entry["reason"] else None
        times = tuple(
            ScopeTime(units[first], units[last], in_scope, baseline_us / 1e3, latency_us / 1e3)
            for first, last, in_scope, baseline_us, latency_us in entry["scope_times"]
        )
        if reason in FAILURES:
            return Truth(None, reason, entry["blamed"], tuple(entry.get("inexact", ())), times)
        return Truth(self.baseline_ms / entry["ratio"], scope_times=times)

    def _assembled(self, plan: Plan) -> Truth:
        pieces: list[ScopeTime] = []
        for scope in plan.scopes:
            if scope not in self._observed:
                if scope not in self._in_failed_plans:
                    raise BadInputError(f"{self.name}: no recorded plan has the time of scope {scope.label!r}")
                return Truth(None, Reason.MISMATCH, scope.label)
            baseline_ms, latency_ms = self._observed[scope]
            pieces.append(ScopeTime(scope.first, scope.last, True, baseline_ms, latency_ms))
        saved_ms = sum(piece.baseline_ms - piece.latency_ms for piece in pieces)
        return Truth(self.baseline_ms - saved_ms, scope_times=tuple(pieces))

    @cached_property
    def _observed(self) -> Mapping[Scope, tuple[float, float]]:
        """Baseline and plan latency of each scope, the median over the plans that have it."""
        times_of: dict[Scope, list[tuple[float, float]]] = {}
        for plan, truth in self._truths.items():
            if truth.latency_ms is None:
                continue  # in these, scopes that change bits were timed as well
            times = {(piece.first, piece.last): piece for piece in truth.scope_times if piece.in_scope}
            for scope in plan.scopes:
                if piece := times.get((scope.first, scope.last)):
                    times_of.setdefault(scope, []).append((piece.baseline_ms, piece.latency_ms))
        return {
            scope: (statistics.median(base for base, _ in pairs), statistics.median(latency for _, latency in pairs))
            for scope, pairs in times_of.items()
        }

    @cached_property
    def _in_failed_plans(self) -> frozenset[Scope]:
        return frozenset(
            scope for plan, truth in self._truths.items() if truth.latency_ms is None for scope in plan.scopes
        )


def to_entry(plan: Plan, outcome: Outcome, position: Mapping[str, int]) -> dict[str, Any]:
    """Return the stored entry of one plan; units are given by their ``position`` in the layout."""
    speedup = outcome.speedup
    return {
        "scopes": [[position[scope.first], position[scope.last]] for scope in plan.scopes],
        "options": dict(plan.scopes[0].options),
        "reason": outcome.reason,
        "detail": outcome.detail,
        "blamed": outcome.blamed,
        "inexact": list(outcome.changes_bits),
        "baseline_ms": round(speedup.baseline_ms, 5) if speedup else None,
        "ratio": round(speedup.ratio, 5) if speedup else None,
        "ci95": [round(end, 5) for end in speedup.bounds] if speedup else None,
        "scope_times": [
            [position[piece.first], position[piece.last], piece.in_scope,
             round(1e3 * piece.baseline_ms, 2), round(1e3 * piece.latency_ms, 2)]
            for piece in outcome.scope_times
        ],
    }  # fmt: skip


def plan_of(entry: Mapping[str, Any], units: Sequence[str]) -> Plan:
    """Return the plan of an entry."""
    options = tuple(entry["options"].items())
    return Plan(tuple(Scope(units[first], units[last], options) for first, last in entry["scopes"]))


def names() -> list[str]:
    """Return the names of all recorded landscapes."""
    return sorted(path.name.removesuffix(ENDING) for path in FOLDER.glob(f"*{ENDING}"))


def request_of(name: str) -> Request:
    """Return the request that ``sktune search`` would get; a name is a preset, a data type, and a shape if not its own.

    The shape is ``BATCHxCONTEXT``; all of a model's shapes have one space.
    """
    parts = _NAME.fullmatch(name)
    assert parts, name
    model, dtype, batch, context = parts.groups()
    space = FOLDER / (f"{model}-{dtype}-shapes.yaml" if batch else f"{name}.yaml")
    sizes = [int(size) if size else None for size in (batch, context)]
    return Request(model, scale="tiny", dtype=dtype, space=space, batch=sizes[0], context=sizes[1])


def bound(name: str, layout: Layout) -> SearchSpace:
    """Return the space of a recorded landscape on its layout."""
    request = request_of(name)
    assert request.space is not None
    return bind_space(load_space(request.space), layout, request.target()[0])


@cache
def recorded(name: str) -> RecordedLandscape:
    """Return the landscape ``name``, one of ``names()``."""
    with gzip.open(FOLDER / f"{name}{ENDING}", "rt", encoding="utf-8") as file:
        record = json.load(file)
    return RecordedLandscape(name, bound(name, decoded(Layout, record["layout"])), record)


def _source(name: str, seed: int) -> RecordedLandscape:  # noqa: ARG001 - nothing in it is random
    return recorded(name)


RECORDED: Mapping[str, Callable[[int], RecordedLandscape]] = {name: partial(_source, name) for name in names()}
