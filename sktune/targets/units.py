"""Units: which of the modules that a step runs are units, and which of them are decoder layers.

Layers are found by structure: stacks of siblings that run one after the other, of which the main one holds most of the
parameters. Layers whose trees have equal names, classes and shapes are of the same kind. What counts is how calls are
nested, not how modules are registered: a module can call one that is registered elsewhere.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sktune.core.errors import SpaceError, TargetError, nearest
from sktune.core.layout import Layer, Layout, Unit
from sktune.core.space import SpaceSpec
from sktune.program.sktune_program.calls import Calls, CallSpan, ModuleCall
from sktune.targets.module_tree import ModuleTree

WHOLE_LAYER = "layer"
"""The key of a layer that is a unit, as it runs no module inside it."""
_EXPERT_WORDS = ("expert", "moe")
_REPEATED_WEIGHT = 2
"""Siblings of one class are taken for layers even if a mixed list around them has up to twice their parameters."""


def layout_of(tree: ModuleTree, calls: Calls, spec: SpaceSpec) -> Layout:
    """Return the layout of a step that ran ``calls`` of the modules in ``tree``, without shares of time.

    Raises:
        TargetError: no module that ran is a unit.
        SpaceError: ``spec`` names units that did not run.
    """
    layers = _find_layers(tree, calls)
    chosen = _Choice(tree, calls, layers, spec).units()
    units = tuple(replace(unit, place=calls.once[unit.name].place) for unit in chosen)
    return Layout(units, _name_kinds(tree, [name for name, _ in layers], units))


@dataclass(frozen=True, slots=True)
class _Stack:
    """Siblings that may be layers, in the order in which they run, and their number of parameters."""

    parent: str
    is_list: bool
    members: tuple[tuple[str, CallSpan], ...]
    classes: Mapping[int, int]
    size: int

    @property
    def has_repeats(self) -> bool:
        """Whether two members are of one class."""
        return max(self.classes.values()) > 1

    def is_inside(self, other: "_Stack") -> bool:
        """Whether these siblings are inside a member of the other stack."""
        return any(f"{self.parent}.".startswith(f"{name}.") for name, _ in other.members)


def _find_layers(tree: ModuleTree, calls: Calls) -> list[tuple[str, CallSpan]]:
    """Return the paths of the decoder layers, in the order in which they run; empty if no siblings look like layers."""
    stacks = _without_frames(list(_stacks(tree, calls)))
    if not stacks:
        return []
    # The first of equals is the outermost.
    main = max(stacks, key=lambda stack: stack.size * (_REPEATED_WEIGHT if stack.has_repeats else 1))
    layers = list(main.members)
    for stack in sorted(stacks, key=lambda stack: -stack.size):
        is_alike = stack.has_repeats or main.classes.keys() & stack.classes.keys()
        if is_alike and _are_disjoint([span for _, span in (*layers, *stack.members)]):
            layers += stack.members
    return sorted(layers, key=lambda layer: layer[1].began)


def _without_frames(stacks: Sequence[_Stack]) -> list[_Stack]:
    """Drop siblings such as an encoder and a decoder of one class, which consist of lists of layers."""
    lists = [stack for stack in stacks if stack.is_list and stack.has_repeats]
    outermost = [stack for stack in lists if not any(stack.is_inside(other) for other in lists)]
    return [
        stack for stack in stacks
        if stack.is_list or 2 * sum(inner.size for inner in outermost if inner.is_inside(stack)) < stack.size
    ]  # fmt: skip


def _stacks(tree: ModuleTree, calls: Calls) -> Iterator[_Stack]:
    """Yield groups of siblings that may be layers, outer ones first."""
    modules = tree.modules
    groups: dict[str, list[tuple[str, CallSpan]]] = {}
    for name, span in _spans(calls).items():
        if name and tree.children(modules[name]):
            groups.setdefault(name.rpartition(".")[0], []).append((name, span))
    for parent in sorted(groups, key=lambda parent: parent.count(".") + bool(parent)):
        members = sorted(groups[parent], key=lambda member: member[1].began)
        is_list = bool(tree.class_of(modules[parent]).list_kind)
        if not is_list:
            largest = Counter(tree.class_number(modules[name]) for name, _ in members).most_common(1)[0][0]
            members = [member for member in members if tree.class_number(modules[member[0]]) == largest]
            if len(members) < 2:
                continue
        if _are_disjoint([span for _, span in members]):
            classes = Counter(tree.class_number(modules[name]) for name, _ in members)
            size = sum(tree.size(modules[name]) for name, _ in members)
            yield _Stack(parent, is_list, tuple(members), classes, size)


def _spans(calls: Calls) -> dict[str, CallSpan]:
    """Return the spans of the modules that ran once, and of the containers that do not run themselves."""
    spans = {name: call.span for name, call in calls.once.items() if call.span}
    for call in calls.calls:
        name = call.name.rpartition(".")[0]
        while name and name not in calls.ran and call.span:
            known = spans.get(name, call.span)
            spans[name] = CallSpan(min(known.began, call.span.began), max(known.ended, call.span.ended))
            name = name.rpartition(".")[0]
    return spans


def _are_disjoint(spans: Sequence[CallSpan]) -> bool:
    ordered = sorted(spans, key=lambda span: span.began)
    return all(before.ended < after.began for before, after in pairwise(ordered))


class _Choice:
    """Chooses the units of a step whose layers are known."""

    def __init__(self, tree: ModuleTree, calls: Calls, layers: Sequence[tuple[str, CallSpan]], spec: SpaceSpec) -> None:
        self._tree, self._calls, self._layers, self._spec = tree, calls, layers, spec
        self._begins = [span.began for _, span in layers]
        self._kinds = [_kind_name(tree, tree.modules[name]) for name, _ in layers]
        self._spans = _spans(calls)

    def units(self) -> list[Unit]:
        """Return the units, in execution order."""
        spec = self._spec
        if isinstance(spec.units, dict) and (unknown := set(spec.units) - set(self._kinds)):
            name = min(unknown)
            raise SpaceError(
                f"the space names units of the layer kind {name!r}, which the model lacks{nearest(name, self._kinds)}"
            )
        inside, ran = self._inside()
        outside = [Unit(name, name.rpartition(".")[2]) for name in self._outside()]
        _refuse_unknown(spec, inside, outside, self._kinds, ran)
        wanted = [unit for unit in outside if spec.step_units is None or unit.key in spec.step_units]
        counts = Counter(unit.key for unit in wanted)
        # The key of a unit outside of layers is its whole path where the last part is ambiguous.
        units = [*inside, *(Unit(each.name, each.name) if counts[each.key] > 1 else each for each in wanted)]
        if not units:
            raise TargetError("the decode step has no unit; name some in the space's `units`")
        units.sort(key=lambda unit: self._spans[unit.name].began)
        # Units are disjoint: those that contain other units are dropped.
        following = [*(self._spans[unit.name] for unit in units[1:]), None]
        return [
            unit for unit, after in zip(units, following, strict=True)
            if after is None or not self._spans[unit.name].contains(after)
        ]  # fmt: skip

    def _inside(self) -> tuple[list[Unit], dict[str, list[str]]]:
        """Return the units in layers, and the keys of all modules that ran in each kind of layer."""
        units: list[Unit] = []
        ran: dict[str, list[str]] = {}
        for name, call in self._calls.once.items():
            index = self._layer_around(call)
            path = "" if index is None else self._layers[index][0]
            if index is None or not name.startswith(f"{path}."):
                continue  # also a module that a layer calls, but that is registered elsewhere
            key, kind = name.removeprefix(f"{path}."), self._kinds[index]
            wanted = self._spec.units.get(kind) if isinstance(self._spec.units, dict) else self._spec.units
            if (key in wanted) if wanted is not None else self._is_outermost(call, index):
                units.append(Unit(name, key, index))
            ran.setdefault(kind, []).append(key)
        if self._spec.units is None:  # layers that run no module of their own are units
            others = {unit.layer for unit in units}
            units += [
                Unit(name, WHOLE_LAYER, index) for index, (name, _) in enumerate(self._layers)
                if index not in others and name in self._calls.once
            ]  # fmt: skip
        return units, ran

    def _layer_around(self, call: ModuleCall) -> int | None:
        """Return the index of the layer in which a call runs; a layer is not around its own call."""
        assert call.span is not None
        index = bisect_right(self._begins, call.span.began) - 1
        if index < 0:
            return None
        name, span = self._layers[index]
        # A container that does not run begins and ends with the calls inside it.
        is_inside = span.began <= call.span.began and call.span.ended <= span.ended
        return index if is_inside and name != call.name else None

    def _is_outermost(self, call: ModuleCall, index: int) -> bool:
        """Whether a layer calls a module directly, which is in no ``nn.ModuleList`` of the layer.

        Members of an ``nn.ModuleList`` do not count: in the next step others may run, as with experts.
        """
        path = self._layers[index][0]
        if call.caller is not None:
            caller, around = self._calls.calls[call.caller], self._layers[index][1]
            span = caller.span or around
            if caller.name != path and around.began <= span.began and span.ended <= around.ended:
                return False
        parts = call.name.removeprefix(f"{path}.").split(".")
        parents = [f"{path}.{'.'.join(parts[:count])}" for count in range(1, len(parts))]
        return not any(self._is_module_list(parent) for parent in parents)

    def _outside(self) -> list[str]:
        """Return the outermost modules beside the layers. Without layers, a module around all others is opened."""
        opened = {index for index, call in enumerate(self._calls.calls) if not call.name or self._has_layer(call)}
        names = self._called_by({None, *opened})
        return self._parts(names[0]) if len(names) == 1 and not self._layers else names

    def _parts(self, name: str) -> list[str]:
        """Return the modules that ``name`` calls if they are several, however deep; else ``name``."""
        index = next(index for index, call in enumerate(self._calls.calls) if call.name == name)
        inside = self._called_by({index})
        if len(inside) == 1:
            inside = self._parts(inside[0])
        return inside if len(inside) > 1 else [name]

    def _has_layer(self, call: ModuleCall) -> bool:
        if call.span is None:
            return False
        index = bisect_right(self._begins, call.span.began)
        return index < len(self._layers) and call.span.contains(self._layers[index][1])

    def _called_by(self, callers: AbstractSet[int | None]) -> list[str]:
        """Return the modules outside of layers that run once, called by those with the given indices."""
        layers = {name for name, _ in self._layers}
        return [
            call.name
            for index, call in enumerate(self._calls.calls)
            if call.caller in callers and index not in callers and call.name in self._calls.once
            and call.name not in layers and self._layer_around(call) is None and self._always_runs(call.name)
        ]  # fmt: skip

    def _always_runs(self, name: str) -> bool:
        """Whether a module is in no ``nn.ModuleList`` of which this step runs only some members."""
        path, _, key = name.rpartition(".")
        while key:
            if self._is_module_list(path):
                members = [f"{path}.{member}".lstrip(".") for member in self._tree.children(self._tree.modules[path])]
                if not all(member in self._spans for member in members):
                    return False
            path, _, key = path.rpartition(".")
        return True

    def _is_module_list(self, path: str) -> bool:
        return self._tree.class_of(self._tree.modules[path]).list_kind == "list"


def _refuse_unknown(
    spec: SpaceSpec, inside: Sequence[Unit], outside: Sequence[Unit], kinds: Sequence[str], ran: Mapping[str, list[str]]
) -> None:
    everywhere = {unit.key for unit in inside}
    for kind in dict.fromkeys(kinds):
        wanted = spec.units.get(kind, []) if isinstance(spec.units, dict) else spec.units or []
        in_kind = {unit.key for unit in inside if unit.layer is not None and kinds[unit.layer] == kind}
        for name in wanted:
            # A plain list is for all kinds, though a unit such as mlp.gate may exist in moe layers only.
            if name not in (in_kind if isinstance(spec.units, dict) else everywhere):
                raise SpaceError(
                    f"the space names the unit {name!r}, which does not run in a {kind} layer"
                    f"{nearest(name, dict.fromkeys(ran.get(kind, [])))}"
                )
    keys = {unit.key for unit in outside}
    for name in spec.step_units or []:
        if name not in keys:
            raise SpaceError(f"the space names the step unit {name!r}, which the model lacks{nearest(name, keys)}")


def _kind_name(tree: ModuleTree, module: int) -> str:
    names = " ".join(f"{name} {tree.class_of(child).name}" for name, child in tree.named_modules(module)).lower()
    return "moe" if any(word in names for word in _EXPERT_WORDS) else "dense"


def _name_kinds(tree: ModuleTree, layers: Sequence[str], units: Sequence[Unit]) -> tuple[Layer, ...]:
    """Give layers of equal structure the same kind: ``dense``, ``moe``, or ``dense_2`` for a second dense structure."""
    inside: dict[int | None, list[Unit]] = {}
    for unit in units:
        inside.setdefault(unit.layer, []).append(unit)
    names: dict[tuple[Any, ...], str] = {}
    taken: dict[str, int] = {}
    named = []
    for index, path in enumerate(layers):
        own, module = inside.get(index, []), tree.modules[path]
        classes = tuple((name, tree.class_of(child).qualname) for name, child in tree.named_modules(module))
        moves = tuple(unit.place != before.place for before, unit in pairwise(own))
        structure = (classes, tuple(tree.named_parameters(module)), tuple(unit.key for unit in own), moves)
        if structure not in names:
            kind = _kind_name(tree, module)
            taken[kind] = taken.get(kind, 0) + 1
            names[structure] = kind if taken[kind] == 1 else f"{kind}_{taken[kind]}"
        named.append(Layer(path, names[structure]))
    return tuple(named)
