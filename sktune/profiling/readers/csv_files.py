"""Kernel tables from CSV files: ``kernel_details.csv`` of torch_npu, ``op_summary_*.csv`` of msprof.

Columns vary with profiling level, metrics and release, so all are found by name. Missing values are ``N/A`` or empty,
and start times end with a TAB. Format: the profiling section of CANN's documentation.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence

import numpy as np
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
from sktune.profiling.replays import replays

# Keys are names in lower case without units, blanks and underscores.
_ALIASES = {
    "stepid": "step",
    "deviceid": "device",
    "modelid": "model",
    "taskid": "task",
    "streamid": "stream",
    "name": "name",
    "opname": "name",
    "kernelname": "name",
    "type": "type",
    "optype": "type",
    "acceleratorcore": "core",
    "tasktype": "core",
    "starttime": "start",
    "taskstarttime": "start",
    "duration": "duration_us",
    "taskduration": "duration_us",
    "waittime": "wait_us",
    "taskwaittime": "wait_us",
    "blockdim": "blocks",
    "blocknum": "blocks",
}
_REQUIRED = {"name": "Name", "start": "Start Time(us)", "duration_us": "Duration(us)"}
_PIPES = {"mac": "mac", "vec": "vec", "scalar": "scalar", "mte2": "mte2", "mte3": "mte3", "fixpipe": "mte3"}
_PIPE = re.compile(r"(?:aic_|aiv_)?(mac|vec|scalar|mte2|mte3|fixpipe)_ratio")
_MAX_DURATION_US = 1e12
_MAX_STEP = 1e15
_NAMES = [alias for alias, role in _ALIASES.items() if role == "name"]
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
    data, cut = _without_partial_row(data, len(names))
    frame, rows = _parse(data, {index: names[index] for index in used_columns}, shown)
    if unread := cut + rows - len(frame):
        left_out.say(
            f"{unread} of {rows + cut} rows are incomplete and were left out; was the file truncated?", lost=unread
        )
    table = _table(frame, roles, ratios, left_out)
    repeated = table["name"].map(_plain, na_action="ignore").isin(_NAMES)
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


def _without_partial_row(data: bytes, columns: int) -> tuple[bytes, int]:
    """Drop a truncated last row: its open quote would break the parser."""
    if data.endswith(b"\n"):
        return data, 0
    start = data.rfind(b"\n") + 1
    last = data[start:].decode("utf-8", "replace")
    is_whole = last.count('"') % 2 == 0 and len(_split(last)) >= columns
    return (data, 0) if is_whole or start == 0 else (data[:start], 1)


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
    for role, otherwise in (
        ("device", "0"),
        ("model", ""),
        ("task", ""),
        ("stream", NO_STREAM),
        ("type", ""),
        ("core", ""),
    ):
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
