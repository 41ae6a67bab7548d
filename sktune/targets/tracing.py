"""Tracing: runs eager decode steps to find which modules run, in which order, and how long each takes.

Decoder layers are found by structure: siblings that each run once, one after the other, and hold most of the
parameters. Layers whose trees have equal names, classes and shapes are of the same kind.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sktune.core.errors import SpaceError, TargetError, described, nearest
from sktune.core.layout import Layer, Layout, Unit
from sktune.core.space import SpaceSpec
from sktune.measure.devices import device_of
from sktune.targets.base import Snapshot, Target, decode_inputs

TIMED_STEPS = 9
_EXPERT_WORDS = ("expert", "moe")
_PLACES = ("_user_stream_label", "_op_aicore_num", "_op_vectorcore_num")
"""Attributes that TorchAir's ``npu_stream_switch`` and ``limit_core_num`` set on operators."""


def trace_layout(target: Target, spec: SpaceSpec) -> Layout:
    """Run decode steps of ``target`` eagerly and return its layout. The state is restored.

    Raises:
        TargetError: the prefill or the decode step fails; the step runs no module of the tree, or returns no tensor.
        SpaceError: ``spec`` names units that did not run.
    """
    inputs = decode_inputs(target, 0, 1)[0]
    snapshot = Snapshot(target.state)
    with torch.no_grad():
        output, calls = record_calls(target.module, partial(target.decode_step, *inputs))
    snapshot.restore()
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(output)):
        returned = type(output).__name__
        raise TargetError(f"the decode step returns no tensor to compare ({returned}); have it return the logits")
    layout = layout_of(target.module, calls, spec)
    return layout.with_time_shares(_time_shares(target, inputs, snapshot, [unit.name for unit in layout.units]))


@dataclass(frozen=True, slots=True)
class Calls:
    """The modules that ran exactly once in a step, in order of their start, and the place of every module that ran."""

    names: Sequence[str]
    places: Mapping[str, str]


def layout_of(module: nn.Module, calls: Calls, spec: SpaceSpec) -> Layout:
    """Return the layout of a step that ran ``calls``, without shares of time.

    Raises:
        TargetError: no module of the tree ran, or none is a unit.
        SpaceError: ``spec`` names units that did not run.
    """
    modules = dict(module.named_modules())
    layers = _find_layers(modules, calls.names)
    chosen = _choose_units(modules, calls, layers, spec)
    units = tuple(replace(unit, place=calls.places[unit.name]) for unit in chosen)
    return Layout(units, _name_kinds(modules, layers, units))


class _Places(TorchDispatchMode):
    """Tracks the scopes of TorchAir in the model's code: streams and core limits, which no SuperKernel may cross."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._open: list[str] = []

    @property
    def now(self) -> str:
        """The scopes that are open now; empty if there are none."""
        return ", ".join(filter(None, self._open))

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Run the operator; if it begins or ends a scope, record that."""
        if str(function) == "air.scope_enter.default":
            place = [f"{name}={value}" for name, value in zip(*arguments[:2], strict=True) if name in _PLACES]
            self._open.append(" ".join(place))
        elif str(function) == "air.scope_exit.default" and self._open:
            self._open.pop()
        return function(*arguments, **(options or {}))


def record_calls(module: nn.Module, step: Callable[[], Any]) -> tuple[Any, Calls]:
    """Run ``step`` once, eagerly; return its output and the modules that ran.

    Raises:
        TargetError: the step fails, or runs no module of the tree.
    """
    begun: list[str] = []
    places: dict[str, str] = {}
    borders = _Places()
    handles = []
    for name, each in module.named_modules():

        def begin(_module: nn.Module, _arguments: Any, name: str = name) -> None:
            begun.append(name)
            places[name] = borders.now

        handles.append(each.register_forward_pre_hook(begin))
    try:
        with borders:
            output = step()
    except Exception as failure:
        raise TargetError(f"the eager decode step fails: {described(failure)}; fix the step or its inputs") from failure
    finally:
        for handle in handles:
            handle.remove()
    counts = Counter(begun)
    once = [name for name in begun if counts[name] == 1]
    if any(begun) and not any(once):
        name, most = Counter(filter(None, begun)).most_common(1)[0]
        raise TargetError(
            f"every submodule runs more than once in a decode step ({name} {most} times), but a unit must run once; "
            "use a separate module for each call"
        )
    if not any(once):
        raise TargetError("the decode step runs no submodule of the target's module; give the module that it runs")
    return output, Calls(once, places)


