"""The size of Inductor's caches."""

import os
import time
from pathlib import Path

from sktune.worker.runner import trim


def written(path: Path, hours_ago: float, size: int = 100) -> Path:
    """Write a file that was used some hours ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    used_s = time.time() - 3600 * hours_ago
    os.utime(path, (used_s, used_s))
    return path


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    """Until the rest fits; choices by timing, and what another program keeps there, stay."""
    oldest = written(tmp_path / "ab" / "cab.so", 9)
    older = written(tmp_path / "fxgraph" / "xy" / "key" / "entry", 8)
    newer = written(tmp_path / "ab" / "cab.py", 7)
    kept = ("cache/timings", "ab/cab.best_config", "0123456789abcdef/ab/graph")
    others = [written(tmp_path / name, 99) for name in kept]
    assert trim(tmp_path, 300) == 0
    assert trim(tmp_path, 150) == 200
    assert [path.exists() for path in (oldest, older, newer, *others)] == [False, False, True, True, True, True]


def test_what_was_just_used_stays(tmp_path: Path) -> None:
    """A process may be about to load it."""
    used = written(tmp_path / "ab" / "cab.so", 0.5)
    assert trim(tmp_path, 0) == 0
    assert used.exists()


def test_links_are_not_followed_and_a_missing_folder_is_empty(tmp_path: Path) -> None:
    """What they lead to is not the cache's."""
    outside = written(tmp_path / "outside" / "file", 99)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "ab").symlink_to(outside.parent)
    assert trim(cache, 0) == 0
    assert trim(tmp_path / "nowhere", 0) == 0
    assert outside.exists()
