"""Kernel tables from CSV files: ``kernel_details.csv`` of torch_npu, ``op_summary_*.csv`` of msprof.

Columns vary with profiling level, metrics and release, so all are found by name. Missing values are ``N/A`` or empty,
and start times end with a TAB. Format: the profiling section of CANN's documentation.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.core.errors import ProfileError
from sktune.profiling.kernel_table import (
    NO_STEP,
    NO_STREAM,
    KernelTable,
    LeftOut,
    complete,
    exact_ns,
    only_kernels,
    type_of_npu_name,
)

# Names in lower case without units, blanks and underscores, by what sktune calls the column.
_COLUMNS = {
    "step": ["stepid"], "device": ["deviceid"], "model": ["modelid"], "task": ["taskid"], "stream": ["streamid"],
    "name": ["name", "opname", "kernelname"], "type": ["type", "optype"], "core": ["acceleratorcore", "tasktype"],
    "start": ["starttime", "taskstarttime"], "duration_us": ["duration", "taskduration"],
    "wait_us": ["waittime", "taskwaittime"], "blocks": ["blockdim", "blocknum"],
}  # fmt: skip
_ALIASES = {alias: role for role, aliases in _COLUMNS.items() for alias in aliases}
_REQUIRED = {"name": "Name", "start": "Start Time(us)", "duration_us": "Duration(us)"}
_PIPES = {"mac": "mac", "vec": "vec", "scalar": "scalar", "mte2": "mte2", "mte3": "mte3", "fixpipe": "mte3"}
_PIPE = re.compile(r"(?:aic_|aiv_)?(mac|vec|scalar|mte2|mte3|fixpipe)_ratio")
_MAX_DURATION_US = 1e12
_MAX_STEP = 1e15
_MISSING = {"", "n/a", "na", "nan", "none", "null"}


def read_csv(slices: Sequence[bytes], shown: str, left_out: LeftOut) -> KernelTable:
    """Read the bytes of a file called ``shown``, or of the slices of one.

    Raises:
        ProfileError: the header lacks a required column, or nothing can be read.
    """
    tables = pd.concat([_read_slice(data, shown, left_out) for data in slices], ignore_index=True)
    frame = only_kernels(tables, left_out, "rows")
    if len(frame) and (frame["step"] == NO_STEP).all() and (steps := replays(frame)) is not None:
        frame["step"] = steps
        left_out.say(f"the profile does not mark steps: executions of its graph are taken as such ({steps.max() + 1})")
    names = _split(slices[0].partition(b"\n")[0].decode("utf-8-sig", "replace"))
    source = "op_summary" if any(_plain(name) == "opname" for name in names) else "kernel_details"
    return complete(frame, source, left_out)


def _read_slice(data: bytes, shown: str, left_out: LeftOut) -> pd.DataFrame:
    names = _split(data.partition(b"\n")[0].decode("utf-8-sig", "replace"))
    roles = {index: _ALIASES.get(_plain(name)) for index, name in enumerate(names) if name not in names[:index]}
    if lacking := [column for role, column in _REQUIRED.items() if role not in roles.values()]:
        raise ProfileError(
            f"{shown} is not a profile: it lacks the column {' and '.join(map(repr, lacking))} of a kernel_details.csv "
            f"or op_summary, and begins {','.join(names)[:40].strip()!r}; give one of these, or a chrome trace "
            "(trace_view.json)"
        )
    ratios = {
        index: _PIPES[match[1]]
        for index, name in enumerate(names)
        if index in roles and (match := _PIPE.fullmatch(name.strip()))
    }
    used_columns = sorted({index for index, role in roles.items() if role} | set(ratios))
    cut = 0
    if not data.endswith(b"\n"):  # a truncated last row is dropped: its open quote would break the parser
        start = data.rfind(b"\n") + 1
        last = data[start:].decode("utf-8", "replace")
        if start and (last.count('"') % 2 or len(_split(last)) < len(names)):
            data, cut = data[:start], 1
    frame, rows = _parse(data, {index: names[index] for index in used_columns}, shown)
    if unread := cut + rows - len(frame):
        left_out.say(
            f"{unread} of {rows + cut} rows are incomplete and were left out; was the file truncated?", lost=unread
        )
    table = _table(frame, roles, ratios, left_out)
    repeated = table["name"].map(_plain, na_action="ignore").isin(_COLUMNS["name"])
    if repeated.any():
        left_out.say(f"{repeated.sum()} repeated header lines were left out")
    return table[~repeated]


def _split(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a field beyond the limit of the module, for instance
        return []


def _plain(name: str) -> str:
    return re.sub(r"\(.*?\)|[\s_]", "", name).lower()


def _parse(data: bytes, used_columns: Mapping[int, str], shown: str) -> tuple[pd.DataFrame, int]:
    """Return the kept columns, named by their position, and the number of rows in the file."""
    rows = sum(1 for line in io.BytesIO(data) if line.strip()) - 1
    try:
        frame = pd.read_csv(
            io.BytesIO(data),
            usecols=list(used_columns),
            dtype=str,  # pandas 3 with numpy 1 overflows where it looks for numbers itself
            na_values=["N/A", "NA", ""],
            keep_default_na=False,
            on_bad_lines="skip",
            encoding="utf-8-sig",
            encoding_errors="replace",
            index_col=False,
            low_memory=False,
        )
    except (pd.errors.ParserError, ValueError) as failure:
        raise ProfileError(f"{shown} is damaged ({failure}); export the profile again") from failure
    frame.columns = pd.Index(list(used_columns))
    return frame, rows


def _table(
    frame: pd.DataFrame, roles: Mapping[int, str | None], ratios: Mapping[int, str], left_out: LeftOut
) -> pd.DataFrame:
    """Return the columns under sktune's names; missing and non-numeric values are NaN."""
    by_role = {role: frame[index] for index, role in roles.items() if role}
    start = pd.array([_exact_ns(text) for text in by_role["start"].fillna("").tolist()], dtype="Int64")
    table = pd.DataFrame({"name": _text(by_role["name"]), "start_ns": start})
    if rounded := int(by_role["start"].str.fullmatch(r"\s*\d\.?\d{0,17}e\S*\s*", case=False).fillna(False).sum()):
        left_out.say(
            f"{rounded} of {len(frame)} start times were rounded to scientific notation, as spreadsheets do: gaps are "
            "not exact; export the profile again",
            forbids=True,
        )
    table["duration_us"] = _number(by_role["duration_us"]).where(lambda duration: duration.between(0, _MAX_DURATION_US))
    for role in ("wait_us", "blocks"):
        table[role] = _number(by_role[role]) if role in by_role else np.nan
    step = _number(by_role["step"]) if "step" in by_role else pd.Series(NO_STEP, index=frame.index, dtype=float)
    table["step"] = step.where(lambda number: number.abs() < _MAX_STEP, NO_STEP).astype(int)
    for role in ("device", "model", "task", "stream", "type", "core"):
        otherwise = {"device": "0", "stream": NO_STREAM}.get(role, "")
        table[role] = _text(by_role[role]).fillna(otherwise) if role in by_role else otherwise
    of_names = table["name"].map(type_of_npu_name, na_action="ignore").fillna("")
    if "type" in by_role and (untyped := int(((table["type"] == "") & (of_names != "")).sum())):
        left_out.say(f"{untyped} of {len(table)} rows have no type: theirs is taken from their names")
    table["type"] = table["type"].where(table["type"] != "", of_names)
    for pipe in dict.fromkeys(ratios.values()):
        columns = [_number(frame[index]) for index, other in ratios.items() if other == pipe]
        table[f"{pipe}_ratio"] = pd.concat(columns, axis=1).max(axis=1)
    return table


