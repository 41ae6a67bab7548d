"""Regions: the graphs of scopes, cut from a captured graph, and their identity.

Two scopes whose graphs are equal up to names, with inputs of equal layout, are one region: compiled once, and called
with each scope's weights and state.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.split_module import split_module

from ..errors import CompileError, PlanError
from ..plan import Option, Options
from ..torch_private import storage_id
from .border import (
    ALIGNMENT,
    Border,
    Crossing,
    MemoryUse,
    Overlaps,
    StoragePlace,
    Window,
    is_plain,
    memory_use,
    overlapping,
    region_outputs,
    separate_storages_meet,
)
from .expected_code import ExpectedCode
from .marks import Boundary, read_call, read_mark

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GraphSpan:
    """The position of a scope in a graph: nodes ``start`` (included) to ``end`` (excluded)."""

    label: str
    start: int
    end: int
    options: Options = ()
    code: ExpectedCode | None = None


@dataclass(frozen=True)
class MarkedGraph:
    """A captured graph without its marks.

    Attributes:
        graph_module: the graph.
        spans: those that were marked, by label.
        held: its last inputs, tensors that the captured graph held as attributes. Dynamo makes attributes of tensors
            with a guarded static address, which torch 2.8 guards unless told otherwise.
        calls: types and shapes with which units were called, by the unit's name, as far as they were noted.
    """

    graph_module: fx.GraphModule
    spans: Mapping[str, GraphSpan]
    held: tuple[torch.Tensor, ...] = ()
    calls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Region:
    """The graph of one scope.

    Attributes:
        graph_module: what is compiled: takes the region's inputs, returns a tuple.
        inputs: example inputs; weights and state are the real tensors, the rest is uninitialised.
        parameters: which of the inputs are weights.
        key: identity up to names.
        outlasting: indices of the inputs that are inputs of the whole step, which include all state.
        kernels: the scope's graph as captured; takes the scope's inputs and returns its outputs.
        bound: its inputs, like ``inputs``, but those of one memory share memory.
        border: turns the scope's inputs into the region's, and the region's outputs into the scope's.
        written: indices of the inputs that it writes.
        written_by_kernels: indices of the scope's inputs that the kernels write.
        written_memory: identities of the memory that it writes, as ``cut`` numbers it.
    """

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    parameters: tuple[bool, ...]
    key: str
    kernels: fx.GraphModule
    bound: tuple[Any, ...]
    border: Border
    outlasting: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    written_by_kernels: tuple[int, ...] = ()
    written_memory: frozenset[int] = frozenset()


def strip_marks(graph_module: fx.GraphModule) -> MarkedGraph:
    """Remove the marks from a captured graph and return their positions.

    Raises:
        CompileError: a scope is entered twice, or not closed.
    """
    graph, returned = copied_graph(graph_module)
    graph.output(returned)
    held = _lift_attributes(graph, graph_module)
    starts: dict[str, tuple[int, Boundary]] = {}
    spans: dict[str, GraphSpan] = {}
    calls: dict[str, str] = {}
    position = 0
    for node in list(graph.nodes):
        if (called := read_call(node)) is not None:
            calls.setdefault(*called)
            graph.erase_node(node)
            continue
        mark = read_mark(node)
        if mark is None:
            position += node.op not in ("placeholder", "output")
            continue
        graph.erase_node(node)
        if mark.enters:
            if mark.label in starts:
                raise CompileError(
                    f"scope {mark.label!r} is entered twice in one step; give each scope a different label"
                )
            starts[mark.label] = (position, mark)
        else:
            if mark.label not in starts:
                raise CompileError(f"scope {mark.label!r} ends before it begins; swap its first and last units")
            start, entered = starts[mark.label]
            spans[mark.label] = GraphSpan(
                mark.label, start, position, tuple(sorted(entered.options.items())), entered.code
            )
    if unclosed := starts.keys() - spans.keys():
        raise CompileError(
            f"scope {min(unclosed)!r} is never closed: its last unit does not run in this step; choose another"
        )
    return MarkedGraph(fx.GraphModule(graph_module, graph), spans, held, calls)


def _lift_attributes(graph: fx.Graph, owner: fx.GraphModule) -> tuple[torch.Tensor, ...]:
    """Make inputs of the tensors that are attributes of ``owner``, and return them: what is an input can be written."""
    held = []
    last = next((node for node in reversed(graph.nodes) if node.op == "placeholder"), None)
    for node in graph.find_nodes(op="get_attr"):
        value = _attribute(owner, node)
        if isinstance(value, torch.Tensor):
            with graph.inserting_after(last):
                last = graph.placeholder(node.name)
            last.meta = dict(node.meta)
            node.replace_all_uses_with(last)
            graph.erase_node(node)
            held.append(value)
    return tuple(held)


@dataclass(frozen=True)
class RegionSlot:
    """The place in a graph from which a scope was cut."""

    call: fx.Node
    region: Region
    options: Mapping[str, Option]
    label: str
    code: ExpectedCode | None = None


@dataclass(frozen=True)
class Cutting:
    """A graph with slots where the scopes were.

    Attributes:
        whole: the graph; what was cut out are its submodules.
        slots: in execution order.
        kernels: runs the graph kernel by kernel.
        overlaps: checks the memory of the step's inputs.
    """

    whole: fx.GraphModule
    slots: tuple[RegionSlot, ...]
    kernels: Callable[..., Any]
    overlaps: Overlaps

    def fill(self, functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        """Put one compiled region into each slot, and return the function that runs the whole graph.

        A step whose inputs overlap in memory as they did not when it was compiled runs kernel by kernel; if the plan is
        strict, it raises ``PlanError``.
        """
        if not self.slots:
            return self.whole.forward
        for slot, function in zip(self.slots, functions):
            name = str(slot.call.target)
            returns_tuple = isinstance(_output(getattr(self.whole, name)).args[0], (tuple, list))
            setattr(self.whole, name, _Call(Crossing(function, slot.region.border)))
            if not returns_tuple:  # as the compiled region does
                with self.whole.graph.inserting_after(slot.call):
                    first = self.whole.graph.call_function(operator.getitem, (slot.call, 0))
                slot.call.replace_all_uses_with(first, delete_user_cb=partial(operator.is_not, first))
        self.whole.graph.lint()
        self.whole.recompile()
        is_strict = any(slot.code is not None and slot.code.is_strict for slot in self.slots)
        compiled, kernels, overlaps = self.whole.forward, self.kernels, self.overlaps

        def run(*inputs: Any) -> Any:
            if overlaps.as_compiled(inputs):
                return compiled(*inputs)
            problem = "tensors of the step share memory in another way than when its scopes were compiled"
            if is_strict:
                raise PlanError(f"{problem}; compile the step again after moving its state")
            logger.warning("%s: it runs without scopes", problem)
            return kernels(*inputs)

        return run


def cut(graph_module: fx.GraphModule, spans: Sequence[GraphSpan], example_inputs: Sequence[Any]) -> Cutting:
    """Cut each span out of the graph.

    Nodes outside of spans will run kernel by kernel, in the order in which they were captured.
    """
    occupied = [span for span in sorted(spans, key=lambda span: span.start) if span.end > span.start]
    if not occupied:
        return Cutting(graph_module, (), graph_module.forward, Overlaps((), ()))
    nodes = operators(graph_module)
    partition: dict[fx.Node, int] = {}
    before = 0
    for index, node in enumerate(nodes):
        while before < len(occupied) and occupied[before].end <= index:
            before += 1
        inside = before < len(occupied) and occupied[before].start <= index
        partition[node] = 2 * before + inside
    whole = split_module(graph_module, graph_module, partition.__getitem__, keep_original_order=True)
    calls = {str(node.target): node for node in whole.graph.nodes if node.op == "call_module"}
    placeholders = [node.name for node in whole.graph.nodes if node.op == "placeholder"]
    real = dict(zip(placeholders, example_inputs))
    memory = _Memory(whole, real)
    slots = []
    for order, span in enumerate(occupied):
        name = f"submod_{2 * order + 1}"
        if name in calls:  # else no result of the span is used and it has no effect
            region = _region(getattr(whole, name), calls[name], memory, span.label)
            slots.append(RegionSlot(calls[name], region, dict(span.options), span.label, span.code))
    written = frozenset[int]().union(*(slot.region.written_memory for slot in slots)) - {0}
    indices = [index for index, name in enumerate(placeholders) if memory.of_input(name) in written]
    return Cutting(whole, tuple(slots), graph_module.forward, Overlaps(example_inputs, indices))


def operators(graph_module: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes of a graph that compute something, in execution order."""
    return [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "output")]


