"""Where a plan's scopes go in the source: for each, consecutive statements and the layers to which it applies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst

from sktune.core.errors import PlanError
from sktune.core.plan import Options, Plan, Scope
from sktune.source.call_flow import Follower
from sktune.source.classes import SourceClass
from sktune.source.places import LAYER, CallTree, StatementRange, places_of
from sktune.source.runs import Function, StatementCall, SuiteRun, Turn
from sktune.source.values import Known


class MissingUnitError(PlanError):
    """A unit of the plan is not called in a decode step; ``is_elsewhere`` if it is in other layers."""

    def __init__(self, unit: str, *, is_elsewhere: bool) -> None:
        elsewhere = ", which runs in other layers," if is_elsewhere else ""
        super().__init__(
            f"no class runs the plan's units; in the closest one no call of {unit!r}{elsewhere} is seen in decode; "
            "apply the plan in Python: sktune.apply(model, plan)"
        )
        self.is_elsewhere = is_elsewhere


ENTRIES = ("decode", "forward")
"""Methods of the model in which a decode step may begin; the first that runs the plan's units is used."""


Modules = Mapping[str, Sequence[str]]
"""Modules of which a method is called in a decode step, each with its possible classes."""


@dataclass(frozen=True, eq=False)
class Block:
    """Statements that are in a scope, or with which one begins or ends.

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


@dataclass(frozen=True, eq=False)
class Apart:
    """Scopes that begin before one statement and end after another, which are in no common list of statements.

    Attributes:
        begin, end: of the statements that call the first and the last unit.
        distance: how many layers after its begin each scope ends; None if one of them is outside of layers.
    """

    begin: Block
    end: Block
    distance: int | None


@dataclass(frozen=True, eq=False)
class Placed:
    """The blocks of a plan.

    Attributes:
        blocks: one for each distinct pair of statements and options.
        apart: scopes that begin in one run of the source and end in another.
        in_layers: classes whose methods run in decoder layers.
        layer_lists: classes whose methods run the list of layers.
    """

    blocks: tuple[Block, ...]
    apart: tuple[Apart, ...]
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

    run: SuiteRun
    modules: Modules
    layers: Mapping[int, frozenset[int]]


def find_blocks(
    classes: Mapping[str, SourceClass], plan: Plan, n_layers: int, known: Known, *, in_calls: bool = False
) -> Placed:
    """Return the blocks that express ``plan``.

    Args:
        in_calls: whether scopes are written as calls, which need not be in one list of statements.

    Raises:
        PlanError: no class of the file runs the plan's units, or a scope cannot be expressed in this source.
    """
    step = _decode_step(classes, plan, n_layers, known)
    calls = CallTree(step.run)
    grouped: dict[tuple[Any, ...], list[tuple[Scope, StatementRange, StatementRange | None]]] = {}
    for scope in plan.scopes:
        begin, end = places_of(scope, calls, in_calls=in_calls)
        key = begin.key, scope.options, end and (end.key, _distance(begin, end))
        grouped.setdefault(key, []).append((scope, begin, end))
    blocks, apart = [], []
    for group in grouped.values():
        begins = [(scope, begin) for scope, begin, _ in group]
        ends = [(scope, end) for scope, _, end in group if end]
        for members in filter(None, (begins, ends)):
            _refuse_shared(members, step.modules)
        if ends:
            first, last = _block(begins, step.layers, ends=False), _block(ends, step.layers, begins=False)
            covers = (first.covers[0], last.covers[1])
            distance = _distance(begins[0][1], ends[0][1])
            apart.append(Apart(replace(first, covers=covers), replace(last, covers=covers), distance))
        else:
            blocks.append(_block(begins, step.layers))
    if not in_calls:
        _refuse_crossings(blocks)
    owners: dict[bool, set[str]] = {True: set(), False: set()}
    for each in (each for _, each in calls.runs if each.layer is not None):
        owners[f".{each.layer}." in f".{each.prefix}"].add(each.function.owner.name)
    return Placed(tuple(blocks), tuple(apart), frozenset(owners[True]), frozenset(owners[False]))


def refuse_missing(classes: Mapping[str, SourceClass], plan: Plan, n_layers: int, known: Known) -> None:
    """Refuse a plan with a unit that only other layers have; raises ``MissingUnitError``."""
    try:
        _decode_step(classes, plan, n_layers, known)
    except MissingUnitError as failure:
        if failure.is_elsewhere:
            raise


def _refuse_shared(members: Sequence[tuple[Scope, StatementRange]], modules: Modules) -> None:
    """Refuse a block that would run for other modules of the same layer, too: its condition sees only the layer."""
    scope, place = members[0]
    turn, function = place.run.turn, place.run.function
    own = {each.run.prefix.rstrip(".") for _, each in members}
    layers = {str(each.run.layer) for _, each in members if str(each.run.layer) in each.run.prefix.split(".")}
    of_class = [path for path, names in modules.items() if function.owner.name in names]
    others = [path for path in of_class if path not in own and not layers.isdisjoint(path.split("."))]
    shared = others[0] if others else max(own) if len(own) > len(layers) > 0 else ""
    if shared:
        raise PlanError(
            f"scope {scope.label!r} cannot be expressed in this file: {place.run.prefix.rstrip('.')!r} and {shared!r} "
            f"share {function.name}, which does not know which of them it is"
        )
    if turn and turn.count > 1 and not turn.index:
        raise PlanError(
            f"scope {scope.label!r} cannot be expressed in this file: its loop over {turn.count} modules has no "
            "variable that counts; iterate with enumerate"
        )


def _decode_step(classes: Mapping[str, SourceClass], plan: Plan, n_layers: int, known: Known) -> _DecodeStep:
    units = dict.fromkeys(name for scope in plan.scopes for name in (scope.first, scope.last))
    for outer, inner in ((prefix.rstrip("."), unit) for unit in units for prefix in _prefixes(unit)):
        if outer in units:
            raise PlanError(f"the plan's unit {outer!r} contains {inner!r}; name units that do not contain each other")
    first = next(iter(units))
    best: tuple[int, str, bool] = (0, first, False)
    for prefix in (each for each in _prefixes(first) if all(unit.startswith(each) for unit in units)):
        local = [unit.removeprefix(prefix) for unit in units]
        for owner in classes.values():
            for method in ENTRIES:
                ends = [local[0], local[-1]]
                probe = Follower(classes, ends, n_layers, known).follow(owner, method)
                if probe is None or _called(probe).isdisjoint(ends):
                    continue  # most classes run none of the units, and two units are followed in a moment
                follower = Follower(classes, local, n_layers, known)
                run = follower.follow(owner, method)
                assert run is not None
                called = _called(run)
                if called >= set(local):
                    modules = {prefix + path: each for path, each in follower.modules.items()}
                    # The same units in each layer: a step is followed only into layers with units.
                    parts = dict.fromkeys(tuple(LAYER.split(unit, maxsplit=1)) for unit in local)
                    in_all = [str(layer).join(each) for each in parts for layer in range(n_layers)]
                    everywhere = Follower(classes, in_all, n_layers, known)
                    return _DecodeStep(_renamed(run, prefix), modules, _layers(everywhere.follow(owner, method)))
                missing, name = next(each for each in zip(local, units, strict=True) if each[0] not in called)
                keys = {LAYER.sub("", unit, count=1) for unit in called}
                best = max(best, (len(called & set(local)), name, LAYER.sub("", missing, count=1) in keys))
    raise MissingUnitError(best[1], is_elsewhere=best[2])


def _layers(step: SuiteRun | None) -> Mapping[int, frozenset[int]]:
    """Return the layers in which each suite runs."""
    found: dict[int, set[int]] = {}
    for _, run in step.walk() if step else ():
        if run.layer is not None:
            found.setdefault(id(run.suite), set()).add(run.layer)
    return {suite: frozenset(layers) for suite, layers in found.items()}


def _prefixes(unit: str) -> list[str]:
    parts = unit.split(".")
    return ["", *(".".join(parts[:count]) + "." for count in range(1, len(parts)))]


def _called(run: SuiteRun) -> set[str]:
    called: set[str] = set()
    for _, each in run.walk():
        for statement in each.statements:
            for step in statement.steps:
                called |= step.firsts | step.lasts
    return called


def _renamed(run: SuiteRun, prefix: str) -> SuiteRun:
    """Return the run with the plan's own names for modules."""
    if not prefix:
        return run

    def names(local: frozenset[str]) -> frozenset[str]:
        return frozenset(prefix + name for name in local)

    def renamed(step: StatementCall) -> StatementCall:
        runs = tuple(_renamed(inner, prefix) for inner in step.runs)
        return replace(step, firsts=names(step.firsts), lasts=names(step.lasts), runs=runs, exits=names(step.exits))

    statements = tuple(replace(each, steps=tuple(map(renamed, each.steps))) for each in run.statements)
    return replace(run, statements=statements, prefix=prefix + run.prefix)


