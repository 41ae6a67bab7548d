"""The backup of a study's database, from which it is restored if it was damaged, emptied or deleted.

It is written after each trial: ``study.db.backup`` next to ``study.db``, the database's content and its SHA-256. SQLite
notices damage to its structure, but not to what it stores; so trials that have ended, which never change, are compared
with those in the backup, too.
"""

import hashlib
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from sktune.core.errors import StudyError, first_line
from sktune.study.storage import DATABASE, connect

logger = logging.getLogger(__name__)

DIGEST_BYTES = hashlib.sha256().digest_size
VERSIONS = slice(18, 20)
"""Bytes of an SQLite file that say whether it has a write-ahead log (sqlite.org/fileformat2.html); 1 for none."""
QUICK_S = 0.1
"""A backup that takes less is made after each trial."""
LOGS = ("-wal", "-shm")
"""Suffixes of the files that belong to a database with a write-ahead log."""
ENDED_TRIALS = """
    SELECT trials.number, trials.state, rows.* FROM trials JOIN (
        SELECT trial_id, 'value' AS kind, objective AS name, value FROM trial_values
        UNION ALL SELECT trial_id, 'parameter', param_name, param_value FROM trial_params
        UNION ALL SELECT trial_id, 'attribute', key, value_json FROM trial_user_attributes
    ) AS rows USING (trial_id) WHERE trials.state IN ('COMPLETE', 'PRUNED', 'FAIL')
"""
"""Rows that never change again, in the tables of Optuna."""


class Backup:
    """The backup of the database in ``folder``, for the only process that writes it."""

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / DATABASE
        self._file = path.with_name(f"{path.name}.backup")
        self._saved: frozenset[str] = frozenset()
        self._has_failed = False
        self._began_s = self._ended_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for another one: those of a large study take at most a twentieth of the time."""
        took_s = self._ended_s - self._began_s
        return took_s < QUICK_S or time.monotonic() - self._ended_s > 20 * took_s

    def save(self) -> None:
        """Write the backup; if it cannot be written, log a warning: the database itself is sound.

        Raises:
            StudyError: the database was damaged since the last backup, which is kept.
        """
        self._began_s = time.monotonic()
        self._save()
        self._ended_s = time.monotonic()

    def _save(self) -> None:
        try:
            with closing(connect(self._path, "ro")) as connection:
                problem = _problem(connection, self._saved)
                content = b"" if problem else connection.serialize()
                rows = frozenset() if problem else _ended(connection)
        except sqlite3.DatabaseError as failure:
            problem = first_line(failure)
        if problem:
            raise StudyError(
                f"{self._path} was damaged while the search ran ({problem}); run the same command again: it restores "
                "the study from its backup"
            )
        new = self._file.with_name(f"{self._file.name}.new")
        try:
            new.write_bytes(content + hashlib.sha256(content).digest())
            new.replace(self._file)
        except OSError as failure:
            with suppress(OSError):
                new.unlink(missing_ok=True)  # what was written is not complete
            if not self._has_failed:
                logger.warning("the study's backup cannot be written: %s; its trials are stored", failure)
            self._has_failed = True
        else:
            self._saved = rows

    def restore_if_damaged(self) -> None:
        """Replace a database that is damaged or missing; keep it, and log a warning with the reason.

        Nothing happens without a backup, and nothing to a database that another process has locked.

        Raises:
            StudyError: it cannot be replaced.
        """
        content = self._content()
        if content is None:
            return
        self._saved = _ended_in(content)
        problem = self._found_problem()
        if not problem:
            return
        try:
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_bytes(content)
            for suffix in ("", *LOGS):
                file = self._path.with_name(self._path.name + suffix)
                if file.exists():
                    file.replace(self._path.with_name(f"{self._path.name}.damaged{suffix}"))
            new.replace(self._path)
        except OSError as failure:
            raise StudyError(
                f"{self._path} {problem} and cannot be restored from its backup: {failure}; fix that and run again"
            ) from failure
        logger.warning(
            "%s %s; it was restored from its backup, and what was there is %s.damaged", self._path, problem,
            self._path.name,
        )  # fmt: skip

    def _content(self) -> bytes | None:
        """Return the database in the backup; None if there is no backup, or only a damaged one."""
        try:
            data = self._file.read_bytes()
        except OSError:
            return None
        content, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
        return content if content and hashlib.sha256(content).digest() == digest else None

    def _found_problem(self) -> str:
        """Return what is wrong with the database; empty if nothing is."""
        if not self._path.exists():
            return "was missing"
        if not self._path.stat().st_size:
            return "was empty"
        try:
            with closing(connect(self._path, "rw")) as connection:
                problem = _problem(connection, self._saved)
        except sqlite3.DatabaseError as failure:
            if getattr(failure, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGE:
                return ""
            problem = first_line(failure)
        return f"was damaged ({problem})" if problem else ""


_NOT_DAMAGE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
               sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR)  # fmt: skip
"""Result codes that say nothing about what the file contains."""


def _problem(connection: sqlite3.Connection, saved: frozenset[str]) -> str:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        return str(found).partition("\n")[0]
    lost = len({row.partition(" ")[0] for row in saved - _ended(connection)}) if saved else 0
    return f"{lost} of its trials were lost or changed" if lost else ""


def _ended(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the rows of all trials that have ended, each as text that begins with the trial's number."""
    connection.text_factory = lambda data: data.decode(errors="replace")
    return frozenset(_texts(connection))


def _texts(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        for number, *values in connection.execute(ENDED_TRIALS):
            yield f"{number} {values}"
    except sqlite3.OperationalError as failure:
        if "no such table" not in str(failure):  # Optuna has not made its tables yet
            raise


def _ended_in(content: bytes) -> frozenset[str]:
    without_log = bytearray(content)
    without_log[VERSIONS] = b"\1\1"  # a database in memory has none
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(without_log))
        return _ended(connection)
