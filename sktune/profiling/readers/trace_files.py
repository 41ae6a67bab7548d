"""Kernel tables from chrome traces: torch.profiler's on CPU and GPU, torch_npu's ``trace_view.json``, msprof's."""

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.core.errors import ProfileError
from sktune.profiling.kernel_roles import Role, role_of
from sktune.profiling.kernel_table import NO_STEP, KernelTable, complete, is_communication, type_of_npu_name
from sktune.profiling.readers.event_stream import EventStream

Event = dict[str, Any]

MAX_NS = 1 << 61
"""Nanoseconds whose sums and differences fit into 64 bits: 73 years."""
MAX_DIGITS = 18
"""Digits of a step's number."""
MAX_NAME = 4096
"""Characters of a kernel's name that are kept."""
WRAPPER_SHARE = 0.5
"""A CPU operator that spends more than this share of its time in other operators is a wrapper of these."""

_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime")
_STEP_MARKS = ("user_annotation", "gpu_user_annotation")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
# The tasks on "Ascend Hardware" that occupy a core; events, notifications and copies are left out, as in
# kernel_details.csv.
_NPU_CORES = re.compile(r"AI_?CORE|AI_?VEC|AI_?CPU|MIX_AI|AIC\b|AIV\b|DVPP|FFTS", re.IGNORECASE)
_NPU_COLLECTIVE = re.compile(r"hcom_|hccl_|Hccl")


@dataclass(slots=True)
class _Rows:
    """Columns of kernels, packed: a trace has millions of events."""

    names: dict[str, int] = field(default_factory=dict)
    lanes: dict[tuple[str, str, str], int] = field(default_factory=dict)
    name: "array[int]" = field(default_factory=lambda: array("q"))
    lane: "array[int]" = field(default_factory=lambda: array("q"))
    start_ns: "array[int]" = field(default_factory=lambda: array("q"))
    duration_ns: "array[int]" = field(default_factory=lambda: array("q"))
    launch: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, event: Event, device: str, stream: str, core: str, launch: int = -1) -> None:
        """Append ``event``; a missing or malformed time raises KeyError, ValueError, TypeError or OverflowError."""
        start_ns, duration_ns = _nanoseconds(event["ts"]), _nanoseconds(event["dur"])
        name = str(event.get("name", ""))[:MAX_NAME]
        self.start_ns.append(start_ns)
        self.duration_ns.append(max(0, duration_ns))
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.lane.append(self.lanes.setdefault((device, stream, core), len(self.lanes)))
        self.launch.append(launch)

    def frame(self) -> pd.DataFrame:
        """Return name, device, stream, core, start_ns, duration_us and launch."""
        lanes = np.array(list(self.lanes) or [("", "", "")], dtype=object)[np.array(self.lane, dtype=int)]
        return pd.DataFrame(
            {
                "name": np.array(list(self.names) or [""], dtype=object)[np.array(self.name, dtype=int)],
                "device": lanes[:, 0],
                "stream": lanes[:, 1],
                "core": lanes[:, 2],
                "start_ns": np.array(self.start_ns, dtype=np.int64),
                "duration_us": np.array(self.duration_ns, dtype=np.int64) / 1e3,
                "launch": np.array(self.launch, dtype=np.int64),
            }
        )