class _Call(nn.Module):
    """A compiled region as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _output(graph_module: fx.GraphModule) -> fx.Node:
    node: fx.Node = next(node for node in graph_module.graph.nodes if node.op == "output")
    return node


def copied_graph(graph_module: fx.GraphModule) -> tuple[fx.Graph, Any]:
    """Return a copy of a graph without its output, and what it returns."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(graph_module.graph, values)
    return graph, fx.node.map_arg(_output(graph_module).args[0], values.__getitem__)


class _Memory:
    """Which values of a captured graph share memory.

    Args:
        whole: the graph.
        real: its inputs, by name.
    """

    def __init__(self, whole: fx.GraphModule, real: Mapping[str, Any]) -> None:
        self._real = real
        self._storages: dict[int, torch.UntypedStorage] = {}
        for node in whole.graph.nodes:
            captured = node.meta.get("example_value")
            if node.op == "placeholder" and is_plain(captured) and is_plain(real[node.name]):
                self._storages[storage_id(captured)] = real[node.name].untyped_storage()

    def storage(self, captured: Any) -> int:
        """Return the identity of the memory of a captured value: equal for those that share it; 0 for what has none."""
        if not is_plain(captured):
            return 0
        storage = self._storages.get(storage_id(captured))
        return storage_id(captured) if storage is None else storage.data_ptr()

    def of_input(self, name: str) -> int:
        """Return the same for an input of the graph."""
        return self._real[name].untyped_storage().data_ptr() if is_plain(self._real[name]) else 0

    def bind(self, argument: Any, value: Any, label: str) -> Any:
        """Return the captured input, or an uninitialised tensor that lies in memory as the computed one will.

        Args:
            argument: of the scope, in the graph.
            value: its captured value.
            label: of the scope.

        Raises:
            CompileError: its size depends on the data.
        """
        if not isinstance(argument, fx.Node):
            return argument
        if argument.op == "placeholder":
            return self._real[argument.name]
        numbers = (*value.size(), *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) for number in numbers):
            raise CompileError.of_scope(
                label,
                f"its input {argument.name} has a size that depends on the data; begin the scope where it is computed",
            )
        if not isinstance(value, torch.Tensor):
            return value
        nbytes = value.untyped_storage().nbytes() if is_plain(value) else None
        if not isinstance(nbytes, int) or not isinstance(value.storage_offset(), int):
            return _in_own_memory(value)
        identity = storage_id(value)
        if identity not in self._storages:
            self._storages[identity] = torch.UntypedStorage(nbytes, device=value.device)
        return StoragePlace.of(value).tensor(self._storages[identity])


