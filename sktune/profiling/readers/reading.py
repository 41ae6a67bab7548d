"""Read a profile of any known format, recognised by its content."""

import io
import re
import zlib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pandas as pd

from sktune.core.errors import ProfileError
from sktune.core.files import open_regular
from sktune.core.printable import natural_order
from sktune.profiling.kernel_table import KernelTable, LeftOut
from sktune.profiling.readers.csv_files import read_csv
from sktune.profiling.readers.trace_files import read_trace

# In a folder, the first of these that exists: kernel tables have more information than traces.
_IN_FOLDERS = (
    "kernel_details.csv*", "op_summary*.csv*", "trace_view*.json*", "*.trace.json*", "trace*.json*", "msprof*.json*",
)  # fmt: skip
_SNIFFED_BYTES = 4096
_SLICE = re.compile(r"_slice_(\d+)")
_STAMP = re.compile(r"(?<!\d)\d{8,}(?!\d)")
"""The time in the name of a recording's folder, or of an exported file."""
_RANK = re.compile(r"profiler_info_(\d+)\.json")
MAX_APART_NS = 1_000_000_000
"""Ranks of one run are recorded together; the clocks of hosts, whose files have different folders, differ by less."""
_DATABASES = ("ascend_pytorch_profiler*.db", "msprof*.db", "*analysis.db")
"""Names that torch_npu's profiler, msprof and msprof-analyze give to what they export as databases."""
_AS_TEXT = (
    "export it as text, with torch_npu.profiler.profiler.analyse(FOLDER, export_type=['text']) or "
    "`msprof --export=on --type=text --output=FOLDER`"
)


def read_profile(path: Path) -> KernelTable:
    """Read a profile, plain or gzipped, or a profiler's output folder, of one or more ranks.

    Raises:
        ProfileError: there is no such file, it is not a profile, or it has no kernels.
    """
    if not path.exists():
        raise ProfileError(f"there is no file {str(path)!r}; give a kernel_details.csv, an op_summary or a trace")
    if not path.is_dir():
        return _read_export([path], path.name)
    left_out, failures = LeftOut(), []
    recordings = []
    for export in _exports(path, left_out):
        try:
            table = _read_export(export, str(export[0].relative_to(path)))
            recordings.append(_Recording(export[0].relative_to(path), _rank(export[0], path), table))
        except ProfileError as failure:
            failures.append(str(failure))
    if not recordings:
        raise ProfileError(failures[0])
    for line in failures:
        left_out.say(f"a rank was left out: {line}")
    return _side_by_side(_of_different_ranks(recordings, left_out), left_out)


@dataclass(frozen=True, slots=True)
class _Recording:
    """One recording of a rank; ``rank`` is its number if the profiler wrote it, else its path without the time."""

    path: Path
    rank: str
    table: KernelTable


def _exports(folder: Path, left_out: LeftOut) -> list[list[Path]]:
    """Return the files of each export: its slices in order, or one file. Of several of the same data, the latest."""
    for pattern in _IN_FOLDERS:
        slices: dict[Path, list[Path]] = {}
        for file in sorted(folder.rglob(pattern), key=lambda file: natural_order(str(file))):
            slices.setdefault(file.with_name(_SLICE.sub("", file.name)), []).append(file)
        latest: dict[Path, list[Path]] = {}
        for name, files in slices.items():
            data = name.with_name(_STAMP.sub("", name.name))
            if data in latest:
                earlier, later = (each[0].relative_to(folder) for each in (latest[data], files))
                left_out.say(f"{earlier} and {later} are exports of one recording: the latter is read")
            latest[data] = files
        if latest:
            read = {parent for files in latest.values() for file in files for parent in file.parents}
            of_ranks = [each for each in (*folder.rglob("*_ascend_pt"), *folder.rglob("PROF_*")) if each.is_dir()]
            outer = {each for each in of_ranks if not any(parent in of_ranks for parent in each.parents)}
            for folder_of_rank in sorted(outer - read):
                left_out.say(f"a rank was left out: {folder_of_rank.relative_to(folder)} has no {pattern}")
            return list(latest.values())
    if any(any(folder.rglob(pattern)) for pattern in _DATABASES):
        raise ProfileError(f"{folder} has only a database export; {_AS_TEXT}")
    raise ProfileError(
        f"{folder} has no kernel_details.csv, op_summary or trace; parse the profile first, or name a file"
    )


def _rank(file: Path, folder: Path) -> str:
    for parent in file.parents:
        numbers = [match[1] for each in parent.glob("profiler_info_*.json") if (match := _RANK.fullmatch(each.name))]
        if len(numbers) == 1:
            return f"rank {int(numbers[0])}"
        if parent == folder:
            break
    return _STAMP.sub("", str(file.relative_to(folder)))


