"""Operators: the device tasks of one decode step, as the cost model sees them.

They come from a traced step (``trace``), from a GE graph (``ge``), or from a measured profile.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any, Literal

import pandas as pd

from sktune.ascend.kernel_name import SUPERKERNEL
from sktune.ascend.unit_kernels import CUBE_TYPES, MIX_TYPES
from sktune.core.errors import SimulationError
from sktune.core.layout import Layout
from sktune.sim.constants import Constants

Core = Literal["cube", "vector", "mix", "aicpu", "communication"]
DType = Literal["int8", "bf16", "fp32"]
"""The element type, which determines the cube units' rate; fp16 counts as bf16."""

_CORES: dict[str, Core] = {
    "AI_CORE": "cube",
    "AI_VECTOR_CORE": "vector",
    "MIX_AIC": "mix",
    "MIX_AIV": "mix",
    "AI_CPU": "aicpu",
    "HCCL": "communication",
    "COMMUNICATION": "communication",
}
_LOOK_BACK = 256
"""How many preceding tasks one may have waited for; keeps long profiles linear."""
DYNAMIC_TYPES = frozenset({"NonZero", "Unique"})
"""Types whose output shape depends on data."""
TABLE_COLUMNS = ("step", "device", "stream", "name", "type", "core", "start_us", "duration_us", "wait_us", "blocks")


@dataclass(frozen=True, slots=True)
class Operator:
    """One device task of an eager, unfused step.

    Attributes:
        name: unique in its step.
        type: GE's operator type, e.g. ``MatMulV2``.
        core: the units on which it runs.
        flops: floating-point operations.
        bytes_moved: weights and activations, read and written.
        dtype: of the operands, for the cube units' rate.
        unit: the unit of the layout that contains it; None between units.
        position: index in execution order, from 0.
        stream: device stream.
        blocks: cores that it occupies: AIC for cube and mix, AIV for vector.
        can_fuse: whether GE can put it into a SuperKernel.
        calls_sync_all: whether its kernel waits for all cores of its launch.
        is_dynamic: whether its shape is known only at run time.
        module: path of the innermost module that ran it.
        shapes: of its tensor inputs.
        duration_us: measured or published task time, including the head; None for the model's.
        wait_us: measured gap before it; None for the model's.
        after: positions on other streams for which it waits.
        is_first_use: whether its kernel has not run before in its step (``launch.with_first_uses``).
    """

    name: str
    type: str
    core: Core
    flops: float = 0.0
    bytes_moved: float = 0.0
    dtype: DType = "bf16"
    unit: str | None = None
    position: int = 0
    stream: int = 0
    blocks: int = 1
    can_fuse: bool = True
    calls_sync_all: bool = False
    is_dynamic: bool = False
    module: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    duration_us: float | None = None
    wait_us: float | None = None
    after: tuple[int, ...] = ()
    is_first_use: bool = False


