"""Keeps the folder of Inductor's caches within a size: what was not used for the longest time is deleted."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 20 << 30
KEPT_S = 3600.0
"""What was used in the last hour is never deleted: a process may be about to load it."""
ENTRIES = ("fxgraph", "aotautograd")
"""Folders of entries, beside those of code, whose names have two characters."""
CHOICES = ".best_config"
"""Choices by timing stay, as they determine which code a plan is compiled to: these files, and the folder ``cache``."""


def trim(cache: Path, max_bytes: int = MAX_BYTES, kept_s: float = KEPT_S) -> int:
    """Delete files until at most ``max_bytes`` are left; return how many bytes were deleted.

    Each file can be missing: Inductor makes it again from the others, or anew. Errors are ignored, as other processes
    may do the same.
    """
    files: list[tuple[float, int, str]] = []
    with suppress(OSError):
        folders = [entry.path for entry in os.scandir(cache) if entry.is_dir(follow_symlinks=False)
                   and (len(entry.name) == 2 or entry.name in ENTRIES)]  # fmt: skip
        for entry in (entry for folder in folders for entry in _files(folder)):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime, status.st_size, entry.path))
    excess = size = sum(size for _, size, _ in files) - max_bytes
    for used_s, file_bytes, path in sorted(files):
        if excess <= 0 or used_s > time.time() - kept_s:
            break
        with suppress(OSError):
            Path(path).unlink()
            excess -= file_bytes
    return size - excess


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(CHOICES):
                yield entry