def _distance(begin: StatementRange, end: StatementRange) -> int | None:
    first, last = begin.run.layer, end.run.layer
    return last - first if first is not None and last is not None else None


def _block(
    members: Sequence[tuple[Scope, StatementRange]],
    ran: Mapping[int, frozenset[int]],
    *,
    begins: bool = True,
    ends: bool = True,
) -> Block:
    scope, place = members[0]
    run = place.run
    layers = tuple(sorted(each.run.layer for _, each in members if each.run.layer is not None))
    is_whole = id(run.suite) in ran and ran[id(run.suite)] <= {*layers}
    covers = (_key(scope.first, run), _key(scope.last, run))
    if run.layer is None and ".".join(scope.first.split(".")[:-1]) != ".".join(scope.last.split(".")[:-1]):
        calling = (each for each in run.statements[place.first : place.last + 1] if each.steps)
        covers = ("layers", "layers") if all(isinstance(each.node, cst.For) for each in calling) else covers
    besides = dict.fromkeys(text for each, at in members for text in at.besides(each, begins=begins, ends=ends))
    by_layer = sorted(members, key=lambda member: -1 if member[1].run.layer is None else member[1].run.layer)
    own = tuple(each.name if each.name != replace(each, name="").label else "" for each, _ in by_layer)
    inside = dict.fromkeys(node for _, at in members for node in _statements(at))
    return Block(
        run.suite, place.first, place.last, run.function, scope.options, layers, is_whole, run.index, covers,
        tuple(besides), run.turn, own, tuple(inside),
    )  # fmt: skip


def _statements(place: StatementRange) -> Iterator[cst.BaseStatement]:
    """Yield the statements of a place, and those of the functions that they call."""
    for statement in place.run.statements[place.first : place.last + 1]:
        yield statement.node
        for step in statement.steps:
            for _, run in (pair for inner in step.runs for pair in inner.walk()):
                yield from (each.node for each in run.statements)


def _key(unit: str, run: SuiteRun) -> str:
    """Return the name of a unit within its layer, or its own name outside of layers."""
    parts = unit.removeprefix(run.prefix).split(".")
    if run.layer is None:
        return parts[-1]
    if len(parts) > 1 and parts[1] == str(run.layer) and run.index is not None:
        parts = parts[2:] or parts[:1]
    return "_".join(parts)


def _refuse_crossings(blocks: Sequence[Block]) -> None:
    for block in blocks:
        for other in blocks:
            if other.suite is block.suite and block.first < other.first <= block.last < other.last:
                raise PlanError(
                    f"the scopes from {block.covers[0]!r} and from {other.covers[0]!r} cannot be expressed in this "
                    f"file: they overlap, in different layers, and all layers share "
                    f"{block.function.name}"
                )
