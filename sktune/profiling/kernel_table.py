"""The kernel table: what ran on a device, one row per kernel, for all profilers; what is none is counted here."""

import re
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.ascend.kernel_name import SUPERKERNEL, parse_superkernel_name

NO_STEP = -1
NO_STREAM = "-"
"""The stream of kernels whose stream is unknown."""
MAX_NS = 1 << 61
"""Nanoseconds whose sums and differences fit into 64 bits: 73 years."""

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
# Task types as msprof's two task tables and the runtime (KERNEL_AIVEC) name them: tasks that run on a core, and others,
# which wait, signal, copy or mark. What matches neither is unknown.
_CORE = re.compile(
    r"(KERNEL_)?(MIX_)?AI_?(C|V|CORE|VEC|VECTOR|VECTOR_CORE|CPU)(_SQE)?|FFTS(_PLUS)?|(DSA|VPC|JPEG[ED]|DVPP)(_SQE)?"
    r"|CPU|KERNEL|GPU_MEM(CPY|SET)"
)
_COMMUNICATION_CORE = re.compile(r"HCCL|COMMUNICATION|CCU(_SQE)?")
_NO_CORE = re.compile(
    r"(PLACE_?HOLDER|EVENT|NOTIFY|WRITE_?(VALUE|BACK)|(INVALIDATE|WRITEBACK)?_?DATA_CONTEXT|[RS]DMA|ROCCE|PCIE|UB_?DMA"
    r"|HOST|CDQM|C_CORE|VQ6|TOF|MEM(CPY|SET)|PROFIL|MODEL|STREAM|LABEL|REDUCE|MAINT|BARRIER|CMO|CONDITION|FLIP)\w*"
)
MAX_UNKNOWN = 0.01
"""Share of the kernels, or of their time, above which those of unknown nature or duration forbid a conclusion."""
_HOUR_NS = 3_600_000_000_000
_LISTED = 5


