"""What is no kernel is left out and counted, what is assumed is said, and no conclusion rests on either."""

import io
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sktune.core.errors import ProfileError
from sktune.profiling.analysis import Bound, Profile, analyse
from sktune.profiling.comparison import compare
from sktune.profiling.readers.reading import read_profile
from sktune.profiling.tables import comparison_tables, headline
from tests.profiles import (
    EPOCH_US,
    Kernel,
    decode_step,
    deepseek,
    gpu_trace,
    kernel_details,
    npu_trace,
    op_summary,
    write,
)
from tests.profiling.test_unmarked_steps import graph_rows

KERNELS = len(decode_step(1, 3))


def profile_of(path: Path, text: str | None = None) -> Profile:
    """Analyse ``path``, which may get ``text`` first."""
    return analyse(read_profile(path if text is None else write(path, text)))


def said(profile: Profile, *words: str) -> bool:
    """Return whether one warning has all the words."""
    return any(all(word in line for word in words) for line in profile.warnings)


def of_rows(rows: pd.DataFrame) -> tuple[float, float, float]:
    """Return median span, busy time and gap of the steps in microseconds, from start, duration and step alone."""
    figures = []
    for _, step in rows.groupby("step"):
        ordered = step.sort_values("start")
        end = (ordered["start"] + ordered["duration"]).cummax()
        gap = float((ordered["start"] - end.shift()).clip(lower=0).sum())
        span = float(end.iloc[-1] - ordered["start"].iloc[0])
        figures.append((span, span - gap, gap))
    return tuple(pd.DataFrame(figures).median())


def raw(kernels: Sequence[Kernel]) -> tuple[float, float, float]:
    """Return the figures of kernels as written."""
    return of_rows(pd.DataFrame([{"start": k.start, "duration": k.duration, "step": k.step} for k in kernels]))


def figures(profile: Profile) -> object:
    """Return sktune's figures, to be compared with those of ``of_rows``."""
    median = profile.median
    busy = median.compute_ms + median.exposed_ms
    return pytest.approx((median.step_ms * 1e3, busy * 1e3, median.gap_ms * 1e3), abs=0.01)


# Rows and events that are no kernels


def rewritten(text: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> str:
    """Return a CSV file whose cells were changed, all of them text."""
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, index_col=False)
    return change(frame).to_csv(index=False)


