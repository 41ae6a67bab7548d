"""Carry a plan to a model with other layers: by kind, each kind's layers treated alike, and by place within a layer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst
import libcst.matchers as m

from sktune.core.errors import PlanError
from sktune.core.plan import Options, Plan, Scope
from sktune.core.plan_file import runs_of_kinds
from sktune.source.classes import LAYER_INDEX, SourceClass, last_name
from sktune.source.values import EvaluationPlace, Known, truth

UNIT = re.compile(r"(?P<list>.*?)\.(?P<layer>\d+)\.(?P<key>.+)")

Kinds = Sequence[str]
Signature = tuple[str, str, Options]


@dataclass(frozen=True, slots=True)
class Carried:
    """A plan for the model's own layers, and a note if that changed it."""

    plan: Plan
    n_layers: int
    note: str = ""


def carry(plan: Plan, kinds: Kinds, own: Kinds, source: str, *, known_kinds: bool, own_kinds: bool) -> Carried:
    """Return the plan for the model's own layers.

    Args:
        plan: to carry.
        kinds: of each layer for which it was made.
        own: of each layer of the model; only which layers are of one kind counts.
        source: of ``own``, for messages.
        known_kinds, own_kinds: whether the kinds are known, or only the numbers of layers.

    Raises:
        PlanError: layers of one kind differ in the plan, or which layers get a scope is open.
    """
    by_kind = known_kinds and own_kinds
    if len(kinds) == len(own) and (not by_kind or _numbered(kinds) == _numbered(own)):
        return Carried(plan, len(own))
    layers = _by_layer(plan, len(kinds))
    if _is_uniform(layers, range(len(kinds))):
        kinds, own = ["all"] * len(kinds), ["all"] * len(own)
    elif not by_kind:
        unknown = (
            "the kinds of the model's layers cannot be seen; put the config.json of its weights into the folder"
            if known_kinds
            else "add to the plan file which layers are of one kind, as in `kinds: 1 dense, 3 moe`"
        )
        raise PlanError(
            f"the plan is for {len(kinds)} layers, which it treats differently, and the model has {len(own)} "
            f"({source}); {unknown}"
        )
    names, wanted = list(dict.fromkeys(kinds)), list(dict.fromkeys(own))
    if len(names) != len(wanted):
        raise PlanError(
            f"the plan is for layers of {len(names)} kinds ({runs_of_kinds(kinds)}), and the model has {len(wanted)} "
            f"({source}); search on a model with the same kinds"
        )
    chosen: dict[str, tuple[Scope, ...]] = {}
    for name, other in zip(names, wanted, strict=True):
        members = [layer for layer, kind in enumerate(kinds) if kind == name]
        if not _is_uniform(layers, members):
            raise PlanError(
                f"the plan is for {len(kinds)} layers ({runs_of_kinds(kinds)}), and the model has {len(own)} "
                f"({source}); its {name} layers have different scopes, so which of the model's get them is open; "
                "search on the whole model"
            )
        chosen[other] = layers.get(members[0], ())
    scopes = [_moved(scope, layer) for layer, kind in enumerate(own) for scope in chosen[kind]]
    inside = {scope for of_layer in layers.values() for scope in of_layer}
    others = [_stretched(scope, len(kinds), len(own)) for scope in plan.scopes if scope not in inside]
    order = [*(scope for scope in others if not UNIT.match(scope.last)), *scopes]
    note = (
        f"carried from the plan's {len(kinds)} layers ({runs_of_kinds(kinds)}) to the model's {len(own)} "
        f"({runs_of_kinds(own)}; {source}): measure it again on the whole model"
    )
    return Carried(Plan((*order, *(scope for scope in others if UNIT.match(scope.last))), plan.options), len(own), note)


def kept(plan: Plan, kinds: Kinds, own: Kinds | None, n_layers: int, source: str) -> Carried:
    """Return the plan as it is, for a model of which only ``source``, which may not hold, names layers.

    Args:
        plan, kinds: see ``carry``.
        own, n_layers: the kinds, if they are known, and the number of the model's layers by ``source``.

    Raises:
        PlanError: it is for another number of layers, and treats them differently.
    """
    count = len(kinds)
    doubt = f"{n_layers} by {source}, which the config.json of its weights may change; put that into the folder"
    if count != n_layers and not _is_uniform(_by_layer(plan, count), range(count)):
        raise PlanError(f"the plan is for {count} layers, which it treats differently, and the model has {doubt}")
    is_same = count == n_layers and (own is None or len(set(kinds)) == 1 or _numbered(kinds) == _numbered(own))
    shown = f" ({runs_of_kinds(kinds)})" if len(set(kinds)) > 1 else ""
    note = "" if is_same else f"the plan is written for its own {count} layers{shown}: the model has {doubt} to be sure"
    return Carried(plan, count, note)