def _of_different_ranks(recordings: list[_Recording], left_out: LeftOut) -> list[_Recording]:
    """Return the latest recording of each rank.

    Two are of one rank if their names are equal but for the time, or if they have the same devices and were made at
    different times or are copies.
    """
    kept: list[_Recording] = []
    for recording in sorted(recordings, key=lambda each: (each.table.span_ns[0], natural_order(str(each.path)))):
        for place, other in enumerate(kept):
            apart_ns = 0 if recording.path.parent == other.path.parent else MAX_APART_NS
            is_apart = recording.table.span_ns[0] - other.table.span_ns[1] > apart_ns
            same_devices = set(recording.table.frame["device"]) == set(other.table.frame["device"])
            is_copy = recording.table.span_ns == other.table.span_ns
            if same_devices and (recording.rank == other.rank or is_apart or is_copy):
                left_out.say(
                    f"{other.path} and {recording.path} are two recordings of one rank: the latter is shown; name the "
                    "former to see it"
                )
                kept[place] = recording
                break
        else:
            kept.append(recording)
    return kept


def _read_export(files: Sequence[Path], shown: str) -> KernelTable:
    """Read a file, or the slices of one export; ``shown`` names the first."""
    left_out = LeftOut()
    if len(files) > 1:
        left_out.say(f"{len(files)} slices of one export are read as one")
        numbers = [int(match[1]) for file in files if (match := _SLICE.search(file.name))]
        if missing := set(range(max(numbers))) - set(numbers):
            left_out.say(f"slices {', '.join(map(str, sorted(missing)))} of the export are missing", forbids=True)
    try:
        with ExitStack() as opened:
            streams = [_opened(file, shown if file == files[0] else file.name, opened) for file in files]
            if streams[0].peek(_SNIFFED_BYTES).decode("utf-8-sig", "replace").lstrip()[0] in "{[":
                texts = [io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace") for stream in streams]
                table = read_trace(texts, shown, left_out)
            else:
                table = read_csv([stream.read() for stream in streams], shown, left_out)
    except OSError as failure:
        raise ProfileError(
            f"{shown} cannot be read ({failure.strerror or failure}); check the path and its permissions"
        ) from failure
    if table.frame.empty:
        why = "; ".join(table.warnings) or "did the profiler record device activities?"
        raise ProfileError(f"{shown} has no kernels; {why}")
    return table


def _opened(path: Path, shown: str, opened: ExitStack) -> "io.BufferedReader[Any]":
    file = opened.enter_context(open_regular(path))
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    stream: io.BufferedReader[Any] = io.BufferedReader(_Gunzip(file), _SNIFFED_BYTES) if is_gzip else file
    start = stream.peek(_SNIFFED_BYTES)
    if not start.decode("utf-8-sig", "replace").lstrip():
        raise ProfileError(f"{shown} is empty; was the profiler stopped before it wrote?")
    if start.startswith(b"SQLite format 3"):
        raise ProfileError(f"{shown} is a database, not text; if Ascend's profilers exported it, {_AS_TEXT}")
    if b"\0" in start:
        raise ProfileError(f"{shown} is a binary file, not a profile; give a CSV or JSON file of a profiler")
    return stream


class _Gunzip(io.RawIOBase):
    """Decompresses as far as possible: all data of a truncated file are read (gzip.open loses the last part)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(wbits=31)
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._inflate.unconsumed_tail or self._file.read(1 << 18)
            if not chunk:
                return 0
            with suppress(zlib.error):  # at damaged data, or what is behind the last member
                self._ready = self._inflate.decompress(chunk, 1 << 22)
                if self._inflate.eof:
                    rest, self._inflate = self._inflate.unused_data, zlib.decompressobj(wbits=31)
                    self._ready += self._inflate.decompress(rest, 1 << 22) if rest else b""
                continue
            break
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _side_by_side(recordings: list[_Recording], left_out: LeftOut) -> KernelTable:
    """Join the ranks of one run as separate devices; their clocks need not agree."""
    tables = [recording.table for recording in recordings]
    if len(tables) == 1:
        return replace(tables[0], left_out=left_out.with_those_of(tables[0].left_out))
    folders = [recording.path.parts[0] for recording in recordings]
    names = folders if len(set(folders)) == len(folders) else [str(recording.path) for recording in recordings]
    labels = [
        recording.rank if recording.rank.startswith("rank ") else name
        for recording, name in zip(recordings, names, strict=True)
    ]
    frames = [
        table.frame.assign(device=[f"{label} device {device}" for device in table.frame["device"]])
        for label, table in zip(labels, tables, strict=True)
    ]
    for label, table in zip(labels, tables, strict=True):
        left_out = left_out.with_those_of(table.left_out, f"{label}: ")
    return KernelTable(
        pd.concat(frames, ignore_index=True),
        tables[0].source,
        all(table.has_steps for table in tables),
        tables[0].span_ns,
        left_out,
    )
