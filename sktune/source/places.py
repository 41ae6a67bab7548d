"""Where a scope begins and where it ends, in the runs of a decode step."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import libcst as cst

from sktune.core.errors import PlanError
from sktune.core.plan import Scope
from sktune.source.classes import code_of
from sktune.source.runs import Statement, StatementCall, SuiteRun

LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""The number of a layer in a unit's name, the first of its numbers."""


@dataclass(frozen=True, eq=False)
class StatementRange:
    """Consecutive statements of a run, from ``first`` to ``last``; ``depth`` counts the runs around it."""

    run: SuiteRun
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


Way = Sequence[tuple[SuiteRun, int, StatementCall | None]]
"""From outside to a statement: a run, the number of its statement, and the step in it that goes on; None at last."""


class CallTree:
    """The statements of a decode step, as a tree of runs: which of them call which unit, and where each is.

    Attributes:
        runs: all of them, each with its depth, from the step's own on.
    """

    def __init__(self, step: SuiteRun) -> None:
        self.runs: list[tuple[int, SuiteRun]] = []
        self._above: dict[SuiteRun, tuple[tuple[SuiteRun, int, StatementCall], ...]] = {}
        self._firsts: dict[str, list[tuple[int, SuiteRun, int]]] = {}
        self._lasts: dict[str, list[tuple[int, SuiteRun, int]]] = {}
        self._calls: dict[str, list[tuple[int, int]]] = {}
        self._spans: dict[Statement, tuple[int, int]] = {}
        self._count = 0
        self._add(step, ())

    def _add(self, run: SuiteRun, above: tuple[tuple[SuiteRun, int, StatementCall], ...]) -> None:
        depth = len(above)
        self.runs.append((depth, run))
        self._above[run] = above
        for index, statement in enumerate(run.statements):
            begin = self._count
            for found, units in ((self._firsts, statement.firsts), (self._lasts, statement.lasts)):
                for unit in units:
                    found.setdefault(unit, []).append((depth, run, index))
            for step in statement.steps:
                if not step.runs:
                    self._count += 1
                    for unit in step.firsts:
                        self._calls.setdefault(unit, []).append((self._count, id(statement.node)))
                for inner in step.runs:
                    self._add(inner, (*above, (run, index, step)))
            self._spans[statement] = begin, self._count

    def place(self, scope: Scope) -> tuple[StatementRange | None, bool]:
        """Return the innermost statements that begin with the scope's first unit and end with its last.

        Also whether there are any that do so in a branch, or for a part of the unit's calls.
        """
        across = _layer_of(scope.first) != _layer_of(scope.last)
        lasts: dict[SuiteRun, list[int]] = {}
        for _, run, last in self._lasts.get(scope.last, ()):
            lasts.setdefault(run, []).append(last)
        places = [
            StatementRange(run, first, last, depth)
            for depth, run, first in self._firsts.get(scope.first, ())
            if not (run.is_repeated and run.layer is None and across)  # each pass would have a scope of its own
            for last in lasts.get(run, ())
            if last >= first
        ]
        # A unit may be called in several branches: a block around a single branch would leave the others without one.
        ends = ((scope.first, -1), (scope.last, 1))
        whole = [place for place in places if all(self._holds_all(place, unit, side) for unit, side in ends)]
        return max(whole, key=lambda place: (place.depth, place.first - place.last), default=None), bool(places)

    def edges(self, unit: str, side: int) -> list[StatementRange]:
        """Return the statements that call ``unit``, and before it nothing, if ``side`` is -1, or after it.

        The innermost come first.
        """
        found = {}
        for depth, run, index in (self._firsts if side < 0 else self._lasts).get(unit, ()):
            if not run.is_repeated or run.layer is not None:
                calling = [at for at, each in enumerate(run.statements) if self._calls_in(unit, each, each)]
                place = StatementRange(run, calling[0], calling[-1], depth)
                if index == calling[0 if side < 0 else -1] and self._holds_all(place, unit, side):
                    found[place.run] = place
        return sorted(found.values(), key=lambda place: -place.depth)

    def _holds_all(self, place: StatementRange, unit: str, side: int) -> bool:
        """Whether every call of ``unit`` in the decode step is in the statements of ``place``, at its edge ``side``.

        A function that several branches call is in the source only once.
        """
        first, last = (place.run.statements[at] for at in (place.first, place.last))
        inside = self._calls_in(unit, first, last)
        is_all = inside == {node for _, node in self._calls[unit]}
        return is_all and self._is_at_edge(unit, first if side < 0 else last, side)

    def _is_at_edge(self, unit: str, statement: Statement, side: int) -> bool:
        """Whether each way through ``statement`` that calls ``unit`` calls it first, if ``side`` is -1, or last."""
        edge = 0 if side < 0 else -1
        step = statement.steps[edge]
        ways = [run for run in step.runs if any(self._calls_in(unit, each, each) for each in run.statements)]
        for run in [ways[edge]] if ways and step.is_certain else ways:  # one after the other, or one of them
            at = [each for each in run.statements if self._calls_in(unit, each, each)][edge]
            is_exit = side > 0 and any(unit in each.exits for each in at.steps)
            if not is_exit and at is not [each for each in run.statements if each.steps][edge]:
                return False
            if not self._is_at_edge(unit, at, side):
                return False
        return bool(ways) or unit in (step.firsts if side < 0 else step.lasts)

    def _calls_in(self, unit: str, first: Statement, last: Statement) -> set[int]:
        """Return the identities of the innermost statements that call ``unit``, from one statement to another."""
        begin, end = self._spans[first][0], self._spans[last][1]
        return {node for number, node in self._calls.get(unit, ()) if begin < number <= end}

    def obstacle(self, begin: StatementRange, end: StatementRange) -> str:
        """Return why decode may run only one of a scope's two calls; empty if it always runs both."""
        ways: list[Way] = [(*self._above[each.run], (each.run, each.first, None)) for each in (begin, end)]
        common = 0
        while all(len(way) > common + 1 for way in ways) and ways[0][common][2] is ways[1][common][2]:
            if ways[0][common + 1][0] is not ways[1][common + 1][0]:
                break
            common += 1
        # From the begin on: its own suite from its first statement, each suite around it from the next statement.
        begins = [(run, run.statements[index + (run is not begin.run) :]) for run, index, _ in ways[0]]
        both, last, _ = ways[1][common]
        between = both.statements[len(both.statements) - len(begins[common][1]) : last]
        # Below the innermost suite that holds both calls: a return before one of them leaves the other unpaired; after
        # the begin, only a return from the function that holds both skips the end.
        before = [(run, run.statements[:index]) for way in ways for run, index, _ in way[common + 1 :]]
        after = [(run, statements) for run, statements in begins[common + 1 :] if run.function is both.function]
        passed = [(run, run.statements) for run in _passes_before(ways[1][common:], ways[0][common:])]
        for run, statements in ((both, between), *before, *after, *passed):
            if any(each.may_leave for each in statements):
                return f"{run.function.name} may return, or leave a loop, before"
        for run, _, step in (link for way in ways for link in way[common:]):
            if step and not step.is_certain:
                return f"a branch or a loop of {run.function.name} has only its begin or only its end"
        return ""

    def innermost(self, unit: str, side: int) -> SuiteRun | None:
        """Return the innermost run with a statement that begins with ``unit``, if ``side`` is -1, or ends with it."""
        found = (self._firsts if side < 0 else self._lasts).get(unit, ())
        return max(found, key=lambda each: each[0])[1] if found else None

    def is_before(self, unit: str, other: str) -> bool:
        """Whether ``unit`` runs before ``other`` does, for the first or for the last time."""
        calls, others = self._calls[unit], self._calls[other]
        return min(calls) < min(others) or max(calls) < max(others)


