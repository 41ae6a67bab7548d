"""Storages: the databases of studies, with checks before they are opened and one-line errors."""

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
WAY_OUT = "restore it (a search in a study's own folder does so, from its backup), or name another --study"
MAX_OPENINGS = 3
"""Attempts to open a storage while another process is creating its tables."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn errors of the storage into one-line errors."""
    try:
        yield
    except (SQLAlchemyError, OptunaError, sqlite3.Error) as failure:
        reason = first_line(failure.__cause__ or failure)
        raise StudyError(
            f"{what}: the study's storage failed ({reason}); stored trials are safe, fix it and run again"
        ) from failure


def open_storage(url: str) -> RDBStorage:
    """Open the database at ``url``, and create Optuna's tables in it if necessary.

    Raises:
        StudyError: the URL is not that of a usable database.
    """
    try:
        if not url.startswith("sqlite"):
            return _connected(url, {})
        storage = _connected(url, {"connect_args": {"timeout": LOCK_WAIT_S}})
    except RuntimeError as failure:  # how Optuna refuses tables of another version
        raise StudyError(
            f"{url} was made by another version of Optuna; run `optuna storage upgrade --storage URL` on it, or "
            "`pip install -U optuna` if it is the newer one"
        ) from failure
    except (ValueError, ImportError, sqlalchemy.exc.ArgumentError) as failure:
        raise StudyError(f"--storage {url}: {first_line(failure)}; give a URL such as sqlite:///study.db") from failure
    # Readers do not wait for the writer, nor commits for the disk: a killed process loses nothing, a power failure at
    # most the last trial.
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    return storage


def _connected(url: str, engine_kwargs: dict[str, Any]) -> RDBStorage:
    """Open the storage; if another process is creating its tables, wait for that."""
    for _ in range(MAX_OPENINGS):
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
    """Raise ``StudyError`` for a database that is locked, corrupt or another program's, before Optuna writes to it.

    Without ``create``, a missing file is an error, too.
    """
    if not url.startswith("sqlite:///"):
        return
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        if not create:
            others = [other.parent.name for other in path.parent.parent.glob(f"*/{DATABASE}")]
            hint = nearest(path.parent.name, others)
            raise StudyError(f"there is no study at {path}; start one with `sktune search`{hint}")
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
            f"{path} is locked or cannot be opened ({failure}); close the program that uses it"
        ) from failure
    except sqlite3.DatabaseError as failure:
        raise StudyError(f"{path} is not a readable database ({failure}); {WAY_OUT}") from failure
    if damage != "ok":
        raise StudyError(f"{path} is damaged ({damage.partition(chr(10))[0]}); {WAY_OUT}")
    if tables and "studies" not in tables:
        raise StudyError(f"{path} belongs to another program; name another --storage")
