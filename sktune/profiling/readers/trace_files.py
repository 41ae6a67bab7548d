"""Kernel tables from chrome traces: torch.profiler's on CPU and GPU, torch_npu's ``trace_view.json``, msprof's."""

import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.core.errors import ProfileError
from sktune.profiling.kernel_roles import Role, role_of
from sktune.profiling.kernel_table import (
    MAX_NS,
    NO_STEP,
    KernelTable,
    LeftOut,
    complete,
    exact_ns,
    is_communication,
    only_kernels,
    type_of_npu_name,
)
from sktune.profiling.readers.event_stream import EventStream

Event = dict[str, Any]
Mark = tuple[int, int, int]
"""Start and end of a step in nanoseconds, and its number."""

MAX_DIGITS = 18
"""Digits of a step's number."""
MAX_NAME = 4096
"""Characters of a kernel's name that are kept."""
WRAPPER_SHARE = 0.5
"""A CPU operator that spends more than this share of its time in other operators is a wrapper of these."""

_OF_PROCESS = " of process "
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = re.compile(r"\w+_(runtime|driver)|(en|de)queue")
_TO_DEVICE = re.compile(r"launch|queue|memcpy|submit", re.IGNORECASE)
"""Of the host's calls of a runtime, those that give work to a device."""
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_NPU_COLLECTIVE = re.compile(r"(hcom_|hccl)[^@]*$", re.IGNORECASE)
# Collectives of these processes ran on the device; those of others are the host's calls.
_NPU_PROCESS = re.compile(r"communication|hccl|ascend|npu", re.IGNORECASE)
_OF_HOST = frozenset({"Thread Id", "Mode", "level"})
"""Fields of CANN's calls on the host."""


@dataclass(slots=True)
class _Rows:
    """Columns of kernels, packed: a trace has millions of events."""

    names: dict[str, int] = field(default_factory=dict)
    lanes: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    name: "array[int]" = field(default_factory=lambda: array("q"))
    lane: "array[int]" = field(default_factory=lambda: array("q"))
    start_ns: "array[int]" = field(default_factory=lambda: array("q"))
    duration_ns: "array[int]" = field(default_factory=lambda: array("q"))
    launch: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, event: Event, device: str, stream: str, core: str, launch: Any = -1) -> None:
        """Append ``event``; a missing or malformed time raises KeyError, ValueError or ArithmeticError."""
        start_ns, duration_ns = exact_ns(event["ts"]), exact_ns(event["dur"])
        if duration_ns < 0:
            raise ValueError
        name = str(event.get("name", ""))[:MAX_NAME]
        lane = (str(event.get("pid", 0)), device, stream, core)
        self.start_ns.append(start_ns)
        self.duration_ns.append(duration_ns)
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.launch.append(launch if isinstance(launch, int) and 0 <= launch <= MAX_NS else -1)

    def frame(self) -> pd.DataFrame:
        """Return name, pid, device, stream, core, start_ns, duration_us and launch."""
        lanes = np.array(list(self.lanes) or [("",) * 4], dtype=object)[np.array(self.lane, dtype=int)]
        return pd.DataFrame(
            {
                "name": np.array(list(self.names) or [""], dtype=object)[np.array(self.name, dtype=int)],
                "pid": lanes[:, 0],
                "device": lanes[:, 1],
                "stream": lanes[:, 2],
                "core": lanes[:, 3],
                "start_ns": np.array(self.start_ns, dtype=np.int64),
                "duration_us": np.array(self.duration_ns, dtype=np.int64) / 1e3,
                "launch": np.array(self.launch, dtype=np.int64),
            }
        )


