"""Where a plan's scopes go in the source: for each, consecutive statements and the layers to which it applies."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from sktune.core.errors import PlanError
from sktune.core.plan import Options, Plan, Scope
from sktune.source.call_flow import Follower
from sktune.source.classes import ModuleClass
from sktune.source.runs import Function, Run, Statement, Step, Turn
from sktune.source.values import Known

LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""The number of a layer in a unit's name, the first of its numbers."""
ENTRIES = ("decode", "forward")
"""Methods of the model in which a decode step may begin; the first that runs the plan's units is used."""


Modules = Mapping[str, Sequence[str]]
"""Modules of which a method is called in a decode step, each with its possible classes."""


@dataclass(frozen=True, eq=False)
class Block:
    """Statements that become the body of one ``with``.

    Attributes:
        suite: the list of statements; ``first`` to ``last``, both included, are inside.
        function: that contains them.
        options: of the scope.
        layers: to which it applies; empty if the suite does not run once for each layer.
        is_whole: whether the suite runs in no other layer.
        index: the expression of the layer's number, if the suite is in a loop over layers that knows it.
        covers: names of the first and the last unit within the layer, for the label.
        besides: source of what runs inside before the first unit or after the last.
        turn: of the loop inside the layer to which it applies, if the suite is in such a loop.
        own_labels: the plan's own label for each of ``layers``, or for the one scope outside of layers; empty where
            it has none.
        inside: the statements that run in it, with those of the functions that they call.
    """

    suite: cst.BaseSuite
    first: int
    last: int
    function: Function
    options: Options
    layers: tuple[int, ...]
    is_whole: bool
    index: str | None
    covers: tuple[str, str]
    besides: tuple[str, ...]
    turn: Turn | None
    own_labels: tuple[str, ...]
    inside: tuple[cst.BaseStatement, ...]

    def surrounds(self, body: cst.BaseSuite) -> bool:
        """Whether all statements of ``body`` are in the block."""
        if self.suite is body:
            return self.first == 0 and self.last == len(body.body) - 1
        return any(_contains(statement, body) for statement in self.suite.body[self.first : self.last + 1])


@dataclass(frozen=True, eq=False)
class Placed:
    """The blocks of a plan.

    Attributes:
        blocks: one for each distinct pair of statements and options.
        in_layers: classes whose methods run in decoder layers.
        layer_lists: classes whose methods run the list of layers.
    """

    blocks: tuple[Block, ...]
    in_layers: frozenset[str]
    layer_lists: frozenset[str]


@dataclass(frozen=True, eq=False)
class _DecodeStep:
    """A decode step.

    Attributes:
        run: that calls all units at which the plan's scopes begin or end.
        modules: that it calls.
        layers: in which each suite runs, by the suite's identity.
    """

    run: Run
    modules: Modules
    layers: Mapping[int, frozenset[int]]


@dataclass(frozen=True, eq=False)
class _Place:
    run: Run
    first: int
    last: int
    depth: int

    @property
    def key(self) -> tuple[int, int, int]:
        return id(self.run.suite), self.first, self.last


def find_blocks(classes: Mapping[str, ModuleClass], plan: Plan, n_layers: int, known: Known) -> Placed:
    """Return the blocks that express ``plan``.

    Raises:
        PlanError: no class of the file runs the plan's units, or a scope cannot be expressed in this source.
    """
    step = _decode_step(classes, plan, n_layers, known)
    runs = list(step.run.walk())
    grouped: dict[tuple[tuple[int, int, int], int, Options], list[tuple[Scope, _Place]]] = {}
    for scope in plan.scopes:
        place = _place(scope, runs)
        turn = place.run.turn.number if place.run.turn else 0
        grouped.setdefault((place.key, turn, scope.options), []).append((scope, place))
    for members in grouped.values():
        _refuse_shared(members, step.modules)
    blocks = tuple(_block(members, step.layers) for members in grouped.values())
    _refuse_crossings(blocks)
    owners: dict[bool, set[str]] = {True: set(), False: set()}
    for each in (each for _, each in runs if each.layer is not None):
        owners[f".{each.layer}." in f".{each.prefix}"].add(each.function.owner.name)
    return Placed(blocks, frozenset(owners[True]), frozenset(owners[False]))


def _refuse_shared(members: Sequence[tuple[Scope, _Place]], modules: Modules) -> None:
    """Refuse a block that would run for other modules of the same layer, too: its condition sees only the layer."""
    scope, place = members[0]
    turn, function = place.run.turn, place.run.function
    own = {each.run.prefix.rstrip(".") for _, each in members}
    layers = [f".{each.run.layer}." for _, each in members if f".{each.run.layer}." in f".{each.run.prefix}"]
    of_class = [path for path, names in modules.items() if function.owner.name in names]
    others = [path for path in of_class if path not in own and any(layer in f".{path}." for layer in layers)]
    shared = others[0] if others else max(own) if len(own) > len(set(layers)) > 0 else ""
    if shared:
        raise PlanError(
            f"scope {scope.label!r} cannot be expressed in this file: {place.run.prefix.rstrip('.')!r} and {shared!r} "
            f"share {function.owner.name}.{function.node.name.value}, which does not know which of them it is"
        )
    if turn and turn.count > 1 and not turn.index:
        raise PlanError(
            f"scope {scope.label!r} cannot be expressed in this file: its loop over {turn.count} modules has no "
            "variable that counts; iterate with enumerate"
        )


