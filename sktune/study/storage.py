"""Storages: the databases that hold studies, opened with care and with their errors in one line."""

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError

from sktune.core.errors import StudyError, first_line, nearest

DATABASE = "study.db"
"""The file in a study's folder."""
LOCK_WAIT_S = 10.0
MOST_OPENINGS = 3
"""Attempts to open a storage whose tables another process is making."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the storage's errors into one line."""
    try:
        yield
    except (SQLAlchemyError, OptunaError, sqlite3.Error) as failure:
        reason = first_line(failure.__cause__ or failure)
        raise StudyError(
            f"{what}: the study's storage fails ({reason}); nothing stored is lost, mend it and run again"
        ) from failure


def open_storage(url: str) -> RDBStorage:
    """Open the database at ``url``, with Optuna's tables in it.

    Raises:
        StudyError: the URL names no database that can be used.
    """
    try:
        if not url.startswith("sqlite"):
            return _made(url, {})
        storage = _made(url, {"connect_args": {"timeout": LOCK_WAIT_S}})
    except (ValueError, ImportError, sqlalchemy.exc.ArgumentError) as failure:
        raise StudyError(f"--storage {url}: {first_line(failure)}; give a URL such as sqlite:///study.db") from failure
    # Readers do not wait for the writer, and a commit does not wait for the disk: a killed process loses nothing,
    # a power cut loses at most the last trial.
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    return storage


def _made(url: str, engine_kwargs: dict[str, Any]) -> RDBStorage:
    """Open the storage; where another process makes its tables at the same time, once it has."""
    for _ in range(MOST_OPENINGS):
        try:
            return RDBStorage(url, engine_kwargs=engine_kwargs)
        except (SQLAlchemyError, OptunaError) as failure:
            if not re.search(
                "already exists|unique constraint|duplicate", str(failure.__cause__ or failure), re.IGNORECASE
            ):
                raise
            time.sleep(0.2)
    return RDBStorage(url, engine_kwargs=engine_kwargs)


def check_file(url: str, create: bool) -> None:
    """Refuse a database file that is locked, corrupt, or somebody else's, before Optuna writes to it."""
    if not url.startswith("sqlite:///"):
        return
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        if not create:
            others = [own.parent.name for own in path.parent.parent.glob(f"*/{DATABASE}")]
            near = nearest(path.parent.name, others)
            raise StudyError(f"there is no study at {path}; start one with `sktune search`{near}")
        return
    if path.stat().st_size == 0:
        return
    try:
        connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=LOCK_WAIT_S, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    except sqlite3.OperationalError as failure:
        raise StudyError(
            f"{path} is locked or cannot be opened ({failure}); close the program that holds it"
        ) from failure
    except sqlite3.DatabaseError as failure:
        raise StudyError(
            f"{path} is not a readable database ({failure}); restore it, or name another --study"
        ) from failure
    if damage != "ok":
        raise StudyError(f"{path} is damaged ({damage.partition(chr(10))[0]}); restore it, or name another --study")
    if tables and "studies" not in tables:
        raise StudyError(f"{path} is a database of another program; name another --storage")
