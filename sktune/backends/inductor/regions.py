"""Regions: the graphs of scopes, cut from a captured graph, and their identity.

Two scopes whose graphs are equal up to names, with inputs of equal layout, are one region: compiled once, and called
with each scope's weights and state.
"""

import hashlib
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.split_module import split_module

from sktune.backends.base import CompileError
from sktune.core.delivery import ExpectedCode
from sktune.core.layout import CapturedWork, Layout
from sktune.core.plan import Option
from sktune.targets.marks import Boundary, read_mark


@dataclass(frozen=True, slots=True)
class Span:
    """The position of a scope in a graph: nodes ``start`` (included) to ``end`` (excluded)."""

    label: str
    start: int
    end: int
    options: tuple[tuple[str, Option], ...] = ()
    code: ExpectedCode | None = None


@dataclass(frozen=True, slots=True)
class MarkedGraph:
    """A captured graph without its marks, and the spans that they marked, by label."""

    graph_module: fx.GraphModule
    spans: Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class Region:
    """The graph of one scope.

    Attributes:
        graph_module: takes the region's inputs, returns a tuple.
        inputs: example inputs; weights and state are the real tensors, the rest is uninitialised.
        parameters: which of the inputs are weights.
        key: identity up to names.
        outlasting: indices of the inputs that are inputs of the whole step, which include all state.
    """

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    parameters: tuple[bool, ...]
    key: str
    outlasting: tuple[int, ...] = ()


def strip_marks(graph_module: fx.GraphModule) -> MarkedGraph:
    """Remove the marks from a captured graph and return their positions.

    Raises:
        CompileError: a scope is entered twice, or not closed.
    """
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(graph_module.graph, values)
    output = next(node for node in graph_module.graph.nodes if node.op == "output")
    graph.output(fx.node.map_arg(output.args[0], values.__getitem__))
    starts: dict[str, tuple[int, Boundary]] = {}
    spans: dict[str, Span] = {}
    position = 0
    for node in list(graph.nodes):
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
            spans[mark.label] = Span(mark.label, start, position, tuple(sorted(entered.options.items())), entered.code)
    if unclosed := starts.keys() - spans.keys():
        raise CompileError(
            f"scope {min(unclosed)!r} is never closed: its last unit does not run in this step; choose another"
        )
    return MarkedGraph(fx.GraphModule(graph_module, graph), spans)


@dataclass(frozen=True, slots=True)
class RegionSlot:
    """The place in a graph from which a scope was cut."""

    call: fx.Node
    region: Region
    options: Mapping[str, Option]
    label: str
    code: ExpectedCode | None = None


@dataclass(frozen=True, slots=True)
class Cutting:
    """A graph with slots where the scopes were."""

    whole: fx.GraphModule
    slots: tuple[RegionSlot, ...]

    def fill(self, functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        """Put one compiled region into each slot, and return the function that runs the whole graph."""
        for slot, function in zip(self.slots, functions, strict=True):
            _replace(self.whole, slot.call, _Call(function))
        if self.slots:
            self.whole.graph.lint()
            self.whole.recompile()
        return self.whole.forward


def cut(graph_module: fx.GraphModule, spans: Sequence[Span], example_inputs: Sequence[Any]) -> Cutting:
    """Cut each span out of the graph.

    Nodes outside of spans will run kernel by kernel, in the order in which they were captured.
    """
    occupied = [span for span in sorted(spans, key=lambda span: span.start) if span.end > span.start]
    if not occupied:
        return Cutting(graph_module, ())
    nodes = _operators(graph_module)
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
    real = dict(zip(placeholders, example_inputs, strict=True))
    slots = []
    for order, span in enumerate(occupied):
        name = f"submod_{2 * order + 1}"
        if name in calls:  # else no result of the span is used and it has no effect
            region = _region(getattr(whole, name), calls[name], real, span.label)
            slots.append(RegionSlot(calls[name], region, dict(span.options), span.label, span.code))
    return Cutting(whole, tuple(slots))


def captured_work(marked: MarkedGraph, layout: Layout) -> Layout:
    """Return the layout with the captured operators of each unit, and of those that lie between it and the next one."""
    nodes = _operators(marked.graph_module)
    spans = [marked.spans[unit.name] for unit in layout.units if unit.name in marked.spans]
    starts = [*(span.start for span in spans[1:]), spans[-1].end] if spans else []
    return layout.with_work(
        {span.label: _work(nodes[span.start : span.end]) for span in spans},
        {span.label: _work(nodes[span.end : start]) for span, start in zip(spans, starts, strict=True)},
    )


def _work(nodes: Sequence[fx.Node]) -> CapturedWork:
    values = [value for node in nodes if isinstance(value := node.meta.get("example_value"), torch.Tensor)]
    # A size that depends on the data counts as nothing.
    sizes = [value.numel() * value.element_size() for value in values if isinstance(value.numel(), int)]
    return CapturedWork(len(nodes), sum(sizes))


def _operators(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "output")]


