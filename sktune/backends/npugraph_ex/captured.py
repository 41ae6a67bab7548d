"""What npugraph_ex captures of a marked step: operators in order, and the scopes in which each of them lies."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from sktune.ascend.captured_graph import CapturedTask, Kind
from sktune.ascend.graph_splits import split
from sktune.ascend.scope_check import CheckedScope
from sktune.core.scope_options import MAX_AIC, MAX_AIV
from sktune.program.sktune_program.torch_private import OpOverload

DEVICE = (MAX_AIC, MAX_AIV)
BEGIN, END = "npu.super_kernel_scope_begin.default", "npu.super_kernel_scope_end.default"


@dataclass(frozen=True, slots=True)
class CapturedOperator:
    """An operator of the captured graph.

    Attributes:
        name: unique in the graph.
        target: the operator's name with overload: ``aten.mm.default``.
        outputs: shape and type of each output.
        scopes: the names of the open scopes; none if one of them is unnamed, in which nothing is fused.
    """

    name: str
    target: str
    outputs: tuple[str, ...]
    scopes: frozenset[str]


def captured_operators(graph: fx.Graph) -> tuple[CapturedOperator, ...]:
    """Return the operators of the graph, views among them."""
    operators = []
    for node, mark, scopes in _walk(graph):
        if mark is None:
            value = node.meta.get("val")
            tensors = [each for each in (value if isinstance(value, tuple | list) else (value,))
                       if isinstance(each, torch.Tensor)]  # fmt: skip
            outputs = tuple(f"{each.dtype}{list(each.shape)}" for each in tensors)
            operators.append(CapturedOperator(node.name, str(node.target), outputs, scopes))
    return tuple(operators)


def checked_scopes(graph: fx.Graph, labels: Sequence[str]) -> tuple[CheckedScope, ...]:
    """Return how many SuperKernels each scope becomes, as if each operator were one kernel that can be fused.

    All operators count as tasks of one stream, each on one block.
    """
    tasks, inside = list[CapturedTask](), list[frozenset[str]]()
    for node, mark, scopes in _walk(graph):
        if mark or not getattr(node.target, "is_view", False):
            tasks.append(CapturedTask(mark or Kind.KERNEL, name=_name(node) if mark else None))
            inside.append(frozenset() if mark else scopes)
    operators = Counter(label for scopes in inside for label in scopes)
    fused = [frozenset().union(*(inside[task] for task in each.tasks)) for each in split(tasks, DEVICE).superkernels]
    found = Counter(label for scopes in fused for label in scopes)
    return tuple(CheckedScope(label, operators[label], found[label]) for label in labels)


def _walk(graph: fx.Graph) -> Iterator[tuple[fx.Node, Kind | None, frozenset[str]]]:
    """Yield markers, with their kinds, and operators, each with the scopes in which it may be fused."""
    open_scopes: list[str | None] = []
    for node in graph.nodes:
        mark = {BEGIN: Kind.BEGIN, END: Kind.END}.get(str(node.target))
        if mark is Kind.BEGIN:
            open_scopes.append(_name(node))
        elif mark is Kind.END:
            open_scopes.remove(_name(node))
        if mark or isinstance(node.target, OpOverload):
            named = frozenset(name for name in open_scopes if name is not None)
            yield node, mark, frozenset() if None in open_scopes else named


def digest(operators: Sequence[CapturedOperator]) -> str:
    """Return the identity of a graph; names do not count, only which operators are in the same scopes."""
    groups: dict[frozenset[str], int] = {frozenset(): 0}
    lines = [f"{each.target} {each.outputs} {groups.setdefault(each.scopes, len(groups))}" for each in operators]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _name(mark: fx.Node) -> str | None:
    name = mark.args[0] if mark.args else mark.kwargs.get("scope_name")
    return None if name is None else str(name)