def kinds_of_text(text: str) -> Kinds:
    """Return the kind of each layer from ``1 dense, 3 moe``."""
    runs = [run.split() for run in text.split(",")]
    return [kind for count, kind in runs for _ in range(int(count))]


def _numbered(kinds: Kinds) -> list[int]:
    order = list(dict.fromkeys(kinds))
    return [order.index(kind) for kind in kinds]


def _layer(unit: str) -> int | None:
    match = UNIT.match(unit)
    return int(match["layer"]) if match else None


def _by_layer(plan: Plan, count: int) -> Mapping[int, tuple[Scope, ...]]:
    """Return the scopes of each layer.

    Raises:
        PlanError: a scope spans some of the layers.
    """
    layers: dict[int, tuple[Scope, ...]] = {}
    for scope in plan.scopes:
        first, last = _layer(scope.first), _layer(scope.last)
        if first is not None and first == last:
            layers[first] = (*layers.get(first, ()), scope)
        elif first not in (None, 0) or last not in (None, count - 1):
            raise PlanError(
                f"scope {scope.label!r} spans some of the plan's {count} layers, and the model has another number; "
                "search on the whole model"
            )
    return layers


def _is_uniform(layers: Mapping[int, tuple[Scope, ...]], members: Sequence[int]) -> bool:
    return len({tuple(_signature(scope) for scope in layers.get(layer, ())) for layer in members}) <= 1


def _signature(scope: Scope) -> Signature:
    first, last = UNIT.match(scope.first), UNIT.match(scope.last)
    assert first and last
    return first["key"], last["key"], scope.options


def _moved(scope: Scope, layer: int) -> Scope:
    name = re.sub(rf"(?<!\d){_layer(scope.first)}(?!\d)", str(layer), scope.name)
    return replace(scope, first=_at(scope.first, layer), last=_at(scope.last, layer), name=name)


def _stretched(scope: Scope, count: int, own: int) -> Scope:
    """Return a scope around all layers with the last layer's new number."""
    automatic = scope.name == replace(scope, name="").label
    last = _at(scope.last, own - 1) if _layer(scope.last) == count - 1 else scope.last
    return replace(scope, last=last, name="" if automatic else scope.name)


def _at(unit: str, layer: int) -> str:
    match = UNIT.match(unit)
    assert match
    return f"{match['list']}.{layer}.{match['key']}"


def own_kinds(classes: Mapping[str, SourceClass], plan: Plan, known: Known, count: int) -> Kinds | None:
    """Return a name for the kind of each of the model's layers: which conditions its ``__init__`` meets.

    None if a condition on the layer's number cannot be decided.
    """
    layer = _layer_class(classes, plan)
    if layer is None:
        return None
    tests = [
        test
        for function in layer.initializers
        for node in m.findall(function, m.If() | m.IfExp())
        if isinstance(node, cst.If | cst.IfExp) and _depends_on_layer(test := node.test, layer)
    ]
    parameters = [name for name in LAYER_INDEX if name in layer.parameters]
    kinds: list[str] = []
    for number in range(count):
        place = EvaluationPlace(known, layer, dict.fromkeys(parameters, number))
        decided = [truth(test, place) for test in tests]
        if None in decided:
            return None
        kinds.append("".join(str(int(bool(each))) for each in decided))
    return [f"of kind {number + 1}" for number in _numbered(kinds)]


def _layer_class(classes: Mapping[str, SourceClass], plan: Plan) -> SourceClass | None:
    """Return the class of the layers: of the first list that has the name of the list in the plan."""
    matches = (UNIT.match(unit) for scope in plan.scopes for unit in (scope.first, scope.last))
    name = next((match["list"].rpartition(".")[2] for match in matches if match), None)
    for owner in classes.values():
        child = owner.children(tuple(classes)).get(name or "")
        if child and child.is_list and child.classes:
            return classes[child.classes[0]]
    return None


def _depends_on_layer(node: cst.CSTNode, owner: SourceClass, depth: int = 0) -> bool:
    """Whether an expression in ``__init__`` reads the layer's number, directly or through an attribute."""
    names = {last_name(each) for each in m.findall(node, m.Name() | m.Attribute())}
    if names & set(LAYER_INDEX):
        return True
    return depth < 5 and any(
        _depends_on_layer(value, owner, depth + 1) for name in names for value in owner.assigned.get(name, ())
    )
