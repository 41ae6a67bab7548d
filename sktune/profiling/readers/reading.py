"""Read a profile of any known format, recognised by its content."""

import io
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd

from sktune.core.errors import ProfileError
from sktune.core.files import open_regular
from sktune.profiling.kernel_table import KernelTable
from sktune.profiling.readers.csv_files import read_csv
from sktune.profiling.readers.trace_files import read_trace

# In a folder, the first of these that exists: kernel tables have more information than traces.
_IN_FOLDERS = (
    "kernel_details.csv", "op_summary*.csv", "trace_view.json*", "*.trace.json*", "trace.json*", "msprof*.json*",
)  # fmt: skip
_SNIFFED_BYTES = 4096


def read_profile(path: Path) -> KernelTable:
    """Read a profile, plain or gzipped, or a profiler's output folder, of one or more ranks.

    Raises:
        ProfileError: there is no such file, it is not a profile, or it has no kernels.
    """
    if not path.exists():
        raise ProfileError(f"there is no file {str(path)!r}; give a kernel_details.csv, an op_summary or a trace")
    tables = [_read_file(file) for file in _files(path)]
    table = tables[0] if len(tables) == 1 else _side_by_side(tables)
    if table.frame.empty:
        raise ProfileError(f"{path} has no kernels; did the profiler record device activities?")
    return table


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    for pattern in _IN_FOLDERS:
        if files := sorted(path.rglob(pattern)):
            return files
    raise ProfileError(
        f"{path} has no kernel_details.csv, op_summary or trace; parse the profile first, or name a file"
    )


def _read_file(path: Path) -> KernelTable:
    shown = path.name
    try:
        with open_regular(path) as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = io.BufferedReader(_Gunzip(file), _SNIFFED_BYTES) if is_gzip else file
            start = stream.peek(_SNIFFED_BYTES)
            text = start.decode("utf-8-sig", "replace").lstrip()
            if not text:
                raise ProfileError(f"{shown} is empty; was the profiler stopped before it wrote?")
            if b"\0" in start:
                raise ProfileError(f"{shown} is a binary file, not a profile; give a CSV or JSON file of a profiler")
            if text[0] in "{[":
                return read_trace(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace"), shown)
            return read_csv(stream.read(), shown)
    except OSError as failure:
        raise ProfileError(
            f"{shown} cannot be read ({failure.strerror or failure}); check the path and its permissions"
        ) from failure


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


def _side_by_side(tables: list[KernelTable]) -> KernelTable:
    """Join the ranks of one run as separate devices; their clocks need not agree."""
    frames = [
        table.frame.assign(device=[f"rank {rank} device {device}" for device in table.frame["device"]])
        for rank, table in enumerate(tables)
    ]
    return KernelTable(
        pd.concat(frames, ignore_index=True),
        tables[0].source,
        all(table.has_steps for table in tables if len(table.frame)),
        tuple(f"rank {rank}: {line}" for rank, table in enumerate(tables) for line in table.warnings),
    )