class _Call(nn.Module):
    """A compiled region as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _replace(whole: fx.GraphModule, call: fx.Node, module: nn.Module) -> None:
    """Replace the module of ``call`` by ``module``, which returns a tuple."""
    returned_tuple = _returns_tuple(getattr(whole, str(call.target)))
    setattr(whole, str(call.target), module)
    if not returned_tuple:
        with whole.graph.inserting_after(call):
            first = whole.graph.call_function(operator.getitem, (call, 0))
        call.replace_all_uses_with(first, delete_user_cb=lambda user: user is not first)


def _output(graph_module: fx.GraphModule) -> fx.Node:
    node: fx.Node = next(node for node in graph_module.graph.nodes if node.op == "output")
    return node


def _returns_tuple(graph_module: Any) -> bool:
    return isinstance(_output(graph_module).args[0], tuple | list)


def _region(piece: fx.GraphModule, call: fx.Node, real: Mapping[str, Any], label: str) -> Region:
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(piece.graph, values)
    returned = fx.node.map_arg(_output(piece).args[0], values.__getitem__)
    graph.output(tuple(returned) if isinstance(returned, tuple | list) else (returned,))
    for node in graph.nodes:
        node.meta.pop("unbacked_bindings", None)  # symbols of the capture; the compilation makes its own
    placeholders = [node for node in piece.graph.nodes if node.op == "placeholder"]
    inputs = tuple(
        _example(argument, placeholder, real, label)
        for argument, placeholder in zip(call.args, placeholders, strict=True)
    )
    parameters = tuple(isinstance(value, nn.Parameter) for value in inputs)
    graph_module = fx.GraphModule(piece, graph)
    outlasting = tuple(
        index for index, value in enumerate(call.args) if isinstance(value, fx.Node) and value.op == "placeholder"
    )
    return Region(graph_module, inputs, parameters, _key(graph_module, inputs), outlasting)


def _example(argument: Any, placeholder: fx.Node, real: Mapping[str, Any], label: str) -> Any:
    """Return the captured input, or a tensor with the layout of the one that will be computed."""
    if not isinstance(argument, fx.Node):
        return argument
    if argument.op == "placeholder":
        return real[argument.name]
    value = placeholder.meta["example_value"]
    numbers = (*value.size(), *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    if any(isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) for number in numbers):
        reason = f"its input {argument.name} has a size that depends on the data; begin the scope where it is computed"
        raise CompileError(f"scope {label}: {reason}", blamed=label)
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    return value


def _key(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> str:
    digest = hashlib.sha256(_describe_graph(graph_module).encode())
    storages: dict[int, int] = {}
    for value in inputs:
        digest.update(_describe_input(value, storages).encode())
    return digest.hexdigest()


def _describe_input(value: Any, storages: dict[int, int]) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    storage = value.untyped_storage().data_ptr()
    # Inputs that share memory are compiled differently from others.
    layout = (
        tuple(value.size()),
        tuple(value.stride()),
        value.storage_offset(),
        str(value.dtype),
        str(value.device),
    )
    return repr((layout, storages.setdefault(storage, len(storages)), isinstance(value, nn.Parameter)))


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
    value: Any = graph_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if isinstance(value, fx.GraphModule):
        return _describe_graph(value)
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{tuple(value.shape)} {value.dtype} {hashlib.sha256(raw).hexdigest()}"
    return repr(value)


def _describe_callable(target: Callable[..., Any]) -> str:
    """Return the text that is the same in every process, if that name leads to what is called."""
    owner = getattr(target, "__self__", None)
    name = getattr(target, "__qualname__", "")
    if isinstance(target, FunctionType):
        found: Any = sys.modules.get(target.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
    elif isinstance(target, BuiltinFunctionType) and isinstance(owner, type | ModuleType):
        found = getattr(owner, target.__name__, None)
    else:
        found = None
    module = getattr(target, "__module__", "")
    return f"{module}.{name}" if found == target else f"{module}.{target}"