def _find_layers(modules: Mapping[str, nn.Module], calls: Sequence[str]) -> list[str]:
    """Return the paths of the decoder layers; empty if no siblings look like layers."""
    groups: dict[str, list[str]] = {}
    for name in calls:
        if name:
            groups.setdefault(name.rpartition(".")[0], []).append(name)
    best: list[str] = []
    best_size = 0
    for parent, children in groups.items():
        is_list = isinstance(modules[parent], nn.ModuleList | nn.Sequential)
        members = children if is_list else _largest_class(modules, children)
        if not is_list and len(members) < 2:
            continue
        size = sum(_parameters(modules[name]) for name in members)
        # Strictly larger, so that the outermost of nested candidates wins: it comes first, and holds those inside it.
        if size > best_size and any(list(modules[name].children()) for name in members):
            best, best_size = members, size
    return best


def _largest_class(modules: Mapping[str, nn.Module], names: Sequence[str]) -> list[str]:
    classes: dict[type, list[str]] = {}
    for name in names:
        classes.setdefault(type(modules[name]), []).append(name)
    return max(classes.values(), key=len)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _choose_units(modules: Mapping[str, nn.Module], calls: Calls, layers: list[str], spec: SpaceSpec) -> list[Unit]:
    kinds = [_kind_name(modules[name]) for name in layers]
    if isinstance(spec.units, dict) and (unknown := set(spec.units) - set(kinds)):
        name = min(unknown)
        raise SpaceError(
            f"the space names units of the layer kind {name!r}, which the model lacks{nearest(name, kinds)}"
        )
    units: list[Unit] = []
    missing: dict[str, list[str]] = {}
    for name in calls.names:
        layer = next((i for i, path in enumerate(layers) if name.startswith(path + ".")), None)
        if layer is None:
            if name and _is_outside_unit(name, layers):
                units.append(Unit(name, name.rpartition(".")[2]))
            continue
        key = name.removeprefix(layers[layer] + ".")
        wanted = spec.units.get(kinds[layer]) if isinstance(spec.units, dict) else spec.units
        if (key in wanted) if wanted is not None else _is_outermost(key, layers[layer], modules, calls):
            units.append(Unit(name, key, layer))
        missing.setdefault(kinds[layer], []).append(key)
    _refuse_unknown(spec, units, kinds, missing)
    wanted_units = [unit for unit in units if unit.layer is not None or _is_wanted(unit, spec.step_units)]
    if not wanted_units:
        raise TargetError("the decode step has no unit; name some in the space's `units`")
    return _without_outer(_unique_keys(wanted_units))


def _is_outermost(key: str, layer: str, modules: Mapping[str, nn.Module], calls: Calls) -> bool:
    """Whether only containers that do not run, such as an ``nn.ModuleDict``, are between a module and its layer.

    Members of an ``nn.ModuleList`` do not count: in the next step others may run, as with experts.
    """
    ends = [index for index, letter in enumerate(key) if letter == "."]
    containers = [f"{layer}.{key[:end]}" for end in ends]
    return not any(name in calls.places or isinstance(modules[name], nn.ModuleList) for name in containers)


def _is_wanted(unit: Unit, wanted: list[str] | None) -> bool:
    return wanted is None or unit.key in wanted


def _is_outside_unit(name: str, layers: Sequence[str]) -> bool:
    """Whether ``name`` is beside the layers: its parent contains them, and it does not."""
    if any(path.startswith(name + ".") or path == name for path in layers):
        return False
    parent = name.rpartition(".")[0]
    if not layers:
        return "." not in name
    return any(path.startswith(parent + ".") if parent else True for path in layers)


def _refuse_unknown(spec: SpaceSpec, units: Sequence[Unit], kinds: Sequence[str], ran: Mapping[str, list[str]]) -> None:
    for kind in dict.fromkeys(kinds):
        wanted = spec.units.get(kind, []) if isinstance(spec.units, dict) else spec.units or []
        in_kind = {unit.key for unit in units if unit.layer is not None and kinds[unit.layer] == kind}
        everywhere = {unit.key for unit in units if unit.layer is not None}
        for name in wanted:
            # A plain list is for all kinds, though a unit such as mlp.gate may exist in moe layers only.
            if name not in (in_kind if isinstance(spec.units, dict) else everywhere):
                raise SpaceError(
                    f"the space names the unit {name!r}, which does not run in a {kind} layer"
                    f"{nearest(name, dict.fromkeys(ran.get(kind, [])))}"
                )
    outside = {unit.key for unit in units if unit.layer is None}
    for name in spec.step_units or []:
        if name not in outside:
            raise SpaceError(f"the space names the step unit {name!r}, which the model lacks{nearest(name, outside)}")