@dataclass(slots=True)
class _Trace:
    """The relevant events of a trace."""

    gpu: _Rows = field(default_factory=_Rows)
    npu: _Rows = field(default_factory=_Rows)
    collectives: _Rows = field(default_factory=_Rows)
    cpu: _Rows = field(default_factory=_Rows)
    launches: dict[int, int] = field(default_factory=dict)
    steps: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    labels: dict[Any, str] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Add an event to its table."""
        if event.get("ph") == "M":
            if event.get("name") == "process_labels":
                self.labels[event.get("pid")] = str((event.get("args") or {}).get("labels", ""))
            return
        if event.get("ph") != "X":
            return
        kind, name, args = event.get("cat"), str(event.get("name", "")), event.get("args")
        args = args if isinstance(args, dict) else {}
        if kind in _GPU:
            launch = args.get("correlation", -1)
            device = str(args.get("device", event.get("pid", 0)))
            stream = str(args.get("stream", event.get("tid", 0)))
            self.gpu.add(event, device, stream, str(kind), _number_of(launch))
        elif "Task Type" in args:
            if _NPU_CORES.search(str(args["Task Type"])):
                stream = str(args.get("Physic Stream Id", args.get("Stream Id", event.get("tid", 0))))
                launch = _number_of(args.get("connection_id", -1))
                self.npu.add(event, str(event.get("pid", 0)), stream, str(args["Task Type"]), launch)
        elif match := _STEP.match(name):
            if kind is None or kind in _STEP_MARKS:
                self._add_step(event, int(match[1][:MAX_DIGITS]))
        elif kind in _LAUNCHES:
            if isinstance(args.get("correlation"), int):
                self.launches[args["correlation"]] = _nanoseconds(event["ts"])
        elif kind == "cpu_op":
            self.cpu.add(event, "cpu", str(event.get("tid", 0)), "CPU")
        elif kind is None and _NPU_COLLECTIVE.match(name):
            self.collectives.add(event, str(event.get("pid", 0)), f"communication {event.get('tid', 0)}", "HCCL")
        elif isinstance(args.get("connection_id"), int):  # CANN's side of a launch
            self.launches.setdefault(args["connection_id"], _nanoseconds(event["ts"]))

    def _add_step(self, event: Event, number: int) -> None:
        start = _nanoseconds(event["ts"])
        where = "gpu" if event.get("cat") == "gpu_user_annotation" else "host"
        self.steps.setdefault(where, []).append((start, start + _nanoseconds(event.get("dur", 0)), number))


def read_trace(text: IO[str], shown: str) -> KernelTable:
    """Read an open trace called ``shown``.

    Raises:
        ProfileError: this is JSON, but not a trace.
    """
    events = EventStream(text)
    trace = _Trace()
    count = malformed = 0
    for event in events:
        count += 1
        try:
            trace.add(event)
        except (KeyError, ValueError, TypeError, OverflowError):  # a field is missing, or not a number
            malformed += 1
    if not events.is_trace:
        raise ProfileError(f"{shown} is not a chrome trace: it has no list 'traceEvents'; give the profiler's file")
    warnings = []
    if events.damaged or not events.is_complete:
        what = "is truncated" if not events.is_complete else "is damaged"
        more = f" and {events.damaged} damaged places were skipped" if events.damaged else ""
        warnings.append(f"the trace {what}: {count} complete events were read{more}")
    if malformed:
        warnings.append(f"{malformed} of {count} events have no valid time and were left out")
    source, frame = _kernels(trace)
    _mark_steps(frame, trace)
    return KernelTable(
        complete(frame, repeating="type" if source == "npu_trace" else "name"),
        source,
        bool((frame["step"] != NO_STEP).any()),
        tuple(warnings),
    )


def _kernels(trace: _Trace) -> tuple[str, pd.DataFrame]:
    if trace.gpu.name:
        frame = trace.gpu.frame()
        frame["type"] = _types(frame["name"], type_of_gpu_name)
        return "gpu_trace", frame
    if trace.npu.name or trace.collectives.name:
        frame = _npu_kernels(trace)
        frame["type"] = _types(frame["name"], type_of_npu_name)
        return "npu_trace", frame
    frame = _cpu_kernels(trace.cpu.frame())
    frame["type"] = frame["name"]
    return "cpu_trace", frame


def _npu_kernels(trace: _Trace) -> pd.DataFrame:
    kernels, collectives = trace.npu.frame(), trace.collectives.frame()
    if len(collectives):  # collectives that run on vector cores are recorded as both
        by_name = {name: is_communication(name) for name in kernels["name"].unique()}
        kernels = kernels[~kernels["name"].map(by_name).astype(bool)]
    # One process for each device and kind of lane; labels give the device if there are several.
    labels = {str(pid): numbers[0] for pid, label in trace.labels.items() if (numbers := re.findall(r"\d+", label))}
    pids = dict.fromkeys(kernels["device"])
    devices = {pid: labels.get(pid, str(index)) for index, pid in enumerate(pids)}
    only = next(iter(devices.values()), "0") if len(devices) <= 1 else None
    kernels = kernels.assign(device=kernels["device"].map(devices))
    collectives["device"] = [only or labels.get(pid, "0") for pid in collectives["device"]]
    return pd.concat([kernels, collectives], ignore_index=True)


def _cpu_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the operators that do work: they stand in for kernels on a CPU.

    An operator that typically spends most of its time in operators that it calls is a wrapper of these; one that only
    makes views or allocates does no work. Calls inside an operator that does work belong to it.
    """
    frame = frame.assign(order=-frame["duration_us"]).sort_values(["stream", "start_ns", "order"], kind="stable")
    duration = frame["duration_us"].to_numpy()
    parents = _parents(frame)
    has_parent = parents >= 0
    place, names = pd.factorize(frame["name"])
    is_view = np.array([role_of(name) is Role.VIEW for name in names], dtype=bool)
    # Views and allocations are not work: calling them does not make an operator a wrapper.
    delegated = has_parent & ~is_view[place]
    inside = np.bincount(parents[delegated], duration[delegated], minlength=len(frame))
    # The median over calls: one that was interrupted by another process is not representative.
    share = pd.Series(inside / np.maximum(duration, 1e-9)).groupby(place).median().to_numpy()
    works = ((share <= WRAPPER_SHARE) & ~is_view)[place]
    covered = np.zeros(len(frame), dtype=bool)
    for index in np.flatnonzero(has_parent):  # parents come first
        covered[index] = covered[parents[index]] or works[parents[index]]
    working: pd.DataFrame = frame[works & ~covered].drop(columns="order").reset_index(drop=True)
    return working


