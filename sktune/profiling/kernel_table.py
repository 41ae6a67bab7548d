"""The kernel table: what ran on a device, one row per kernel, for all profilers."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.ascend.kernel_name import SUPERKERNEL, parse_superkernel_name

NO_STEP = -1

RATIOS = ("mac_ratio", "vec_ratio", "scalar_ratio", "mte2_ratio", "mte3_ratio")
"""Shares of a kernel's time in which a pipe was busy; on mixed kernels the larger of cube and vector cores.
``mte3_ratio`` covers all writes: MTE3 of vector cores, fixpipe of cube cores."""

COLUMNS = (
    "step", "device", "stream", "name", "type", "core", "start_us", "duration_us", "wait_us", "blocks",
    "is_communication", "is_superkernel", "token",
)  # fmt: skip

_COMMUNICATION = re.compile(
    r"hcom_|hccl|nccl|rccl|gloo:|c10d::|mscclpp|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter"
    r"|all_?to_?all",
    re.IGNORECASE,
)
# Operators that also compute; the profiler counts them as compute, and so does sktune.
_FUSED_WITH_COMPUTE = re.compile(
    r"(mat_?mul|mm|gemm)[a-z]*_?(all|reduce)|(all|reduce)_?[a-z]+_?(mat_?mul|mm|gemm)", re.IGNORECASE
)
_STATIC_KERNEL = re.compile(r"static_kernel_(.+?)_[0-9a-f]{16,}")
_COMMUNICATION_CORES = ("HCCL", "COMMUNICATION")


@dataclass(frozen=True, slots=True, eq=False)
class KernelTable:
    """A profile's kernels, ordered by device and start.

    Attributes:
        frame: columns ``COLUMNS``, and those of ``RATIOS`` that the profile has. ``step`` is ``NO_STEP`` outside of
            steps, ``start_us`` counts from the first kernel of the file, ``wait_us`` and ``blocks`` are NaN if
            unknown. ``token`` repeats from layer to layer: the operator type on NPUs, the name elsewhere.
        source: ``kernel_details``, ``op_summary``, ``npu_trace``, ``gpu_trace`` or ``cpu_trace``.
        has_steps: whether the profiler marked the steps, or recorded executions of one graph.
        warnings: what was left out while reading, one line each.
    """

    frame: pd.DataFrame
    source: str
    has_steps: bool
    warnings: tuple[str, ...] = ()


def complete(frame: pd.DataFrame, *, repeating: str) -> pd.DataFrame:
    """Derive the remaining columns from ``name``, ``type`` and ``core``, sort the rows, and start at zero.

    Args:
        frame: the columns as read, with ``start_ns`` (int64) instead of ``start_us``.
        repeating: the column that repeats from layer to layer.
    """
    for column in ("name", "type", "core", "stream", "device"):
        frame[column] = _printable(frame[column])
    place, names = pd.factorize(frame["name"])
    parsed = [parse_superkernel_name(name) for name in names]
    fused = np.array([name is not None for name in parsed], dtype=bool)[place]
    is_superkernel = fused | (frame["type"] == SUPERKERNEL).to_numpy()
    frame["type"] = frame["type"].where(~is_superkernel, SUPERKERNEL)
    frame["is_superkernel"] = is_superkernel
    by_name = pd.Series([is_communication(name) for name in names]).to_numpy(bool)[place]
    by_type = frame["type"].map({kind: is_communication(kind) for kind in frame["type"].unique()}).to_numpy(bool)
    by_core = frame["core"].str.upper().isin(_COMMUNICATION_CORES)
    frame["is_communication"] = (by_name | by_type | by_core) & ~is_superkernel
    # Labels and operators of a SuperKernel contain the layer's number.
    patterns = np.array([re.sub(r"\d+", "#", name) for name in names], dtype=object)
    frame["token"] = np.where(is_superkernel, patterns[place], frame[repeating])
    frame = frame.sort_values(["device", "start_ns"], kind="stable", ignore_index=True)
    frame["start_us"] = (frame["start_ns"] - frame["start_ns"].min()) / 1e3
    return frame[[*COLUMNS, *(ratio for ratio in RATIOS if ratio in frame)]]


def _printable(column: "pd.Series[str]") -> "pd.Series[str]":
    """Replace control characters and unencodable ones: names come from the file and cannot be trusted."""
    place, values = pd.factorize(column)
    printable = ["".join(char if char.isprintable() else "\ufffd" for char in value) for value in values]
    return pd.Series(np.array([*printable, ""], dtype=object)[place], index=column.index)


def type_of_npu_name(name: str) -> str:
    """Return the operator type in an NPU kernel's name, for formats without a type column.

    aclnn's names are like ``aclnnMatmul_MatMulCommon_MatMulV2``, GE's like ``model/layers/MatMulV2_12``, HCCL's like
    ``hcom_allReduce__661_0_1``, and those of npugraph_ex's static kernels like ``static_kernel_MatMulV2_<hash>_...``.
    """
    if parse_superkernel_name(name):
        return SUPERKERNEL
    if static := _STATIC_KERNEL.match(name):
        return static[1]
    if name.startswith("aclnn"):
        return name.rpartition("_")[2]
    short = re.sub(r"(_+\d+)+_*$", "", name.rpartition("/")[2])
    return short or name


def is_communication(name: str) -> bool:
    """Whether a kernel of this name or type only moves data between devices."""
    return bool(_COMMUNICATION.search(name)) and not _FUSED_WITH_COMPUTE.search(name)


def busy_us(start_us: npt.NDArray[np.float64], end_us: npt.NDArray[np.float64]) -> float:
    """Return how much time at least one of the intervals covers."""
    return float(start_gain(start_us, end_us)[1].sum())


def start_gain(
    start_us: npt.NDArray[np.float64], end_us: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return for each interval, ordered by start, the idle time before it and the busy time that it adds.

    Idle time is not covered by any earlier interval; it is zero before the first.
    """
    if not len(start_us):
        return np.zeros(0), np.zeros(0)
    covered = np.maximum.accumulate(np.concatenate(([start_us[0]], end_us[:-1])))
    return np.maximum(start_us - covered, 0.0), np.maximum(end_us - np.maximum(start_us, covered), 0.0)