@pytest.mark.parametrize("missing", ["N/A", "", "NaN", " N/A"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_types_that_are_missing_are_those_of_the_names(tmp_path: Path, missing: str, share: float) -> None:
    """As level 0 writes them; the rows are counted, and layers and bottleneck are those of the full file."""
    whole = profile_of(tmp_path / "whole.csv", kernel_details(deepseek(3, 1, 3)))
    count = int(3 * KERNELS * share)

    def level0(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[: count - 1, ["Type", "OP State"]] = missing
        return frame

    result = profile_of(tmp_path / "k.csv", rewritten(kernel_details(deepseek(3, 1, 3)), level0))
    assert said(result, f"{count} of {3 * KERNELS}", "no type")
    assert result.layer_kinds == whole.layer_kinds
    assert result.top[0].type == whole.top[0].type
    assert (result.bottleneck, result.unit_order) == (whole.bottleneck, whole.unit_order)


@pytest.mark.parametrize("core", ["EVENT_WAIT", "NOTIFY_WAIT_SQE", "PROFILING_ENABLE", "Write Value", "SDMA_SQE"])
@pytest.mark.parametrize("name", ["N/A", "task"])
def test_rows_that_occupy_no_core_are_counted_and_fill_no_gap(tmp_path: Path, core: str, name: str) -> None:
    """In a CSV file, with a name or without."""
    kernels = deepseek(3, 1, 3)
    waits = [replace(k, core=core, type="N/A", name=name, start=k.start + 8, duration=2) for k in kernels[:40]]
    result = profile_of(tmp_path / "k.csv", kernel_details([*kernels, *waits]))
    assert figures(result) == raw(kernels)
    assert said(result, "40 rows", "left out", *(["without a name"] if name == "N/A" else [core]))
    assert result.bottleneck is not None


def tasks(kernels: Sequence[Kernel], core: str) -> list[dict[str, Any]]:
    """Return tasks of a type between the kernels of a ``trace_view.json``."""
    return [
        {"ph": "X", "name": "task", "pid": 2, "tid": 2, "ts": f"{EPOCH_US + k.start + k.duration}.354", "dur": 2.0,
         "args": {"Task Type": core, "Physic Stream Id": 2}}
        for k in kernels
    ]  # fmt: skip


def test_tasks_of_unknown_types_are_counted_and_withhold_the_conclusion(tmp_path: Path) -> None:
    """They may be kernels: then the gaps are shorter. A few of them change nothing, and are still counted."""
    kernels = deepseek(3, 1, 3)
    events = json.loads(npu_trace(kernels))
    many = profile_of(tmp_path / "many.json", json.dumps([*events, *tasks(kernels, "QUANTUM_CORE")]))
    assert said(many, f"{len(kernels)} events of unknown task types", "QUANTUM_CORE")
    assert (many.bottleneck, many.units) == (None, ())
    assert "Nothing is concluded" in headline(many)
    few = profile_of(tmp_path / "few.json", json.dumps([*events, *tasks(kernels[:2], "QUANTUM_CORE")]))
    assert said(few, "2 events of unknown task types")
    assert few.bottleneck is not None


@pytest.mark.parametrize(
    "core",
    ["AIV_SQE", "AIC", "KERNEL_AIVEC", "KERNEL_AICORE", "KERNEL_MIX_AIC", "MIX_AIV", "AI_VECTOR_CORE", "DSA_SQE"],
)
def test_task_types_of_all_releases_are_kernels(tmp_path: Path, core: str) -> None:
    """Those of the task queue, of FFTS and of the runtime."""
    kernels = deepseek(3, 1, 3)
    result = profile_of(tmp_path / "t.json", json.dumps([*json.loads(npu_trace(kernels)), *tasks(kernels, core)]))
    assert result.median.kernels == 2 * KERNELS
    assert not said(result, "unknown")


def with_processes(events: list[dict[str, Any]], host: str, at: str) -> str:
    """Return the trace with CANN's process named before or after its calls, or not at all."""
    names = [{"ph": "M", "name": "process_name", "pid": 40, "tid": 0, "args": {"name": host}}]
    return json.dumps([*names, *events] if at == "before" else [*events, *names] if at == "after" else events)


@pytest.mark.parametrize("at", ["before", "after", "never"])
@pytest.mark.parametrize("name", ["Hccl@Launch_Ffts", "hcom_allReduce_", "HcclAllReduce"])
def test_calls_on_the_host_are_not_communication(tmp_path: Path, at: str, name: str) -> None:
    """CANN's calls have the names of collectives; their process, or their fields, tell them apart."""
    kernels = [kernel for kernel in deepseek(4, 1, 3) if not kernel.is_communication]
    events = json.loads(npu_trace(kernels))
    call = {"Thread Id": 9, "Mode": "launch", "level": "node", "id": "x"} if at == "never" else {}
    calls = [
        {"ph": "X", "pid": 40, "tid": 9, "name": name, "ts": f"{EPOCH_US + k.start}.000", "dur": 100.0, "args": call}
        for k in kernels[::5]
    ]
    result = profile_of(tmp_path / "t.json", with_processes(events + calls, "CANN", at))
    assert result.median.communication_ms == 0
    assert figures(result) == raw(kernels)


# Times


@pytest.mark.parametrize("start_us", [0, EPOCH_US])
@pytest.mark.parametrize("duration", [0.0, 8.0])
def test_kernels_at_time_zero_have_no_time(tmp_path: Path, start_us: int, duration: float) -> None:
    """In recordings since 1970 and in those that begin at about 0."""
    kernels = deepseek(5, 1, 3)
    trace = json.loads(gpu_trace([replace(k, start=k.start + start_us + 1000, step=None) for k in kernels]))
    of_kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    for event in of_kernels[3 * KERNELS :]:
        event |= {"ts": 0.0, "dur": duration}
    result = profile_of(tmp_path / "t.json", json.dumps(of_kernels))
    assert said(result, f"{2 * KERNELS} of {5 * KERNELS} events have no time")
    assert len(result.steps) == 3
    assert figures(result) == raw(kernels[: 3 * KERNELS])
    assert sum(row.count for row in result.top) <= 3 * KERNELS


def test_a_recording_may_begin_at_zero(tmp_path: Path) -> None:
    """Its first kernel is no loss."""
    kernels = deepseek(3, 1, 3)
    text = kernel_details(kernels).replace(f"{EPOCH_US}.354", "0.000")
    for kernel in kernels:
        text = text.replace(f"{EPOCH_US + kernel.start}.354", f"{kernel.start}.000")
    result = profile_of(tmp_path / "k.csv", text)
    assert (result.warnings, result.median.kernels) == ((), KERNELS)


def test_start_times_that_a_spreadsheet_rounded_are_refused(tmp_path: Path) -> None:
    """1.72355E+15 is a time to ten seconds; all digits in that notation are a time to a microsecond, without gaps."""

    def saved(digits: int) -> str:
        def change(frame: pd.DataFrame) -> pd.DataFrame:
            column = "Start Time(us)"
            frame[column] = [f"{int(float(text)):.{digits}E}" for text in frame[column]]
            return frame

        return rewritten(kernel_details(deepseek(3, 1, 3)), change)

    with pytest.raises(ProfileError, match="scientific notation, as spreadsheets"):
        read_profile(write(tmp_path / "k.csv", saved(5)))
    with pytest.raises(ProfileError, match="scientific notation, as spreadsheets"):
        read_profile(write(tmp_path / "k.csv", saved(14)))
    whole = profile_of(tmp_path / "k.csv", saved(15))
    assert figures(whole) == raw(deepseek(3, 1, 3))
    assert whole.bottleneck is None
    assert said(whole, "gaps are not exact")


@pytest.mark.parametrize("writer", [kernel_details, op_summary, npu_trace, gpu_trace])
def test_without_durations_nothing_is_concluded(tmp_path: Path, writer: Callable[[Sequence[Kernel]], str]) -> None:
    """A step of gaps alone would be bound by scheduling."""
    result = profile_of(tmp_path / "file", writer([replace(k, duration=0) for k in deepseek(3, 1, 3)]))
    assert result.bottleneck is None
    assert said(result, "have a duration of 0")
    assert "most that scopes can save" not in headline(result)


def test_more_than_a_hundred_damaged_events_do_not_end_the_trace(tmp_path: Path) -> None:
    """Backslashes in names, as of Windows' paths; every kernel is whole, and the trace is not truncated."""
    kernels = deepseek(5, 1, 3)
    lines = []
    for event in json.loads(gpu_trace(kernels))["traceEvents"]:
        lines.append('{"ph": "X", "cat": "python_function", "name": "C:\\Users\\x.py", "pid": 1, "ts": 1, "dur": 1}')
        lines.append(json.dumps(event))
    result = profile_of(tmp_path / "t.json", '{"traceEvents": [\n' + ",\n".join(lines) + "\n]}")
    assert figures(result) == raw(kernels)
    assert len(result.steps) == 5
    assert said(result, f"is damaged: {len(lines) // 2} complete events", f"{len(lines) // 2} damaged places")
    assert result.bottleneck is not None


def test_kernels_missing_from_most_steps_withhold_the_conclusion(tmp_path: Path) -> None:
    """A missing kernel looks like a gap; in one step of five it changes no median, in four of five it does."""
    text = kernel_details(deepseek(5, 1, 3))

    def without(steps: int) -> str:
        def change(frame: pd.DataFrame) -> pd.DataFrame:
            frame.loc[[step * KERNELS + 3 + n for step in range(steps) for n in range(step + 1)], "Duration(us)"] = (
                "N/A"
            )
            return frame

        return rewritten(text, change)

    one, four = (profile_of(tmp_path / f"{steps}.csv", without(steps)) for steps in (1, 4))
    assert one.bottleneck is not None
    assert said(one, "1 of", "no valid time")
    assert figures(one) == raw(deepseek(5, 1, 3))
    assert four.bottleneck is None
    assert said(four, "may be missing in all but")


# Steps


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation", "", None])
def test_marks_of_steps_have_any_category(tmp_path: Path, category: str | None) -> None:
    """torch_npu marks them as operators; unequal steps are those of the marks, not of repetition."""
    kernels = [k for place, k in enumerate(deepseek(6, 1, 3)) if place % 37]
    events = json.loads(npu_trace(kernels))
    for event in events:
        if event["name"].startswith("ProfilerStep") and category is not None:
            event["cat"] = category
    result = profile_of(tmp_path / "t.json", json.dumps(events))
    assert len(result.steps) == 6
    assert figures(result) == raw(kernels)
    assert not said(result, "does not mark steps")
    assert said(result, "kernels have no known launch")


@pytest.mark.parametrize(
    ("event", "is_said"),
    [
        ({"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 7}}, True),
        ({"cat": "cuda_driver", "name": "cuLaunchKernelEx"}, True),
        ({"cat": "mtia_runtime", "name": "enqueueCommand memcpyHtoDAsync"}, True),
        ({"cat": "mtia_runtime", "name": "runFunction - job_prep_and_submit_for_execution"}, True),
        ({"cat": "enqueue", "name": "Enqueue", "args": {"correlation_id": 7}}, True),
        ({"name": "Node@launch", "args": {"connection_id": 7, "level": "node"}}, True),
        ({"cat": "cuda_runtime", "name": "cudaDeviceSynchronize"}, False),
    ],
)
def test_the_host_of_a_device_is_not_taken_for_a_cpu(tmp_path: Path, event: dict[str, Any], is_said: bool) -> None:
    """Its trace without the device's kernels, as recorded without the device's activities, allows no conclusion."""
    operators = ("aten::layer_norm", "aten::addmm", "aten::gelu", "aten::addmm")
    events = [{"cat": "cpu_op", "name": name} for name in operators * 8] + [event]
    timed = [{"ph": "X", "pid": 1, "tid": 1, "ts": 9.0 * place, "dur": 8.0, **e} for place, e in enumerate(events)]
    result = profile_of(tmp_path / "t.json", json.dumps(timed))
    assert said(result, "work to a device 1 times", "record the device's activities") is is_said
    assert (result.bottleneck is None and not result.units) is is_said


def test_collectives_on_the_lane_of_a_group_have_any_name(tmp_path: Path) -> None:
    """MindSpore's graphs call one Default/Broadcast-op5_0: it is no gap."""
    kernels = deepseek(2, 1, 3)
    whole, events = profile_of(tmp_path / "t.json", npu_trace(kernels)), json.loads(npu_trace(kernels))
    lane = {"ph": "M", "name": "thread_name", "pid": 3, "tid": 0, "args": {"name": "Communication Kernel"}}
    for place, event in enumerate(events):
        if event["name"].startswith("hcom_"):
            event["name"] = f"Default/Broadcast-op{place}_0"
    result = profile_of(tmp_path / "u.json", json.dumps([lane, *events]))
    assert whole.median.communication_ms > 0
    assert result.steps == whole.steps


def test_durations_below_a_nanosecond_are_rounded(tmp_path: Path) -> None:
    """torch_npu writes them with up to 8 decimals; cut off, each of thousands of kernels would be too short."""
    events = json.loads(npu_trace(deepseek(1, 1, 3)))
    for event in events:
        if "dur" in event:
            event["dur"] += 0.00093750
    result = profile_of(tmp_path / "t.json", json.dumps(events))
    assert result.kernels["duration_us"].mod(1).between(0.0009, 0.0011).all()


def test_types_of_a_trace_are_those_of_names(tmp_path: Path) -> None:
    """A trace has no operator types, and a name may tell them wrongly: GE calls a TransData trans_TransData_7."""
    kernels = deepseek(1, 1, 3)
    assert said(profile_of(tmp_path / "t.json", npu_trace(kernels)), "operator types", "names")
    assert not said(profile_of(tmp_path / "k.csv", kernel_details(kernels)), "names")


def replays(cut: int, end: int, streams: int, pause: int, ids: str) -> tuple[str, list[Kernel]]:
    """Return an op_summary of a graph's executions without the first ``cut`` and last ``end`` kernels, and whole ones.

    Tasks have ascending ids, by stream if there are several, or unordered ones.
    """
    step = deepseek(1, 1, 3)
    length = step[-1].start + step[-1].duration + pause
    kernels = [replace(k, start=k.start + run * length, step=run, stream=place % streams, name=k.type)
               for run in range(6) for place, k in enumerate(step)]  # fmt: skip
    tasks = [place % len(step) + 5 for place in range(len(kernels))]
    text = graph_rows(
        kernels, lambda _: "7", lambda place: tasks[place] * 7919 % 1009 if ids == "any" else tasks[place]
    )
    header, *rows = text.splitlines()
    last = len(kernels) - end
    whole = [k for k in kernels if (k.step or not cut) and (k.step != 5 or not end)]
    return "\n".join([header, *rows[cut:last], ""]), whole


@pytest.mark.parametrize(("cut", "end"), [(0, 0), (23, 0), (23, 40), (1, 0), (60, 20), (0, 13)])
@pytest.mark.parametrize(("streams", "pause", "ids"), [(1, 500, "any"), (2, 500, "ascending"), (2, 2, "ascending")])
def test_a_recording_may_begin_inside_an_execution(
    tmp_path: Path, streams: int, cut: int, end: int, pause: int, ids: str
) -> None:
    """The incomplete executions are left out and counted; the host's pause is in no step."""
    text, whole = replays(cut, end, streams, pause, ids)
    result = profile_of(tmp_path / "s.csv", text)
    assert len(result.steps) == len({k.step for k in whole})
    assert figures(result) == raw(whole)
    if lost := 6 * KERNELS - cut - end - len(whole):
        assert said(result, f"{lost} of {6 * KERNELS - cut - end} kernels are outside of steps")


@pytest.mark.parametrize("cut", [0, 7, 31])
def test_found_steps_begin_after_the_hosts_pause(tmp_path: Path, cut: int) -> None:
    """Also if the recording ends where it began, inside a step: then its length is a whole number of steps."""
    kernels = [replace(k, step=k.step) for k in deepseek(5, 1, 3)]
    inside = kernels[cut : len(kernels) - (KERNELS - cut if cut else 0)]
    result = profile_of(tmp_path / "s.csv", op_summary(inside))
    assert len(result.steps) == (5 if not cut else 3)
    assert figures(result) == raw(kernels[:KERNELS])


# Files, recordings and ranks


@pytest.mark.parametrize("count", [2, 12])
def test_slices_of_an_export_are_one_device(tmp_path: Path, count: int) -> None:
    """A cut inside a step is no border of steps, and slice 10 comes after slice 9."""
    kernels = deepseek(5, 1, 3)
    header, *rows = op_summary(kernels).splitlines()
    trace = json.loads(npu_trace([replace(k, step=None) for k in kernels]))
    heads = [event for event in trace if event["ph"] == "M"]
    events = [event for event in trace if event["ph"] != "M"]
    for folder in ("csv", "json"):
        for number in range(count):
            part = slice(number * len(rows) // count, (number + 1) * len(rows) // count)
            some = slice(number * len(events) // count, (number + 1) * len(events) // count)
            where = tmp_path / folder / "PROF_000001_20251128_AB" / "mindstudio_profiler_output"
            if folder == "csv":
                write(where / f"op_summary_slice_{number}_20251128032000.csv", "\n".join([header, *rows[part], ""]))
            else:
                write(where / f"msprof_slice_{number}_20251128032000.json", json.dumps([*heads, *events[some]]))
        result = profile_of(tmp_path / folder)
        assert (result.devices, len(result.steps)) == (1, 5)
        assert said(result, f"{count} slices of one export")
        assert figures(result) == raw(kernels)


def test_a_missing_slice_is_named(tmp_path: Path) -> None:
    """What rests on all of them is withheld."""
    header, *rows = op_summary(deepseek(6, 1, 3)).splitlines()
    for number in (0, 2):
        part = rows[number * 2 * KERNELS : (number + 1) * 2 * KERNELS]
        write(tmp_path / f"op_summary_slice_{number}_20251128032000.csv", "\n".join([header, *part, ""]))
    result = profile_of(tmp_path)
    assert said(result, "slices 1 of the export are missing")
    assert result.bottleneck is None


TABLE = "ASCEND_PROFILER_OUTPUT/kernel_details.csv"


@pytest.mark.parametrize(
    ("first", "second", "later_us"),
    [
        (f"host_1_20251128032000123_ascend_pt/{TABLE}", f"host_1_20251128052000456_ascend_pt/{TABLE}", 0),
        (f"host_77_20251128032000123_ascend_pt/{TABLE}", f"host_99_20251128052000456_ascend_pt/{TABLE}", 7_200_000_000),
        ("monday/kernel_details.csv", "tuesday/kernel_details.csv", 86_400_000_000),
        ("PROF_1/mindstudio_profiler_output/op_summary_20251128032000.csv",
         "PROF_1/mindstudio_profiler_output/op_summary_20251128052000.csv", 0),
        ("copy/kernel_details.csv", "kernel_details.csv", None),
        ("trace_1.1764300000000.pt.trace.json", "trace_1.1764300009000.pt.trace.json", 0),
        ("timeline/msprof_0_2_1.json", "timeline/msprof_0_2_10.json", 500_000),
    ],
)  # fmt: skip
def test_two_recordings_of_a_rank_are_not_two_ranks(
    tmp_path: Path, first: str, second: str, later_us: int | None
) -> None:
    """One process, one device hours later or in one folder, two exports: the later is shown, both are named."""
    slow = [replace(k, start=2 * k.start, duration=2 * k.duration) for k in deepseek(3, 1, 3)]
    fast = slow if later_us is None else [replace(k, start=k.start + later_us) for k in deepseek(3, 1, 3)]
    writer = op_summary if "op_summary" in first else gpu_trace if "json" in first else kernel_details
    write(tmp_path / first, writer(slow))
    write(tmp_path / second, writer(fast))
    result = profile_of(tmp_path)
    assert result.devices == 1
    assert figures(result) == raw(fast)
    assert said(result, first, second)


def test_ranks_have_their_own_numbers_or_their_folders_names(tmp_path: Path) -> None:
    """torch_npu writes the number into a file's name; the order of folders says nothing."""
    for host, duration in (("host_2", 8), ("host_10", 11), ("host_30", 9)):
        folder = tmp_path / f"{host}_20251128032000_ascend_pt"
        write(folder / TABLE, kernel_details(deepseek(2, 1, 3, duration)))
    assert profile_of(tmp_path).device == "host_10_20251128032000_ascend_pt device 0"
    for number, host in enumerate(("host_10", "host_2", "host_30")):
        write(tmp_path / f"{host}_20251128032000_ascend_pt" / f"profiler_info_{number}.json", "{}")
    assert profile_of(tmp_path).device == "rank 0 device 0"


@pytest.mark.parametrize("text", ["", kernel_details([])])
def test_a_rank_that_wrote_nothing_is_named(tmp_path: Path, text: str) -> None:
    """The other ranks are analysed."""
    kernels = deepseek(3, 1, 3)
    write(tmp_path / "rank0_1_ascend_pt" / TABLE, kernel_details(kernels))
    write(tmp_path / "rank1_1_ascend_pt" / TABLE, text)
    result = profile_of(tmp_path)
    assert said(result, "a rank was left out", f"rank1_1_ascend_pt/{TABLE}")
    assert figures(result) == raw(kernels)
    write(tmp_path / "rank2_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", npu_trace(kernels))
    assert said(profile_of(tmp_path), "rank2_1_ascend_pt has no kernel_details.csv")
    (tmp_path / "rank0_1_ascend_pt" / TABLE).write_text(text)
    with pytest.raises(ProfileError, match="rank0_1_ascend_pt/ASCEND"):
        read_profile(tmp_path)


def merged(writer: Callable[[Sequence[Kernel]], str], marks: bool) -> tuple[str, list[Kernel]]:
    """Return a trace of two hosts with the same device, told apart by their processes, and the slower one's kernels."""
    events = []
    hosts = [deepseek(4, 1, 3), deepseek(4, 1, 3, duration=9)]
    for number, kernels in enumerate(hosts):
        text = json.loads(writer(kernels))
        for event in text if isinstance(text, list) else text["traceEvents"]:
            if marks or not event["name"].startswith("ProfilerStep"):
                event["pid"] += number << 10
                events.append(event)
            if event["ph"] == "M" and event["pid"] & 1023 in (2, 3):
                events.append({**event, "name": "process_labels", "args": {"labels": "NPU 0"}})
    return json.dumps(events), hosts[1]


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("writer", [npu_trace, gpu_trace])
def test_hosts_of_a_merged_trace_that_share_a_device_number_are_told_apart(
    tmp_path: Path, writer: Callable[[Sequence[Kernel]], str], marks: bool
) -> None:
    """Their kernels do not hide each other's gaps, and marks of several hosts decide on no step."""
    text, slower = merged(writer, marks)
    result = profile_of(tmp_path / "t.json", text)
    assert result.devices == 2
    assert figures(result) == raw(slower)
    assert said(result, "1 device numbers occur in several processes")
    assert said(result, "marks of steps", "not used") == marks
    assert said(result, "does not mark steps")


def test_kernels_of_one_stream_that_overlap_withhold_the_conclusion(tmp_path: Path) -> None:
    """As if two devices had one number: a stream runs one kernel at a time."""
    text = kernel_details([*deepseek(3, 1, 3), *(replace(k, start=k.start + 3) for k in deepseek(3, 1, 3))])
    result = profile_of(tmp_path / "k.csv", text)
    assert said(result, "kernels of one stream overlap")
    assert result.bottleneck is None


def test_a_refused_database_says_how_to_export_text(tmp_path: Path) -> None:
    """The file, and a folder that has nothing else."""
    path = tmp_path / "host_1_20251128032000_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE TASK (startNs INTEGER)")
    for given in (path, tmp_path):
        with pytest.raises(ProfileError, match=r"export_type=\['text'\].*--type=text"):
            read_profile(given)
    path.rename(tmp_path / "optuna.db")  # another program's
    with pytest.raises(ProfileError, match="has no kernel_details"):
        read_profile(tmp_path)


# Conclusions


@pytest.mark.parametrize(
    "kind", ["FlashAttentionScoreGrad", "RmsNormGrad", "ApplyAdamW", "aten::mm_backward", "FlashAttnBwd"]
)
def test_a_training_step_gets_no_advice_for_decoding(tmp_path: Path, kind: str) -> None:
    """Its figures are shown, and why nothing follows from them."""
    kernels = [replace(k, type=kind) if k.type == "ArgMaxV2" else k for k in deepseek(3, 1, 3)]
    result = profile_of(tmp_path / "k.csv", kernel_details(kernels))
    assert figures(result) == raw(kernels)
    assert said(result, "3 of", "this is training")
    assert (result.bottleneck, result.units) == (None, ())
    assert "this is training" in headline(result)
    with pytest.raises(ProfileError, match="this is training"):
        result.certain(tmp_path / "k.csv")


@pytest.mark.parametrize("kind", ["HadamardTransform", "GradualQuant", "MoeGatingTopK", "Degradeless"])
def test_operators_of_decoding_are_not_training(tmp_path: Path, kind: str) -> None:
    """Whatever their names contain."""
    kernels = [replace(k, type=kind) if k.type == "ArgMaxV2" else k for k in deepseek(3, 1, 3)]
    assert profile_of(tmp_path / "k.csv", kernel_details(kernels)).bottleneck is not None


def test_superkernels_whose_operators_are_not_found_gain_nothing_known(tmp_path: Path) -> None:
    """Neither zero nor a verdict: the line says what was looked for."""
    step = deepseek(3, 1, 3)
    other = [Kernel(f"Other{place % 5}", k.start, k.duration, step=k.step) for place, k in enumerate(step)]
    fused = [
        replace(k, type="SuperKernel", core="MIX_AIC", name=f"sk_layer{place % KERNELS}_start_x_end_y")
        if place % 3 else replace(k, type=f"New{place}", name=f"New{place}")
        for place, k in enumerate(step)
    ]  # fmt: skip
    result = compare(profile_of(tmp_path / "b.csv", kernel_details(other)),
                     profile_of(tmp_path / "c.csv", kernel_details(fused)))  # fmt: skip
    assert not any(gain.replaced for gain in result.gains)
    (table,) = comparison_tables(result)
    assert table.rows == ()
    assert "no gain is known" in table.note
    assert "+0.0" not in table.note


def test_the_bottleneck_of_a_sound_profile_is_still_named(tmp_path: Path) -> None:
    """Nothing is withheld where nothing is in doubt."""
    result = profile_of(tmp_path / "k.csv", kernel_details(deepseek(3, 1, 3)))
    assert (result.warnings, result.withheld) == ((), ())
    assert result.bottleneck is not None
    assert result.bottleneck.bound in Bound


@pytest.mark.parametrize("fields", [{}, {"Task Type": "AI_CORE"}], ids=["untyped", "typed"])
def test_a_drawing_of_a_captured_graph_is_no_profile(fields: dict[str, str], tmp_path: Path) -> None:
    """CANN draws graphs as traces in which every task takes 9.5 us; public tools have such files among profiles."""
    names = ("EVENT_WAIT_1", "hccl_aiv_sync", "MEMCPY_ASYNC", "MatMulV2_ND_65745", "aiv_all_gather_bfloat16_t")
    events = [
        {"name": name, "pid": "7 aclGraph", "tid": f"stream{stream}", "ts": 10 * at, "dur": 9.5, "ph": "X",
         "args": {"Model Id": 1, "Stream Id": stream, "Task Id": at, **fields}}
        for stream in (161, 162) for at, name in enumerate(names)
    ]  # fmt: skip
    with pytest.raises(ProfileError, match=r"graph\.json is a drawing of a captured graph"):
        read_profile(write(tmp_path / "graph.json", json.dumps(events)))