def _passes_before(end: Way, begin: Way) -> Iterator[SuiteRun]:
    """Yield the passes of loops between a scope's begin and its end; both ways start in the innermost common run."""
    for (_, _, step), (inner, _, _) in pairwise(end):
        assert step
        runs = step.runs[: step.runs.index(inner)]
        is_shared = step is begin[0][2]
        yield from runs[step.runs.index(begin[1][0]) + 1 :] if is_shared else runs


def places_of(scope: Scope, calls: CallTree, *, in_calls: bool) -> tuple[StatementRange, StatementRange | None]:
    """Return where a scope is, or where it begins and where it ends, if it can be written as calls.

    Raises:
        PlanError: it cannot be expressed.
    """
    place, is_called = calls.place(scope)
    if place:
        return place, None
    ways = [(begin, end) for begin in calls.edges(scope.first, -1) for end in calls.edges(scope.last, 1)]
    obstacles = [calls.obstacle(begin, end) for begin, end in ways]
    is_reversed = calls.is_before(scope.last, scope.first)
    if in_calls and not is_reversed and "" in obstacles:
        return ways[obstacles.index("")]
    reason = _obstacle(scope, calls, is_called=is_called, is_reversed=is_reversed)
    reason = reason if is_reversed else ", and ".join(filter(None, (reason, *obstacles[:1])))
    if not in_calls:
        reason += "; start the program with the plan instead, which needs no edit (sktune.launch)"
    raise PlanError(f"scope {scope.label!r} cannot be expressed in this file: {reason}")