def _text(column: "pd.Series[str]") -> "pd.Series[str]":
    """Return the text without blanks around it, missing values as NaN."""
    stripped = column.str.strip()
    return stripped.mask(stripped.str.lower().isin(_MISSING))


def _number(column: "pd.Series[str]") -> "pd.Series[float]":
    return pd.to_numeric(column.str.strip(), errors="coerce").astype(float)


def _exact_ns(text: str) -> int | None:
    try:
        return exact_ns(text)
    except (ValueError, ArithmeticError):
        return None


_NO_GRAPH = str(2**32 - 1)
"""The profiler's model id of kernels that the host launched one by one."""


def replays(table: pd.DataFrame) -> npt.NDArray[np.int64] | None:
    """Return the step of each row: executions of the device's only graph count from 0, other kernels are outside.

    Args:
        table: columns ``device``, ``model``, ``task``, ``stream`` (text, empty if unknown), ``start_ns`` and
            ``duration_us``, with an index from 0.

    Returns:
        None if a device has no graph, several, or one whose executions differ.
    """
    steps = np.full(len(table), NO_STEP, dtype=np.int64)
    table = table.sort_values("start_ns", kind="stable")
    graph = table[(table["model"] != "") & (table["model"] != _NO_GRAPH) & (table["task"] != "")]
    if set(graph["device"]) != set(table["device"]):
        return None
    for device, rows in graph.groupby("device"):
        if rows["model"].nunique() != 1:
            return None
        task = pd.factorize(rows["stream"] + "/" + rows["task"])[0]
        every = table[table["device"] == device]
        end_ns = (every["start_ns"] + (every["duration_us"] * 1e3).astype(np.int64)).cummax().shift()
        idle_ns = (every["start_ns"] - end_ns).loc[rows.index]
        number = np.cumsum(task == _first_task(task, rows, idle_ns)) - 1
        last, whole = number[-1], task.max() + 1
        for replay in range(-1, last + 1):
            tasks = task[number == replay]
            if len(set(tasks)) != len(tasks) or (len(tasks) != whole and replay not in (-1, last)):
                return None
            if len(tasks) != whole:
                number[number == replay] = NO_STEP  # the recording began or ended in it
        steps[rows.index] = number
    return steps


def _first_task(task: npt.NDArray[np.int64], rows: pd.DataFrame, idle_ns: "pd.Series[float]") -> int:
    """Return the task that begins an execution, as a recording may begin inside one.

    It is the first of its stream, after which ids ascend, if they do; of several, that after the longest pause.
    """
    repeats = np.bincount(task) > 1
    if not repeats.any():
        return int(task[0])
    firsts: set[int] = set()
    ids = pd.to_numeric(rows["task"], errors="coerce").to_numpy()
    for places in rows.reset_index().groupby("stream").indices.values():
        wraps = set(task[places[1:][np.diff(ids[places]) < 0]])
        firsts |= wraps if len(wraps) == 1 else set(task[places])
    pauses = idle_ns.groupby(task).median()
    return max(sorted(kind for kind in firsts if repeats[kind]), key=lambda kind: float(pauses[kind]))