def _unique_keys(units: list[Unit]) -> list[Unit]:
    """Use the whole path as the key of units outside layers whose last part is ambiguous."""
    outside = [unit.key for unit in units if unit.layer is None]
    return [
        Unit(unit.name, unit.name, None) if unit.layer is None and outside.count(unit.key) > 1 else unit
        for unit in units
    ]


def _without_outer(units: list[Unit]) -> list[Unit]:
    """Drop units that contain other units, as units are disjoint."""
    names = [unit.name for unit in units]
    return [unit for unit in units if not any(name.startswith(unit.name + ".") for name in names)]


def _kind_name(module: nn.Module) -> str:
    names = " ".join(f"{name} {type(child).__name__}" for name, child in module.named_modules()).lower()
    return "moe" if any(word in names for word in _EXPERT_WORDS) else "dense"


def _structure(module: nn.Module, keys: Sequence[str]) -> tuple[Any, ...]:
    classes = tuple((name, type(child).__qualname__) for name, child in module.named_modules())
    shapes = tuple((name, tuple(p.shape), str(p.dtype)) for name, p in module.named_parameters())
    return classes, shapes, tuple(keys)


def _name_kinds(modules: Mapping[str, nn.Module], layers: Sequence[str], units: Sequence[Unit]) -> tuple[Layer, ...]:
    """Give layers of equal structure the same kind: ``dense``, ``moe``, or ``dense_2`` for a second dense structure."""
    names: dict[tuple[Any, ...], str] = {}
    taken: dict[str, int] = {}
    named = []
    for index, path in enumerate(layers):
        inside = [unit for unit in units if unit.layer == index]
        moves = [unit.place != before.place for before, unit in pairwise(inside)]
        structure = (*_structure(modules[path], [unit.key for unit in inside]), tuple(moves))
        if structure not in names:
            kind = _kind_name(modules[path])
            taken[kind] = taken.get(kind, 0) + 1
            names[structure] = kind if taken[kind] == 1 else f"{kind}_{taken[kind]}"
        named.append(Layer(path, names[structure]))
    return tuple(named)


def _time_shares(target: Target, inputs: Sequence[Any], snapshot: Snapshot, names: Sequence[str]) -> dict[str, float]:
    """Return each unit's median share of the eager step's time over ``TIMED_STEPS`` steps; 0 on the meta device."""
    if any(parameter.is_meta for parameter in target.module.parameters()):
        return dict.fromkeys(names, 0.0)
    clock = device_of([*target.module.parameters(), *target.state.values()]).now_s
    rounds = []
    with torch.no_grad():
        for _ in range(TIMED_STEPS):
            snapshot.restore()
            rounds.append(time_units(target.module, names, partial(target.decode_step, *inputs), clock)[1])
    snapshot.restore()
    return median_shares(rounds)


def time_units(
    module: nn.Module, names: Sequence[str], step: Callable[[], Any], clock: Callable[[], float]
) -> tuple[Any, dict[str, float]]:
    """Run ``step`` once, eagerly; return its output and each named module's share of its time, 0 to 1."""
    modules = dict(module.named_modules())
    began: dict[str, float] = {}
    spent: dict[str, float] = {}
    handles = []
    for name in names:

        def begin(_module: nn.Module, _arguments: Any, name: str = name) -> None:
            began[name] = clock()

        def end(_module: nn.Module, _arguments: Any, _output: Any, name: str = name) -> None:
            spent[name] = clock() - began[name]

        handles += [modules[name].register_forward_pre_hook(begin), modules[name].register_forward_hook(end)]
    try:
        start = clock()
        output = step()
        total = clock() - start
    finally:
        for handle in handles:
            handle.remove()
    return output, {name: part / total for name, part in spent.items()}


def median_shares(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median share of each unit over several steps."""
    return {name: median(shares.get(name, 0.0) for shares in rounds) for name in rounds[0]}