def _decode_step(classes: Mapping[str, ModuleClass], plan: Plan, n_layers: int, known: Known) -> _DecodeStep:
    units = list(dict.fromkeys(name for scope in plan.scopes for name in (scope.first, scope.last)))
    best: tuple[int, str] = (0, "")
    for prefix in _prefixes(units[0]):
        local = [unit.removeprefix(prefix) for unit in units]
        for owner in classes.values():
            for method in ENTRIES:
                follower = Follower(classes, local, n_layers, known)
                run = follower.follow(owner, method)
                called = _called(run) if run else set()
                if called >= set(local):
                    assert run is not None
                    modules = {prefix + path: each for path, each in follower.modules.items()}
                    everywhere = Follower(classes, _in_all_layers(local, n_layers), n_layers, known)
                    return _DecodeStep(_renamed(run, prefix), modules, _layers(everywhere.follow(owner, method)))
                missing = next(unit for unit in local if unit not in called)
                best = max(best, (len(called & set(local)), missing))
    raise PlanError(
        f"no class runs the plan's units; the closest one never calls {best[1]!r} by name; "
        "apply the plan in Python: sktune.apply(model, plan)"
    )


def _in_all_layers(units: Sequence[str], n_layers: int) -> list[str]:
    """Return the same units in each layer: a step is followed only into layers with units."""
    parts = dict.fromkeys(tuple(LAYER.split(unit, maxsplit=1)) for unit in units)
    return [str(layer).join(each) for each in parts for layer in range(n_layers)]


def _layers(step: Run | None) -> Mapping[int, frozenset[int]]:
    """Return the layers in which each suite runs."""
    found: dict[int, set[int]] = {}
    for _, run in step.walk() if step else ():
        if run.layer is not None:
            found.setdefault(id(run.suite), set()).add(run.layer)
    return {suite: frozenset(layers) for suite, layers in found.items()}


def _prefixes(unit: str) -> list[str]:
    parts = unit.split(".")
    return ["", *(".".join(parts[:count]) + "." for count in range(1, len(parts)))]


def _called(run: Run) -> set[str]:
    called: set[str] = set()
    for _, each in run.walk():
        for statement in each.statements:
            for step in statement.steps:
                called |= step.firsts | step.lasts
    return called


def _renamed(run: Run, prefix: str) -> Run:
    """Return the run with the plan's own names for modules."""
    if not prefix:
        return run

    def names(local: frozenset[str]) -> frozenset[str]:
        return frozenset(prefix + name for name in local)

    statements = tuple(
        Statement(
            statement.node,
            tuple(
                Step(names(step.firsts), names(step.lasts), tuple(_renamed(inner, prefix) for inner in step.runs))
                for step in statement.steps
            ),
        )
        for statement in run.statements
    )
    return replace(run, statements=statements, prefix=prefix + run.prefix)


def _place(scope: Scope, runs: Sequence[tuple[int, Run]]) -> _Place:
    """Return the innermost statements that begin with the scope's first unit and end with its last."""
    places: list[_Place] = []
    across = _layer_of(scope.first) != _layer_of(scope.last)
    for depth, run in runs:
        if run.is_repeated and run.layer is None and across:
            continue  # each pass would have a scope of its own
        firsts = [index for index, each in enumerate(run.statements) if scope.first in each.firsts]
        lasts = [index for index, each in enumerate(run.statements) if scope.last in each.lasts]
        places += [_Place(run, first, last, depth) for first in firsts for last in lasts if last >= first]
    # A unit may be called in several branches: a block around a single branch would leave the others without a scope.
    whole = [
        place for place in places if all(_holds_all(place, unit, runs[0][1]) for unit in (scope.first, scope.last))
    ]
    if not whole:
        obstacle = "its units are called in several places" if places else _obstacle(scope, runs)
        raise PlanError(f"scope {scope.label!r} cannot be expressed in this file: {obstacle}")
    return max(whole, key=lambda place: (place.depth, place.first - place.last))


def _layer_of(unit: str) -> str:
    """Return the part of a unit's name that says its layer, empty outside of layers."""
    found = LAYER.search(unit)
    return unit[: found.end()] if found else ""


def _holds_all(place: _Place, unit: str, step: Run) -> bool:
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


