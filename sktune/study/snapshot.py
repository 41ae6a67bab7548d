"""Snapshots of studies: copies in memory, so that a reader neither writes to a study nor keeps its search waiting."""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from optuna.storages import RDBStorage
from optuna.study._frozen import FrozenStudy
from sqlalchemy.pool import StaticPool

from sktune.core.errors import SktuneError, StudyError
from sktune.learning.attributes import PREFIX
from sktune.study.leases import stored_leases
from sktune.study.result import SearchResult, result_of
from sktune.study.storage import DATABASE, WAY_OUT, StudyStorage, connect, shown, sqlite_path, translated
from sktune.study.study import TuningStudy, folder_name, sqlite_url
from sktune.study.worker_log import stored_workers

CHANGING = ("seconds", "final_trials", "uncompared", "delivery")
"""Facts that are stored after a search's last trial."""


def snapshot(name: str, url: str, folder: Path) -> SearchResult:
    """Return the result of a study as it is now.

    Args:
        name: of the study.
        url: of its storage.
        folder: of its files.

    Raises:
        StudyError: it does not exist, or cannot be read.
    """
    with translated(shown(url), url):
        return result_of(TuningStudy.of_storage(name, _readable(url)), folder)


def snapshot_names(url: str) -> list[str]:
    """Return the names of all studies in a storage.

    Raises:
        StudyError: it cannot be read.
    """
    with translated(shown(url), url):
        return [study.study_name for study in _readable(url).get_all_studies()]


def names_in(runs: Path, storage: str | None = None) -> list[str]:
    """Return the names of all studies in a folder, or in one storage, that can be read; the last that changed first.

    Raises:
        StudyError: the storage cannot be read.
    """
    if storage:
        return snapshot_names(storage)
    found: list[tuple[int, str]] = []
    for database in runs.glob(f"*/{DATABASE}"):
        try:
            # Folders may have been renamed; only a name that leads back to its folder is of use.
            names = [name for name in snapshot_names(sqlite_url(database.parent))
                     if folder_name(name) == database.parent.name]  # fmt: skip
        except SktuneError:
            continue
        found += [(database.stat().st_mtime_ns, name) for name in names]
    return [name for _, name in sorted(found, reverse=True)]


def names_before_search(runs: Path, storage: str | None = None) -> list[str]:
    """Return the same names for a search, which may yet create the storage."""
    path = sqlite_path(storage) if storage else None
    return [] if path and not path.exists() else names_in(runs, storage)


def state_of(url: str) -> object:
    """Return a value that is another one once the storage has changed: cheap to ask for often."""
    path = sqlite_path(url)
    if path is None:
        with translated(shown(url), url):
            storage = _readable(url)
            return [_state_of_study(storage, study) for study in storage.get_all_studies()]
    return tuple(_stat(each) for each in (path, path.with_name(f"{path.name}-wal")))


def _state_of_study(storage: RDBStorage, study: FrozenStudy) -> object:
    study_id, name = study._study_id, study.study_name  # noqa: SLF001 - Optuna's own name
    finished = sum(trial.state.is_finished() for trial in storage.get_all_trials(study_id, deepcopy=False))
    facts = storage.get_study_user_attrs(study_id)
    workers = stored_leases(storage.engine, name), len(stored_workers(storage.engine, name))
    return finished, [facts.get(PREFIX + name) for name in CHANGING], workers


def _stat(path: Path) -> tuple[int, int]:
    try:
        seen = path.stat()
    except OSError:
        return 0, 0
    return seen.st_mtime_ns, seen.st_size


def _readable(url: str) -> RDBStorage:
    """Return a storage to read from: for SQLite a copy in memory."""
    path = sqlite_path(url)
    if path is None:
        return _connected(url)
    if not path.is_file():
        raise StudyError(f"there is no study at {path}; start one with `sktune search`")
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        with closing(connect(path, "ro")) as original:
            original.backup(copy)
    except sqlite3.DatabaseError as failure:
        raise StudyError(f"{path} cannot be read ({failure}); {WAY_OUT}") from failure
    kwargs = {"creator": lambda: copy, "poolclass": StaticPool}
    return StudyStorage("sqlite://", shown(url), engine_kwargs=kwargs, skip_table_creation=True)


@cache
def _connected(url: str) -> RDBStorage:
    """Return the storage of a server, opened once; no table is created in it."""
    return StudyStorage(url, shown(url), skip_table_creation=True)