def numbered(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators with positions 0, 1, 2, ... in the order given; ``after`` must be empty."""
    return tuple(replace(operator, position=index) for index, operator in enumerate(operators))


def core_of(kind: str, constants: Constants) -> Core:
    """Return the units on which an operator of GE's type ``kind`` runs."""
    if kind.startswith(("Hcom", "hcom_", "MoeDistribute", *constants.fusable_collectives.value)):
        return "communication"
    if kind in constants.aicpu_types.value:
        return "aicpu"
    return "cube" if kind.startswith(CUBE_TYPES) else "mix" if kind.startswith(MIX_TYPES) else "vector"


def cores_filled(core: Core, shape: Sequence[int], largest_bytes: float, constants: Constants) -> int:
    """Return how many cores an operator occupies: by output tiles on cube units, by bytes on vector units.

    Args:
        core: the units on which it runs.
        shape: of its first output.
        largest_bytes: size of its largest tensor.
        constants: tile sizes and core counts.
    """
    if core in ("cube", "mix"):
        *batch, rows, columns = (1, 1, *shape)
        tiles = ceil(rows / constants["cube_tile_rows"]) * ceil(columns / constants["cube_tile_columns"])
        return max(1, min(int(constants["aic_cores"]), prod(batch) * tiles))
    return max(1, min(int(constants["aiv_cores"]), ceil(largest_bytes / 1024 / constants["vector_tile_kib"])))


def fusable(kind: str, core: Core, constants: Constants) -> bool:
    """Return whether GE can fuse an operator of type ``kind``, by the lists of types in the constants."""
    if core == "aicpu":
        return False
    if core == "communication":
        return any(kind.startswith(name) for name in constants.fusable_collectives.value)
    return kind not in constants.unfusable_types.value


def from_kernel_table(table: pd.DataFrame, constants: Constants, layout: Layout | None = None) -> tuple[Operator, ...]:
    """Return the operators of a measured baseline's typical step, with measured durations and waits.

    Args:
        table: columns ``TABLE_COLUMNS``; of several steps, the one of median length is used. The columns ``layer`` and
            ``unit`` (a unit's key; ``layer`` is negative outside of layers) place tasks in the layout; without them,
            units' names are searched for in operator names.
        constants: define which types can be fused.
        layout: None if no plan will be simulated.

    Raises:
        SimulationError: columns are missing, there are no rows, the profile contains SuperKernels, or no task can be
            placed in the layout.
    """
    step = typical_step(table)
    if (step["type"] == SUPERKERNEL).any():
        raise SimulationError("the profile contains SuperKernels; give one of the baseline, recorded without scopes")
    operators = tasks_of(step, constants, layout)
    if layout is not None and not any(operator.unit for operator in operators):
        raise SimulationError("no task of the profile belongs to a unit of the model; give a profile of this model")
    return operators


def tasks_of(step: pd.DataFrame, constants: Constants, layout: Layout | None = None) -> tuple[Operator, ...]:
    """Return the rows of one measured step as operators, including SuperKernels."""
    operators: list[Operator] = []
    ends: list[tuple[int, float]] = []
    units = _Units(layout)
    streams = pd.factorize(step["stream"])[0]
    for position, row in enumerate(step.to_dict("records")):
        kind, stream, wait_us = str(row["type"]), int(streams[position]), float(row["wait_us"])
        start_us, duration_us = float(row["start_us"]), float(row["duration_us"])
        core = core_of(kind, constants)
        if core not in ("communication", "aicpu"):
            core = _CORES.get(str(row["core"]).upper(), "vector")
        after = _waited_for(stream, start_us, wait_us, ends)
        most = constants["aic_cores"] if core in ("cube", "mix") else constants["aiv_cores"]
        operators.append(
            Operator(
                name=str(row["name"]),
                type=kind,
                core=core,
                unit=units.of(row),
                position=position,
                stream=stream,
                blocks=max(1, int(most if pd.isna(row["blocks"]) else row["blocks"])),
                can_fuse=fusable(kind, core, constants),
                calls_sync_all=kind in constants.sync_all_types.value,
                duration_us=duration_us,
                # A wait for another stream is not a gap: the model derives it from `after`.
                wait_us=None if after or pd.isna(wait_us) else wait_us,
                after=after,
            )
        )
        ends.append((stream, start_us + duration_us))
    return tuple(operators)


def typical_step(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the step of median length, on one device, by start time.

    Raises:
        SimulationError: columns are missing, or there are no rows.
    """
    rows = in_steps(table)
    rows = rows[rows["device"] == rows["device"].iloc[0]]
    ends = (rows["start_us"] + rows["duration_us"]).groupby(rows["step"]).max()
    lengths = (ends - rows.groupby("step")["start_us"].min()).sort_values()
    step: pd.DataFrame = rows[rows["step"] == lengths.index[(len(lengths) - 1) // 2]]
    return step.sort_values("start_us", kind="stable")


def in_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows inside steps; outside, the step number is negative.

    Raises:
        SimulationError: columns are missing, or there are no rows.
    """
    if missing := [column for column in TABLE_COLUMNS if column not in table.columns]:
        raise SimulationError(f"the kernel table lacks the column {missing[0]!r}; use sktune's reader")
    rows: pd.DataFrame = table[table["step"] >= 0]
    if rows.empty:
        raise SimulationError("the profile has no kernels in steps; profile at least one decode step")
    return rows


class _Units:
    """Finds the layout's unit to which a measured row belongs."""

    def __init__(self, layout: Layout | None) -> None:
        units = layout.units if layout else ()
        self._names = {f".{unit.name}.": unit.name for unit in units}
        self._places = {(-1 if unit.layer is None else unit.layer, unit.key): unit.name for unit in units}

    def of(self, row: Mapping[Hashable, Any]) -> str | None:
        if "unit" in row and "layer" in row:
            return self._places.get((max(-1, int(row["layer"])), str(row["unit"])))
        path = f".{row['name']}.".replace("/", ".")
        return max((name for dotted, name in self._names.items() if dotted in path), key=len, default=None)


def _waited_for(stream: int, start_us: float, wait_us: float, ends: Sequence[tuple[int, float]]) -> tuple[int, ...]:
    """Return the last task of each other stream that ended while this one waited."""
    latest: dict[int, tuple[float, int]] = {}
    for position in range(len(ends) - 1, max(-1, len(ends) - _LOOK_BACK - 1), -1):
        other, end = ends[position]
        if other != stream and start_us - wait_us < end <= start_us:
            latest[other] = max(latest.get(other, (end, position)), (end, position))
    return tuple(sorted(position for _, position in latest.values()))