def _block(members: Sequence[tuple[Scope, _Place]], ran: Mapping[int, frozenset[int]]) -> Block:
    scope, place = members[0]
    run = place.run
    layers = tuple(sorted(each.run.layer for _, each in members if each.run.layer is not None))
    is_whole = id(run.suite) in ran and ran[id(run.suite)] <= {*layers}
    covers = (_key(scope.first, run), _key(scope.last, run))
    if run.layer is None and ".".join(scope.first.split(".")[:-1]) != ".".join(scope.last.split(".")[:-1]):
        covers = ("layers", "layers") if _spans_layers(place) else covers
    besides = dict.fromkeys(text for each, at in members for text in _besides(each, at))
    by_layer = sorted(members, key=lambda member: -1 if member[1].run.layer is None else member[1].run.layer)
    own = tuple(each.name if each.name != replace(each, name="").label else "" for each, _ in by_layer)
    inside = dict.fromkeys(node for _, at in members for node in _statements(at))
    return Block(
        run.suite, place.first, place.last, run.function, scope.options, layers, is_whole, run.index, covers,
        tuple(besides), run.turn, own, tuple(inside),
    )  # fmt: skip


def _statements(place: _Place) -> Iterator[cst.BaseStatement]:
    """Yield the statements of a place, and those of the functions that they call."""
    for statement in place.run.statements[place.first : place.last + 1]:
        yield statement.node
        for step in statement.steps:
            for _, run in (pair for inner in step.runs for pair in inner.walk()):
                yield from (each.node for each in run.statements)


def _contains(node: cst.CSTNode, part: cst.CSTNode) -> bool:
    return node is part or any(_contains(child, part) for child in node.children)


def _key(unit: str, run: Run) -> str:
    """Return the name of a unit within its layer, or its own name outside of layers."""
    parts = unit.removeprefix(run.prefix).split(".")
    if run.layer is None:
        return parts[-1]
    if len(parts) > 1 and parts[1] == str(run.layer) and run.index is not None:
        parts = parts[2:] or parts[:1]
    return "_".join(parts)


def _spans_layers(place: _Place) -> bool:
    statements = place.run.statements[place.first : place.last + 1]
    return all(isinstance(each.node, cst.For) for each in statements if each.steps)


def _besides(scope: Scope, place: _Place) -> list[str]:
    """Return what is computed inside before the first unit or after the last one."""
    statements = place.run.statements
    return _around(statements[place.first], scope.first, -1) + _around(statements[place.last], scope.last, 1)


def _around(statement: Statement, unit: str, side: int) -> list[str]:
    """Return the statements that run on one ``side`` of ``unit`` within ``statement``: -1 before it, 1 after it."""
    step = statement.steps[0 if side < 0 else -1]
    if not step.runs:
        return [] if _only_calls(statement) else [_code(statement.node)]
    around: list[str] = []
    runs = [run for run in step.runs if unit in (run.firsts if side < 0 else run.lasts)]
    for run in runs[:1] if side < 0 else runs[-1:]:
        with_steps = [index for index, each in enumerate(run.statements) if each.steps]
        at = with_steps[0 if side < 0 else -1]
        beyond = run.statements[:at] if side < 0 else run.statements[at + 1 :]
        around += [_code(each.node) for each in beyond if _computes(each.node)]
        around += _around(run.statements[at], unit, side)
    return around


def _only_calls(statement: Statement) -> bool:
    """Whether a statement does nothing but call its steps and assign or return the result."""
    node = statement.node
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return False
    (only,) = node.body
    value = only.value if isinstance(only, cst.Assign | cst.AnnAssign | cst.Expr | cst.Return) else None
    return isinstance(value, cst.Call) and _operations(value) == len(statement.steps)


def _computes(node: cst.BaseStatement) -> bool:
    return not isinstance(node, cst.FunctionDef | cst.ClassDef) and _has_operation(node)


def _has_operation(node: cst.CSTNode) -> bool:
    return _operations(node) > 0


def _operations(node: cst.CSTNode) -> int:
    is_one = isinstance(node, cst.Call | cst.BinaryOperation | cst.UnaryOperation | cst.AugAssign)
    is_not = isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)
    return int(is_one and not is_not) + sum(_operations(child) for child in node.children)


def _code(node: cst.BaseStatement) -> str:
    bare = node.with_changes(leading_lines=())
    return cst.Module([]).code_for_node(bare).strip().partition("\n")[0]


def _refuse_crossings(blocks: Sequence[Block]) -> None:
    for block in blocks:
        for other in blocks:
            if other.suite is block.suite and block.first < other.first <= block.last < other.last:
                raise PlanError(
                    f"the scopes from {block.covers[0]!r} and from {other.covers[0]!r} cannot be expressed in this "
                    f"file: they overlap, in different layers, and all layers share "
                    f"{block.function.owner.name}.{block.function.node.name.value}"
                )