def _region(piece: fx.GraphModule, call: fx.Node, memory: _Memory, label: str) -> Region:
    captured = [node.meta.get("example_value") for node in piece.graph.nodes if node.op == "placeholder"]
    bound = tuple(memory.bind(*pair, label) for pair in zip(call.args, captured))
    graph, returned = _copied(piece)
    graph.output(returned)
    kernels = fx.GraphModule(piece, graph)
    use = _memory_use(kernels, bound)
    windows = _windows(bound, use, label)
    inside = {index for window in windows for index, _ in window.members}
    separate = tuple(index for index in range(len(bound)) if index not in inside)
    graph, returned = _copied(piece)
    first: dict[int, tuple[int, StoragePlace]] = {}
    for index, value in enumerate(captured):
        if is_plain(value):
            first.setdefault(storage_id(value), (index, StoragePlace.of(value)))
    outputs, made, own_places = region_outputs(graph, returned, first)
    _open_windows(graph, [node for node in graph.nodes if node.op == "placeholder"], windows)
    graph.output(tuple(outputs))
    graph_module = fx.GraphModule(piece, graph)
    is_given = [isinstance(value, fx.Node) and value.op == "placeholder" for value in call.args]
    storages = [memory.storage(value) for value in captured]
    crowd = Counter(storages)
    inputs = tuple(
        bound[index]
        if isinstance(bound[index], nn.Parameter) or (is_given[index] and crowd[storages[index]] < 2)
        else _in_own_memory(bound[index])
        for index in separate
    )
    inputs += tuple(torch.empty_like(window.tensor(bound)) for window in windows)
    members = [*((index,) for index in separate), *([index for index, _ in window.members] for window in windows)]
    return Region(
        graph_module,
        inputs,
        tuple(isinstance(value, nn.Parameter) for value in inputs),
        _key(graph_module, inputs, [bound[index] for index in separate]),
        kernels,
        bound,
        Border(separate, windows, tuple(made), own_places),
        tuple(index for index, own in enumerate(members) if all(is_given[each] for each in own)),
        tuple(index for index, own in enumerate(members) if set(own) & set(use.written)),
        use.written,
        frozenset(storages[index] for index in use.written),
    )


def _copied(piece: fx.GraphModule) -> tuple[fx.Graph, tuple[Any, ...]]:
    """Return a copy of a piece's graph without its output, and what it returns, as a tuple."""
    graph, returned = copied_graph(piece)
    for node in graph.nodes:
        node.meta.pop("unbacked_bindings", None)  # symbols of the capture; the compilation makes its own
    return graph, tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _memory_use(kernels: fx.GraphModule, bound: tuple[Any, ...]) -> MemoryUse:
    try:
        return memory_use(kernels, bound)
    except Exception:
        logger.warning("cannot find what a scope writes; assuming all inputs except weights", exc_info=True)
        return MemoryUse(
            tuple(index for index, value in enumerate(bound) if is_plain(value) and not isinstance(value, nn.Parameter))
        )


