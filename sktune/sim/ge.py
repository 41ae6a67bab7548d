"""Operators from TorchAir's GE graph, with GE's types and shapes, after the real conversion."""

from dataclasses import replace
from math import prod, sqrt

from sktune.ascend.ge_graph import GeGraph, GeOperator, TensorSpec
from sktune.ascend.unit_kernels import units_plan
from sktune.core.errors import SimulationError
from sktune.core.layout import Layout
from sktune.sim.constants import Constants
from sktune.sim.operators import DYNAMIC_TYPES, DType, Operator, core_of, cores_filled, fusable

_SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
_GATHERS = ("Gather", "Index", "StridedSlice", "Slice")


def from_ge_graph(graph: GeGraph, layout: Layout, constants: Constants) -> tuple[Operator, ...]:
    """Return the device tasks of a graph that was dumped with ``units_plan(layout)``.

    Tensors of unknown shape count as empty.

    Raises:
        SimulationError: the graph was dumped with another plan, or none.
    """
    tasks = graph.device_tasks
    labels = {scope.label: scope.first for scope in units_plan(layout).scopes}
    foreign = {task.scope for task in tasks} - {"", *labels}
    if foreign or not any(task.scope for task in tasks):
        got = f"the scope {min(foreign)!r}" if foreign else "no scope"
        raise SimulationError(f"the graph's scopes must be the layout's units, got {got}; dump it with units_plan")
    streams = {name: index for index, name in enumerate(dict.fromkeys(["", *(task.stream for task in tasks)]))}
    waits = graph.waits if len(streams) > 1 else [()] * len(tasks)
    return tuple(
        replace(_operator(task, position, streams[task.stream], labels.get(task.scope), constants), after=after)
        for position, (task, after) in enumerate(zip(tasks, waits, strict=True))
    )


def _operator(task: GeOperator, position: int, stream: int, unit: str | None, constants: Constants) -> Operator:
    core = core_of(task.type, constants)
    specs = [*task.input_specs, *task.output_specs]
    counted = [*task.input_specs[1:], *task.output_specs * 2] if task.type.startswith(_GATHERS) else specs
    shape = task.output_specs[0].shape if task.output_specs else None
    return Operator(
        name=task.name,
        type=task.type,
        core=core,
        flops=_flops(task) if core in ("cube", "mix") else float(max(map(_count, specs), default=0)),
        bytes_moved=float(sum(map(_bytes, counted))),
        dtype=_dtype(task),
        unit=unit,
        position=position,
        stream=stream,
        blocks=cores_filled(core, shape or (), max(map(_bytes, specs), default=0), constants),
        can_fuse=fusable(task.type, core, constants),
        calls_sync_all=task.type in constants.sync_all_types.value,
        is_dynamic=task.type in DYNAMIC_TYPES,
        shapes=tuple(spec.shape or () for spec in task.input_specs),
    )


def _flops(task: GeOperator) -> float:
    """Return the operations of attention or of a matmul; a matmul's inner dimension follows from three sizes."""
    if len(task.input_specs) < 2 or not task.output_specs:
        return 0.0
    left, right, out = (_count(spec) for spec in (*task.input_specs[:2], task.output_specs[0]))
    if not (left and right and out):
        return 0.0
    if "Attention" in task.type:
        cached = ((0, 0, *(task.input_specs[1].shape or ())))[-2]
        return 2.0 * (left + out) * cached
    batch = prod((task.output_specs[0].shape or ())[:-2])
    return 2.0 * out * sqrt(left * right / out / batch)


def _count(spec: TensorSpec) -> int:
    return 0 if spec.shape is None else prod(spec.shape)


def _bytes(spec: TensorSpec) -> int:
    return _count(spec) * _SIZES.get(spec.dtype, 1)


def _dtype(task: GeOperator) -> DType:
    types = {spec.dtype for spec in task.input_specs}
    return "int8" if "int8" in types else "bf16" if types & {"bfloat16", "float16"} else "fp32"