def _layer_of(unit: str) -> str:
    """Return the part of a unit's name that says its layer, empty outside of layers."""
    found = LAYER.search(unit)
    return unit[: found.end()] if found else ""


def _obstacle(scope: Scope, calls: CallTree, *, is_called: bool, is_reversed: bool) -> str:
    if is_called:
        return "its units are called in several places"
    begin, end = calls.innermost(scope.first, -1), calls.innermost(scope.last, 1)
    if begin is None:
        return f"{scope.first!r} is not the first unit that its statement runs; move it to a separate statement"
    if end is None:
        return f"{scope.last!r} is not the last unit that its statement runs; move it to a separate statement"
    if is_reversed:
        return f"its last unit {scope.last!r} runs before its first one {scope.first!r}"
    function = begin.function
    if function.name != end.function.name:
        return f"it begins in {function.name} and ends in {end.function.name}"
    if begin.layer != end.layer:
        return "it begins in one layer and ends in a later one"
    if begin.turn != end.turn:
        return f"it begins in one iteration of the loop inside the layer in {function.name} and ends in a later one"
    if begin.prefix != end.prefix:
        return f"it begins in one call of {function.name} and ends in a later one"
    return f"no list of statements in {function.name} has both its first and its last unit"


def contains(node: cst.CSTNode, part: cst.CSTNode) -> bool:
    """Whether ``part`` is in ``node``, or is it."""
    return node is part or any(contains(child, part) for child in node.children)


def around(statement: Statement, unit: str, side: int) -> list[str]:
    """Return the statements that run on one ``side`` of ``unit`` within ``statement``: -1 before it, 1 after it."""
    step = statement.steps[0 if side < 0 else -1]
    if not step.runs:
        return [] if _only_calls(statement) else [_code(statement.node)]
    found: list[str] = []
    runs = [run for run in step.runs if unit in (run.firsts if side < 0 else run.lasts)]
    for run in runs[:1] if side < 0 else runs[-1:]:
        with_steps = [index for index, each in enumerate(run.statements) if each.steps]
        at = with_steps[0 if side < 0 else -1]
        beyond = run.statements[:at] if side < 0 else run.statements[at + 1 :]
        computing = (each for each in beyond if not isinstance(each.node, cst.FunctionDef | cst.ClassDef))
        found += [_code(each.node) for each in computing if _operations(each.node)]
        found += around(run.statements[at], unit, side)
    return found


def _only_calls(statement: Statement) -> bool:
    """Whether a statement does nothing but call its steps and assign or return the result."""
    node = statement.node
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return False
    (only,) = node.body
    value = only.value if isinstance(only, cst.Assign | cst.AnnAssign | cst.Expr | cst.Return) else None
    return isinstance(value, cst.Call) and _operations(value) == len(statement.steps)


def _operations(node: cst.CSTNode) -> int:
    is_one = isinstance(node, cst.Call | cst.BinaryOperation | cst.UnaryOperation | cst.AugAssign)
    is_not = isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)
    return int(is_one and not is_not) + sum(_operations(child) for child in node.children)


def _code(node: cst.BaseStatement) -> str:
    bare = node.with_changes(leading_lines=())
    return code_of(bare).strip().partition("\n")[0]