def _windows(bound: Sequence[Any], use: MemoryUse, label: str) -> tuple[Window, ...]:
    """Return the windows through which inputs enter a region that cannot enter it as separate tensors.

    Raises:
        CompileError: the compiler cannot do what the scope does with its memory.
    """
    if use.repeats:
        raise CompileError.of_scope(
            label,
            f"{use.repeats} writes through an expanded view, which compiled code does not do as eager execution does; "
            "write into the tensor itself",
        )
    if pair := separate_storages_meet(bound, use.written):
        raise CompileError.of_scope(
            label,
            f"its inputs {pair[0]} and {pair[1]} share memory without being views of one tensor, and one is written; "
            "make one a view of the other",
        )
    storages = {index: value.untyped_storage().data_ptr() for index, value in enumerate(bound) if is_plain(value)}
    whole = {storages[index] for index in use.restrided if bound[index].storage_offset()}
    groups = [tuple(index for index in storages if storages[index] == storage) for storage in whole]
    groups += [
        group for group in overlapping(bound) if storages[group[0]] not in whole and set(group) & set(use.written)
    ]
    windows = []
    for group in groups:
        window = Window.around({index: bound[index] for index in group}, storages[group[0]] in whole)
        if window is None:
            raise CompileError.of_scope(
                label, "its inputs are views of one memory in types whose sizes do not fit; keep the state in one type"
            )
        windows.append(window)
    return tuple(sorted(windows, key=lambda window: window.members[0][0]))


def _open_windows(graph: fx.Graph, placeholders: Sequence[fx.Node], windows: Sequence[Window]) -> None:
    """Replace the members of the windows in ``graph`` by views of new inputs, which come last."""
    last = placeholders[-1] if placeholders else None
    opened = []
    for number in range(len(windows)):
        with graph.inserting_after(last):
            last = graph.placeholder(f"window_{number}")
        opened.append(last)
    for window, node in zip(windows, opened):
        for index, place in window.members:
            with graph.inserting_after(last):
                view = window.view(graph, node, place)
            placeholders[index].replace_all_uses_with(view)
            graph.erase_node(placeholders[index])


def _in_own_memory(value: Any) -> Any:
    """Return an uninitialised tensor of the same layout, if ``value`` is a tensor, in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


def _key(graph_module: fx.GraphModule, inputs: Sequence[Any], separate: Sequence[Any]) -> str:
    """Return the identity of a region: its graph, the layout of its inputs, and the alignment of ``separate`` ones."""
    digest = hashlib.sha256(_describe_graph(graph_module).encode())
    misalignments = (StoragePlace.of(value).bytes[0] % ALIGNMENT if is_plain(value) else 0 for value in separate)
    digest.update(repr(tuple(misalignments)).encode())
    storages: dict[int, int] = {}
    for value in inputs:
        described: Any = value
        if isinstance(value, torch.Tensor):
            layout = (
                tuple(value.size()),
                tuple(value.stride()),
                value.storage_offset(),
                str(value.dtype),
                str(value.device),
            )
            # Inputs that share memory are compiled differently from others.
            storage = storages.setdefault(value.untyped_storage().data_ptr(), len(storages))
            described = (layout, storage, isinstance(value, nn.Parameter))
        digest.update(repr(described).encode())
    return digest.hexdigest()


def _describe_graph(graph_module: fx.GraphModule) -> str:
    number = {node: f"%{index}" for index, node in enumerate(graph_module.graph.nodes)}
    lines = []
    for node in graph_module.graph.nodes:
        target = "" if node.op in ("placeholder", "output") else _describe_target(graph_module, node)
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: _Named(number[n]))
        lines.append(f"{node.op} {target} {arguments!r}")
    return "\n".join(lines)


class _Named(str):
    """A node's number; printed without quotes, so that it differs from any string argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _describe_target(graph_module: fx.GraphModule, node: fx.Node) -> str:
    if node.op not in ("get_attr", "call_module"):
        return node.target if isinstance(node.target, str) else _describe_callable(node.target)
    value = _attribute(graph_module, node)
    if isinstance(value, fx.GraphModule):
        return _describe_graph(value)
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{tuple(value.shape)} {value.dtype} {hashlib.sha256(raw).hexdigest()}"
    return repr(value)


def _attribute(graph_module: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(graph_module)


def _describe_callable(target: Callable[..., Any]) -> str:
    """Return the text that is the same in every process, if that name leads to what is called."""
    owner = getattr(target, "__self__", None)
    name = getattr(target, "__qualname__", "")
    if isinstance(target, FunctionType):
        found: Any = sys.modules.get(target.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
    elif isinstance(target, BuiltinFunctionType):
        place = sys.modules.get(str(target.__module__)) if owner is None else owner  # torch.cat belongs to nothing
        found = getattr(place, target.__name__, None) if isinstance(place, (type, ModuleType)) else None
    else:
        found = None
    module = getattr(target, "__module__", "")
    return f"{module}.{name}" if found == target else f"{module}.{target}"