@dataclass(slots=True)
class _Trace:
    """The relevant events of a trace.

    Attributes:
        launches: when the host launched what has a number.
        to_device: how often the host gave work to a device.
        marks: start, end and number of steps, by the process that has them, on the device and on the host.
        names, labels: of processes.
        groups: lanes of communication, by process and thread; collectives on them may have any name.
        drawn: number of events of a captured graph: its process has a name where a profiler writes a number.
    """

    gpu: _Rows = field(default_factory=_Rows)
    npu: _Rows = field(default_factory=_Rows)
    collectives: _Rows = field(default_factory=_Rows)
    cpu: _Rows = field(default_factory=_Rows)
    launches: dict[int, int] = field(default_factory=dict)
    to_device: int = 0
    gpu_marks: dict[str, list[Mark]] = field(default_factory=dict)
    host_marks: dict[str, list[Mark]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    groups: set[tuple[str, str]] = field(default_factory=set)
    drawn: int = 0

    def add(self, event: Event) -> None:
        """Add an event to its table."""
        kind, name, args = event.get("cat"), str(event.get("name", "")), event.get("args")
        args = args if isinstance(args, dict) else {}
        place = str(event.get("pid", 0)), str(event.get("tid", 0))
        if event.get("ph") == "M":
            if name == "process_name":
                self.names[str(event.get("pid", 0))] = str(args.get("name", ""))
            elif name == "process_labels":
                self.labels[str(event.get("pid", 0))] = str(args.get("labels", ""))
            elif name == "thread_name" and "Communication" in str(args.get("name")):
                self.groups.add(place)
            return
        if event.get("ph") not in ("X", "B"):  # what only begins has no duration: it counts as one without a valid time
            return
        self.drawn += "graph" in place[0].lower()
        if kind in _GPU:
            device, stream = str(args.get("device", event.get("pid", 0))), str(args.get("stream", event.get("tid", 0)))
            self.gpu.add(event, device, stream, str(kind), args.get("correlation"))
        elif "Task Type" in args:
            stream = str(args.get("Physic Stream Id", args.get("Stream Id", event.get("tid", 0))))
            self.npu.add(event, "", stream, str(args["Task Type"]), args.get("connection_id"))
        elif match := _STEP.match(name):
            start = exact_ns(event["ts"])
            marks = self.gpu_marks if kind == "gpu_user_annotation" else self.host_marks
            mark = (start, start + exact_ns(event.get("dur", 0)), int(match[1][:MAX_DIGITS]))
            marks.setdefault(str(event.get("pid", 0)), []).append(mark)
        elif _LAUNCHES.fullmatch(str(kind)):
            self.to_device += bool(_TO_DEVICE.search(name))
            if isinstance(args.get("correlation"), int):
                self.launches[args["correlation"]] = exact_ns(event["ts"])
        elif kind == "cpu_op":
            self.cpu.add(event, "cpu", str(event.get("tid", 0)), "CPU")
        elif kind is None and (place in self.groups or _NPU_COLLECTIVE.match(name)) and not _OF_HOST & args.keys():
            self.collectives.add(event, "", f"communication {event.get('tid', 0)}", "HCCL")
        elif isinstance(args.get("connection_id"), int):  # CANN's side of a launch
            self.to_device += 1
            self.launches.setdefault(args["connection_id"], exact_ns(event["ts"]))


def read_trace(slices: Iterable[IO[str]], shown: str, left_out: LeftOut) -> KernelTable:
    """Read a trace, or the slices of one, called ``shown``.

    Raises:
        ProfileError: this is JSON, but not a trace, or nobody measured its times.
    """
    trace = _Trace()
    count = malformed = 0
    for text in slices:
        events, before = EventStream(text), count
        for event in events:
            count += 1
            try:
                trace.add(event)
            except (KeyError, ValueError, ArithmeticError):  # a field is missing, or not a number
                malformed += 1
        if not events.is_trace:
            raise ProfileError(f"{shown} is not a chrome trace: it has no list 'traceEvents'; give the profiler's file")
        if events.damaged or not events.is_complete:
            what = "is truncated" if not events.is_complete else "is damaged"
            more = f" and {events.damaged} damaged places were skipped" if events.damaged else ""
            left_out.say(f"the trace {what}: {count - before} complete events were read{more}", lost=events.damaged)
    if trace.drawn and trace.drawn == count:
        # CANN's aclmdlRIDebugJsonPrint and what calls it, as torch.npu's debug_dump, put tasks at even distances.
        raise ProfileError(
            f"{shown} is a drawing of a captured graph, whose times nobody measured; record a run with a profiler"
        )
    if malformed:
        left_out.say(f"{malformed} of {count} events have no valid time and were left out", lost=malformed)
    source, frame = _kernels(trace, left_out)
    _mark_steps(frame, trace, left_out)
    return complete(frame, source, left_out)


def _kernels(trace: _Trace, left_out: LeftOut) -> tuple[str, pd.DataFrame]:
    if trace.gpu.name:
        source, frame = "gpu_trace", trace.gpu.frame()
    elif trace.npu.name or trace.collectives.name:
        source, frame = "npu_trace", _npu_kernels(trace, left_out)
        left_out.say("a trace has no operator types: they are taken from the kernels' names")
    else:
        source, frame = "cpu_trace", trace.cpu.frame()
        if trace.to_device:
            left_out.say(
                f"the host gave work to a device {trace.to_device} times, but the trace has none of its kernels: "
                "the host's operators are shown; record the device's activities, too",
                forbids=True,
            )
    # Devices of several processes with one number are several: the trace is merged from hosts'.
    of_kernels = frame[["device", "pid"]].drop_duplicates()
    if shared := set(of_kernels.loc[of_kernels["device"].duplicated(), "device"]) - {"cpu"}:
        left_out.say(
            f"{len(shared)} device numbers occur in several processes, as in merged traces: told apart by these"
        )
        alone = ~frame["device"].isin(shared)
        frame["device"] = frame["device"].where(alone, frame["device"] + _OF_PROCESS + frame["pid"])
    frame = only_kernels(_cpu_kernels(frame) if source == "cpu_trace" else frame, left_out, "events")
    rules: dict[str, Callable[[str], str]] = {"gpu_trace": type_of_gpu_name, "npu_trace": type_of_npu_name}
    types = {name: rules.get(source, str)(name) for name in frame["name"].unique()}
    return source, frame.assign(type=frame["name"].map(types))


def _npu_kernels(trace: _Trace, left_out: LeftOut) -> pd.DataFrame:
    kernels, collectives = trace.npu.frame(), trace.collectives.frame()
    of_host = [pid in trace.names and not _NPU_PROCESS.search(trace.names[pid]) for pid in collectives["pid"]]
    collectives = collectives[~np.array(of_host, dtype=bool)]
    if len(collectives):  # collectives that run on vector cores are recorded as both
        by_name = {name: is_communication(name) for name in kernels["name"].unique()}
        kernels = kernels[~kernels["name"].map(by_name).astype(bool)]
    # One process for each device and kind of lane; labels give the device if there are several.
    pids = list(dict.fromkeys(kernels["pid"])) or list(dict.fromkeys(collectives["pid"]))
    labels = {pid: numbers[0] for pid, label in trace.labels.items() if (numbers := re.findall(r"\d+", label))}
    devices = {pid: labels.get(pid, str(index)) for index, pid in enumerate(pids)}
    owners = {pid: _owner(pid, devices, labels) for pid in collectives["pid"].unique()}
    kernels = pd.concat([kernels, collectives.assign(pid=collectives["pid"].map(owners))], ignore_index=True)
    if nobody := int(kernels["pid"].isna().sum()):
        left_out.say(f"{nobody} collectives of an unknown device were left out", lost=nobody, forbids=True)
        kernels = kernels[kernels["pid"].notna()]
    return kernels.assign(device=kernels["pid"].map(devices))


def _owner(pid: str, devices: Mapping[str, str], labels: Mapping[str, str]) -> str | None:
    """Return the process of the device to which collectives of process ``pid`` belong; None if that is unknown.

    A process of msprof's has the program's number above its lowest 10 bits, and the device in its lowest 5.
    """
    if len(devices) == 1 or pid in devices:
        return pid if pid in devices else next(iter(devices))
    same = [other for other, device in devices.items() if pid not in labels or labels[pid] == device]
    for numbers in (lambda _: 0, lambda number: (number >> 10, number & 31), lambda number: number >> 10):
        alike = [other for other in same if numbers(_integer(other)) == numbers(_integer(pid))]
        if len(alike) == 1:
            return alike[0]
    return None


def _integer(pid: str) -> int:
    return int(pid) if pid.isdecimal() else -1


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


def _mark_steps(frame: pd.DataFrame, trace: _Trace, left_out: LeftOut) -> None:
    """Fill in ``step``: a kernel belongs to the step that launched it, else to the one in which it started."""
    started = frame["start_ns"].to_numpy()
    launched = np.array([trace.launches.get(launch, 0) for launch in frame.pop("launch")], dtype=np.int64)
    host = [mark for marks in trace.host_marks.values() for mark in marks]
    if host and (len(trace.host_marks) > 1 or frame["device"].str.contains(_OF_PROCESS).any()):
        left_out.say("the marks of steps of several hosts or processes cannot be told apart and are not used")
        host = []
    by_start = _step_at(started, host)
    for pid in frame["pid"].unique() if trace.gpu_marks else ():
        rows = (frame["pid"] == pid).to_numpy()
        marks = trace.gpu_marks.get(pid) or [mark for marks in trace.gpu_marks.values() for mark in marks]
        by_start[rows] = _step_at(started[rows], marks)
    known = launched > 0
    if host and not known.all() and not trace.gpu_marks and not trace.cpu.name:
        left_out.say(f"{(~known).sum()} of {len(frame)} kernels have no known launch: their step is by their start")
    frame["step"] = np.where(known, _step_at(launched, host), by_start) if host else by_start
    frame["wait_us"], frame["blocks"] = np.nan, np.nan


def _step_at(times_ns: npt.NDArray[np.int64], steps: Iterable[Mark]) -> npt.NDArray[np.int64]:
    ordered = sorted(steps)
    if not ordered:
        return np.full(len(times_ns), NO_STEP)
    starts, ends, numbers = (np.array(column, dtype=np.int64) for column in zip(*ordered, strict=True))
    place = np.searchsorted(starts, times_ns, side="right") - 1
    inside = (place >= 0) & (times_ns < ends[np.maximum(place, 0)])
    return np.where(inside, numbers[np.maximum(place, 0)], NO_STEP)


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