def _parents(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return for each operator, ordered by stream and start, the position of the one that called it, or -1."""
    starts = frame["start_ns"].tolist()
    ends = (frame["start_ns"] + (frame["duration_us"] * 1e3).round().astype(np.int64)).tolist()
    parents = np.full(len(frame), -1, dtype=np.int64)
    open_calls: list[int] = []
    stream = None
    for index, current in enumerate(frame["stream"]):
        if current != stream:
            stream, open_calls = current, []
        while open_calls and ends[open_calls[-1]] <= starts[index]:
            open_calls.pop()
        if open_calls:
            parents[index] = open_calls[-1]
        open_calls.append(index)
    return parents


def _mark_steps(frame: pd.DataFrame, trace: _Trace) -> None:
    """Fill in ``step``: a kernel belongs to the step that launched it, else to the one in which it started."""
    started = frame["start_ns"].to_numpy()
    launched = np.array([trace.launches.get(launch, -1) for launch in frame.pop("launch")], dtype=np.int64)
    host, gpu = trace.steps.get("host", []), trace.steps.get("gpu", [])
    by_start = _step_at(started, gpu or host)
    frame["step"] = np.where(launched >= 0, _step_at(launched, host), by_start) if host else by_start
    frame["wait_us"], frame["blocks"] = np.nan, np.nan


def _step_at(times_ns: npt.NDArray[np.int64], steps: Iterable[tuple[int, int, int]]) -> npt.NDArray[np.int64]:
    ordered = sorted(steps)
    if not ordered:
        return np.full(len(times_ns), NO_STEP)
    starts, ends, numbers = (np.array(column, dtype=np.int64) for column in zip(*ordered, strict=True))
    place = np.searchsorted(starts, times_ns, side="right") - 1
    inside = (place >= 0) & (times_ns < ends[np.maximum(place, 0)])
    return np.where(inside, numbers[np.maximum(place, 0)], NO_STEP)


def _types(names: "pd.Series[str]", rule: Any) -> "pd.Series[str]":
    return names.map({name: rule(name) for name in names.unique()})


def type_of_gpu_name(name: str) -> str:
    """Return a GPU kernel's function name without return type, namespaces, template and call arguments."""
    if name.startswith(("Memcpy", "Memset")):
        return name.partition(" (")[0]
    short = name.replace("(anonymous namespace)::", "")
    before = ""
    while short != before:
        before, short = short, re.sub(r"<[^<>]*>", "", short)
    words = short.partition("(")[0].split()
    parts = (words[-1] if words else name).split("::")
    return "::".join(parts[-2:]) if parts[-1] in ("kernel", "Kernel") else parts[-1]


def _number_of(launch: Any) -> int:
    """Return the number that connects a kernel with its launch; -1 if it is none."""
    return launch if isinstance(launch, int) and 0 <= launch <= MAX_NS else -1


def _nanoseconds(microseconds: str | float) -> int:
    """Return a timestamp in nanoseconds; text has the digits that a float would lose.

    Raises:
        ValueError, TypeError, OverflowError: it is no number, or not a time of the last or next century.
    """
    if isinstance(microseconds, str):
        whole, _, fraction = microseconds.strip().partition(".")
        if fraction.isdecimal() or not fraction:
            exact = int(whole) * 1000 + int((fraction + "000")[:3])
        else:
            exact = round(float(microseconds) * 1000)
    else:
        exact = round(microseconds * 1000)
    if abs(exact) > MAX_NS:
        raise OverflowError
    return exact
