"""The kernels of each unit, from TorchAir's graph of a step in which every unit is a scope."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from sktune.ascend.ge_graph import GeGraph
from sktune.core.layout import Kernel, KernelCore, Layout
from sktune.core.plan import Plan, Scope

CUBE_TYPES = (
    "MatMul", "BatchMatMul", "GroupedMatmul", "QuantBatchMatmul", "QuantMatmul", "TransposeBatchMatMul", "Conv",
)  # fmt: skip
MIX_TYPES = ("FusedInferAttention", "FlashAttention", "PromptFlashAttention", "IncreFlashAttention", "MlaProlog")
"""Prefixes of GE's types of operators that run on cube units, and of those that run on cube and vector units."""
COLLECTIVE_TYPES = ("Hcom", "hcom_")


def units_plan(layout: Layout) -> Plan:
    """Return the plan with which to dump a graph: each unit is a scope, so each operator names its unit."""
    return Plan(tuple(Scope(unit.name, unit.name) for unit in layout.units))


def unit_kernels(graph: GeGraph, layout: Layout) -> Iterator[tuple[str | None, Kernel]]:
    """Yield the device tasks of a graph that was dumped with ``units_plan(layout)``, each with its unit.

    Every operator but a collective counts as one that can be fused: the compiler's list depends on its version.
    Streams are left out if units alternate, since a layout then does not keep the order of the tasks.
    """
    names = {scope.label: scope.first for scope in units_plan(layout).scopes}
    tasks = graph.device_tasks
    units = [names.get(task.scope) for task in tasks]
    runs = [unit for unit, _ in groupby(filter(None, units))]
    has_streams = len(runs) == len(set(runs)) and len({task.stream for task in tasks}) > 1
    edges = zip(graph.crossings, graph.views_before, strict=True)
    for place, (task, unit, (crossing, follows_view)) in enumerate(zip(tasks, units, edges, strict=True)):
        kernel = Kernel(task.type, kernel_core(task.type), not task.type.startswith(COLLECTIVE_TYPES))
        if has_streams:
            after = tuple(place - each for each in crossing)
            kernel = replace(kernel, stream=task.stream, after=after, follows_view=follows_view)
        yield unit, kernel


def kernel_core(kind: str) -> KernelCore:
    """Return the cores on which an operator of GE's type ``kind`` runs."""
    if kind.startswith(COLLECTIVE_TYPES):
        return "other"
    return "cube" if kind.startswith(CUBE_TYPES) else "mix" if kind.startswith(MIX_TYPES) else "vector"