@dataclass(frozen=True, slots=True, eq=False)
class KernelTable:
    """A profile's kernels, ordered by device and start.

    Attributes:
        frame: columns ``COLUMNS``, and those of ``RATIOS`` that the profile has. ``step`` is ``NO_STEP`` outside of
            steps, ``start_us`` counts from the first kernel of the file, ``wait_us`` and ``blocks`` are NaN if
            unknown. ``token`` repeats from layer to layer: the operator type on NPUs, the name elsewhere.
        source: ``kernel_details``, ``op_summary``, ``npu_trace``, ``gpu_trace`` or ``cpu_trace``.
        has_steps: whether the profiler marked the steps, or recorded executions of one graph.
        span_ns: when the first kernel began and the last one began, by the recording's clock.
        left_out: what was left out or assumed while reading.
    """

    frame: pd.DataFrame
    source: str
    has_steps: bool
    span_ns: tuple[int, int]
    left_out: "LeftOut"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left out or assumed, one line each."""
        return tuple(self.left_out.warnings)


@dataclass(slots=True)
class LeftOut:
    """What a reader left out or assumed.

    Attributes:
        warnings: one line each.
        lost: number of rows or events that may have been kernels.
        forbids: those of the lines that forbid a conclusion about the step.
    """

    warnings: list[str] = field(default_factory=list)
    lost: int = 0
    forbids: list[str] = field(default_factory=list)

    def say(self, line: str, *, lost: int = 0, forbids: bool = False) -> None:
        """Add a line."""
        self.warnings.append(line)
        self.lost += lost
        if forbids:
            self.forbids.append(line)

    def with_those_of(self, other: "LeftOut", prefix: str = "") -> "LeftOut":
        """Return both; ``prefix`` begins each line of ``other``."""
        return LeftOut(
            [*self.warnings, *(prefix + line for line in other.warnings)],
            self.lost + other.lost,
            [*self.forbids, *(prefix + line for line in other.forbids)],
        )


def only_kernels(frame: pd.DataFrame, left_out: LeftOut, rows: str) -> pd.DataFrame:
    """Return the rows that are kernels; say of all others why they are none.

    Args:
        frame: columns ``name``, ``type``, ``core``, ``device``, ``stream`` (text), ``start_ns`` (nullable integers) and
            ``duration_us``, with missing values.
        left_out: gets the lines.
        rows: what the rows are called: rows, events.
    """
    kinds = {core: _task_kind(core) for core in frame["core"].unique()}
    kind = frame["core"].map(kinds)
    unnamed = frame["name"].fillna("") == ""
    if unnamed.any():
        left_out.say(f"{unnamed.sum()} {rows} without a name were left out", lost=int((kind[unnamed] == "core").sum()))
    frame, kind = frame[~unnamed], kind[~unnamed]
    waits, unknown = frame[kind == "no core"], frame[kind == "unknown"]
    frame = frame[kind == "core"]
    if len(waits):
        left_out.say(f"{len(waits)} {rows} that occupy no core were left out: {_counts(waits['core'])}")
    if len(unknown):
        time_us, known_us = float(unknown["duration_us"].sum()), float(frame["duration_us"].sum())
        left_out.say(
            f"{len(unknown)} {rows} of unknown task types, {time_us:.0f} us in total, were left out, so gaps may be "
            f"shorter: {_counts(unknown['core'])}",
            forbids=time_us > MAX_UNKNOWN * known_us,
        )
    whole = frame[["start_ns", "duration_us"]].notna().all(axis=1)
    if not whole.all():
        lost = int((~whole).sum())
        left_out.say(f"{lost} of {len(frame)} {rows} have no valid time or duration and were left out", lost=lost)
    frame = frame[whole].astype({"start_ns": np.int64})
    zero = frame["start_ns"] == 0
    if zero.any() and (
        frame[zero].duplicated(["device", "stream"]).any() or frame.loc[~zero, "start_ns"].min() > _HOUR_NS
    ):  # one kernel of each stream may start at 0, in a recording that begins there
        left_out.say(f"{zero.sum()} of {len(frame)} {rows} have no time (0) and were left out", lost=int(zero.sum()))
        frame = frame[~zero]
    if brief := int((frame["duration_us"] == 0).sum()):
        left_out.say(
            f"{brief} of {len(frame)} kernels have a duration of 0, so gaps may be shorter",
            forbids=brief > MAX_UNKNOWN * len(frame),
        )
    return frame.reset_index(drop=True)


def _task_kind(core: str) -> str:
    """Return ``core``, ``no core`` or ``unknown``; what has no task type is a kernel."""
    plain = re.sub(r"[\s-]+", "_", core.strip()).upper()
    if not plain or _CORE.fullmatch(plain) or _COMMUNICATION_CORE.fullmatch(plain):
        return "core"
    return "no core" if _NO_CORE.fullmatch(plain) else "unknown"


def _counts(values: "pd.Series[str]") -> str:
    counts = _printable(values).value_counts()
    more = f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else ""
    return ", ".join(f"{count} {str(value)[:40]}" for value, count in counts.head(_LISTED).items()) + more


def complete(frame: pd.DataFrame, source: str, left_out: LeftOut) -> KernelTable:
    """Derive the remaining columns from ``name``, ``type`` and ``core``, sort the rows, and start at zero.

    Args:
        frame: the columns as read, with ``start_ns`` (int64) instead of ``start_us``.
        source: of the table; decides on the column that repeats from layer to layer.
        left_out: of the table.
    """
    repeating = "name" if source in ("gpu_trace", "cpu_trace") else "type"
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
    by_core = frame["core"].str.upper().str.fullmatch(_COMMUNICATION_CORE.pattern).to_numpy(bool)
    frame["is_communication"] = (by_name | by_type | by_core) & ~is_superkernel
    # Labels and operators of a SuperKernel contain the layer's number.
    patterns = np.array([re.sub(r"\d+", "#", name) for name in names], dtype=object)
    frame["token"] = np.where(is_superkernel, patterns[place], frame[repeating])
    frame = frame.sort_values(["device", "start_ns"], kind="stable", ignore_index=True)
    span_ns = (int(frame["start_ns"].min()), int(frame["start_ns"].max())) if len(frame) else (0, 0)
    frame["start_us"] = (frame["start_ns"] - span_ns[0]) / 1e3
    columns = [*COLUMNS, *(ratio for ratio in RATIOS if ratio in frame)]
    return KernelTable(frame[columns], source, bool((frame["step"] != NO_STEP).any()), span_ns, left_out)


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


def exact_ns(microseconds: object) -> int:
    """Return a time in nanoseconds, rounded; text has the digits that a float would lose.

    Raises:
        ValueError, ArithmeticError: it is no number, not a time of the last or next century, or in scientific
            notation with too few digits for whole microseconds, as spreadsheets save it.
    """
    if isinstance(microseconds, str):
        number = Decimal(microseconds.strip())
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int) or exponent > 0:
            raise ValueError
    elif isinstance(microseconds, int | float):
        number = Decimal(microseconds)
    else:
        raise ValueError
    exact = round(number * 1000)
    if abs(exact) > MAX_NS:
        raise OverflowError
    return exact


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
