"""Where a scope begins and where it ends, in the runs of a decode step."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from sktune.core.errors import PlanError
from sktune.core.plan import Scope
from sktune.source.besides import around
from sktune.source.runs import Function, Run, Statement

LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""The number of a layer in a unit's name, the first of its numbers."""


@dataclass(frozen=True, eq=False)
class Place:
    """Consecutive statements of a run, from ``first`` to ``last``; ``depth`` counts the runs around it."""

    run: Run
    first: int
    last: int
    depth: int

    @property
    def key(self) -> tuple[int, int, int, int]:
        return id(self.run.suite), self.first, self.last, self.run.turn.number if self.run.turn else 0

    def besides(self, scope: Scope, *, begins: bool, ends: bool) -> list[str]:
        """Return what runs inside before the scope's first unit or after its last, if it begins or ends here."""
        first, last = (self.run.statements[place] for place in (self.first, self.last))
        return [*(around(first, scope.first, -1) if begins else ()), *(around(last, scope.last, 1) if ends else ())]


def places_of(scope: Scope, runs: Sequence[tuple[int, Run]], *, in_calls: bool) -> tuple[Place, Place | None]:
    """Return where a scope is, or where it begins and where it ends, if it can be written as calls.

    Raises:
        PlanError: it cannot be expressed.
    """
    place, is_called = _place(scope, runs)
    if place:
        return place, None
    begin, end = (_edge(unit, runs, side) for unit, side in ((scope.first, -1), (scope.last, 1)))
    obstacle = "its units are called in several places" if is_called else _obstacle(scope, runs)
    if not in_calls:
        obstacle += "; start the program with the plan instead, which needs no edit (sktune.launch)"
    elif begin and end:
        leaving = _may_be_left(begin, end, runs[0][1])
        if leaving is None:
            return begin, end
        obstacle += f", and {leaving.owner.name}.{leaving.node.name.value} may return before"
    raise PlanError(f"scope {scope.label!r} cannot be expressed in this file: {obstacle}")


def _edge(unit: str, runs: Sequence[tuple[int, Run]], side: int) -> Place | None:
    """Return the innermost statements that call ``unit``, and before it nothing, if ``side`` is -1, or after it."""
    found = []
    for depth, run in runs:
        calls = [index for index, each in enumerate(run.statements) if any(_calls_of(unit, [each]))]
        if not calls or (run.is_repeated and run.layer is None):
            continue
        place = Place(run, calls[0], calls[-1], depth)
        first, last = (run.statements[index] for index in (place.first, place.last))
        if unit in (first.firsts if side < 0 else last.lasts) and _holds_all(place, unit, runs[0][1]):
            found.append(place)
    return max(found, key=lambda place: place.depth, default=None)


def _may_be_left(begin: Place, end: Place, step: Run) -> Function | None:
    """Return a function that decode may leave so that only one of a scope's calls would run; None if there is none."""
    both = step
    while inner := [run for run in _inside(both) if {begin.run, end.run} <= {each for _, each in run.walk()}]:
        both = inner[0]
    return next((place.run.function for place in (begin, end) if _leaves_before(place, both)), None)


def _leaves_before(place: Place, run: Run) -> bool:
    for index, statement in enumerate(run.statements):
        if run is place.run and index == place.first:
            return False
        for inner in (each for step in statement.steps for each in step.runs):
            if place.run in {each for _, each in inner.walk()}:
                return _leaves_before(place, inner)
        if statement.may_leave:
            return True
    return False


def _inside(run: Run) -> Iterator[Run]:
    yield from (inner for statement in run.statements for step in statement.steps for inner in step.runs)


def _place(scope: Scope, runs: Sequence[tuple[int, Run]]) -> tuple[Place | None, bool]:
    """Return the innermost statements that begin with the scope's first unit and end with its last.

    Also whether there are any that do so in a branch, or for a part of the unit's calls.
    """
    places: list[Place] = []
    across = _layer_of(scope.first) != _layer_of(scope.last)
    for depth, run in runs:
        if run.is_repeated and run.layer is None and across:
            continue  # each pass would have a scope of its own
        firsts = [index for index, each in enumerate(run.statements) if scope.first in each.firsts]
        lasts = [index for index, each in enumerate(run.statements) if scope.last in each.lasts]
        places += [Place(run, first, last, depth) for first in firsts for last in lasts if last >= first]
    # A unit may be called in several branches: a block around a single branch would leave the others without a scope.
    whole = [
        place for place in places if all(_holds_all(place, unit, runs[0][1]) for unit in (scope.first, scope.last))
    ]
    innermost = max(whole, key=lambda place: (place.depth, place.first - place.last)) if whole else None
    return innermost, bool(places)


def _layer_of(unit: str) -> str:
    """Return the part of a unit's name that says its layer, empty outside of layers."""
    found = LAYER.search(unit)
    return unit[: found.end()] if found else ""


def _holds_all(place: Place, unit: str, step: Run) -> bool:
    """Whether every call of ``unit`` in the decode ``step`` is in the statements of ``place``.

    A function that several branches call is in the source only once.
    """
    inside = place.run.statements[place.first : place.last + 1]
    return set(_calls_of(unit, inside)) == set(_calls_of(unit, step.statements))


def _calls_of(unit: str, statements: Sequence[Statement]) -> Iterator[int]:
    """Yield the identities of the innermost statements that call ``unit``."""
    for statement in statements:
        for step in statement.steps:
            if unit in step.firsts and not step.runs:
                yield id(statement.node)
            for run in step.runs:
                yield from _calls_of(unit, run.statements)


def _obstacle(scope: Scope, runs: Sequence[tuple[int, Run]]) -> str:
    begins = _innermost(runs, lambda statement: scope.first in statement.firsts)
    ends = _innermost(runs, lambda statement: scope.last in statement.lasts)
    if begins is None:
        return f"{scope.first!r} is not the first unit that its statement runs; move it to a separate statement"
    if ends is None:
        return f"{scope.last!r} is not the last unit that its statement runs; move it to a separate statement"
    if begins == ends:
        inner = any(run.turn for _, run in runs if any(scope.first in each.firsts for each in run.statements))
        loop = "loop inside the layer" if inner else "loop over layers"
        return f"it begins in one iteration of the {loop} in {begins} and ends in a later one"
    return f"it begins in {begins} and ends in {ends}"


def _innermost(runs: Sequence[tuple[int, Run]], holds: Callable[[Statement], bool]) -> str | None:
    """Return the function of the innermost statement that ``holds``."""
    functions = [(depth, run.function) for depth, run in runs if any(map(holds, run.statements))]
    if not functions:
        return None
    _, function = max(functions, key=lambda item: item[0])
    return f"{function.owner.name}.{function.node.name.value}"


def contains(node: cst.CSTNode, part: cst.CSTNode) -> bool:
    """Whether ``part`` is in ``node``, or is it."""
    return node is part or any(contains(child, part) for child in node.children)
