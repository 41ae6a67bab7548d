"""Storages: the databases of studies, with checks before they are opened and one-line errors."""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, unquote_to_bytes

import sqlalchemy
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import StudyModel, StudyUserAttributeModel
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from sktune.core.errors import SktuneError, StorageError, StudyError, described, first_line, nearest
from sktune.learning.attributes import PREFIX
from sktune.study.facts import FORMAT

DATABASE = "study.db"
"""The file in a study's folder."""
RECORD = "shapes.json"
"""The file in the folder of a study of several shapes."""
LOCK_WAIT_S = 10.0
IDLE_S = 10.0
"""A transaction takes milliseconds; less than ``heartbeat.SILENT_S``, so that a standby has to wait for none."""
WAY_OUT = "restore it (a search in a study's own folder does so, from its backup), or name another --study"
MAX_OPENINGS = 3
"""Attempts to open a storage while another process is creating its tables."""
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_NOMEM)  # fmt: skip
"""Result codes of SQLite that are neither the database's fault nor the command's."""


def sqlite_path(url: str) -> Path | None:
    """Return the file of an SQLite database, see ``study.sqlite_url``; None for the URL of a server.

    Raises:
        StudyError: the URL names no file.
    """
    if not re.match(r"sqlite(\+\w+)?:", url):
        return None
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)", url, re.DOTALL)
    if not found or found[1] == ":memory:":
        raise StudyError(
            f"--storage {url} names no file that would keep the trials; give sqlite:///study.db, an absolute path with "
            "four slashes, and a question mark in a path as %3F"
        )
    return Path(os.fsdecode(unquote_to_bytes(os.fsencode(found[1]))))


def connect(path: Path, mode: str, **options: Any) -> sqlite3.Connection:
    """Open an SQLite database, whatever characters its path has.

    Args:
        path: of the file.
        mode: ``ro`` to read, ``rw`` to write to what is there, ``rwc`` to create it.
        options: of ``sqlite3.connect``.
    """
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, timeout=LOCK_WAIT_S, **options)
    return connection


Read = TypeVar("Read", bound=Callable[..., Any])


def _telling_damage(read: Read) -> Read:
    """Return a method of Optuna that reads a database, so that it says in one line that a stored value is damaged.

    Optuna makes values of what is stored as JSON, dates and names of states, and lets through whatever that raises.
    """

    @wraps(read)
    def told(storage: "StudyStorage", *args: Any, **kwargs: Any) -> Any:
        try:
            return read(storage, *args, **kwargs)
        except (
            ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RecursionError,
        ) as failure:  # fmt: skip
            raise StudyError(
                f"{storage.shown_url}: a stored value is damaged ({described(failure)}); restore the study, or name "
                "another with --study"
            ) from failure

    return told  # type: ignore[return-value]


class StudyStorage(RDBStorage):
    """A database of Optuna that marks the studies made in it as sktune's, and reads a running trial once.

    Optuna reads every running trial again whenever trials are listed, four times for a proposal. Once it has its
    proposal, a trial of sktune does not change until it ends.

    Attributes:
        shown_url: of the database, for messages.
    """

    def __init__(self, url: str, shown_url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.shown_url = shown_url
        self._settled: set[int] = set()

        @sqlalchemy.event.listens_for(self.scoped_session, "before_flush")
        def _mark(session: Any, _context: Any, _instances: Any) -> None:
            """Store the format of the facts with a new study, so that there is never one of sktune's without it."""
            for study in [each for each in session.new if isinstance(each, StudyModel)]:
                session.add(StudyUserAttributeModel(study=study, key=PREFIX + "format", value_json=str(FORMAT)))

    get_all_studies = _telling_damage(RDBStorage.get_all_studies)
    get_study_directions = _telling_damage(RDBStorage.get_study_directions)
    get_study_user_attrs = _telling_damage(RDBStorage.get_study_user_attrs)
    get_study_system_attrs = _telling_damage(RDBStorage.get_study_system_attrs)

    @_telling_damage
    def _stored_trials(self, *wanted: Any) -> list[FrozenTrial]:
        return super()._get_trials(*wanted)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """See ``RDBStorage.set_trial_user_attr``."""
        self._settled.discard(trial_id)
        super().set_trial_user_attr(trial_id, key, value)

    def _get_trials(
        self, study_id: int, states: Container[TrialState] | None, included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:  # fmt: skip
        """Return the trials that may have changed; called by Optuna's cache, which keeps the others."""
        if states is not None:
            return self._stored_trials(study_id, states, included_trial_ids, trial_id_greater_than)
        first = min(included_trial_ids, default=trial_id_greater_than + 1)
        query = sqlalchemy.text("SELECT trial_id, state FROM trials WHERE study_id = :study AND trial_id >= :first")
        with self.engine.connect() as connection:
            found = connection.execute(query, {"study": study_id, "first": first}).all()
        settled = self._settled & included_trial_ids
        wanted = {
            trial_id for trial_id, state in found
            if (trial_id in included_trial_ids or trial_id > trial_id_greater_than)
            and not (state == TrialState.RUNNING.name and trial_id in settled)
        }  # fmt: skip
        newest = max((trial_id for trial_id, _ in found), default=0)
        trials = self._stored_trials(study_id, None, wanted, newest) if wanted else []
        running = [trial for trial in trials if trial.state is TrialState.RUNNING]
        self._settled |= {
            trial._trial_id  # noqa: SLF001 - as Optuna's own storages do
            for trial in running
            if PREFIX + "proposal" in trial.user_attrs
        }
        return trials


@contextmanager
def fenced(storage: RDBStorage, check: Callable[[sqlalchemy.Connection], None]) -> Iterator[None]:
    """Call ``check`` at the beginning of each of Optuna's transactions; it raises if they must not go on."""

    def begin(session: Any, transaction: Any, connection: sqlalchemy.Connection) -> None:  # noqa: ARG001
        check(connection)

    sqlalchemy.event.listen(storage.scoped_session, "after_begin", begin)
    try:
        yield
    finally:
        sqlalchemy.event.remove(storage.scoped_session, "after_begin", begin)


def shown(url: str) -> str:
    """Return a storage's URL as messages show it: without passwords."""
    if url.startswith("sqlite"):
        return url
    scheme, mark, rest = url.rpartition("://")
    login, _, place = rest.rpartition("@")
    masked = f"{scheme}{mark}{login.partition(':')[0]}:***@{place}" if ":" in login else url
    return re.sub(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", r"\1***", masked, flags=re.IGNORECASE)


def _without_password(message: str, url: str) -> str:
    if url.startswith("sqlite"):
        return message
    password = url.rpartition("@")[0].partition("://")[2].partition(":")[2]
    for secret in filter(None, (password, unquote(password))):
        message = message.replace(secret, "***")
    return message


@contextmanager
def translated(what: str, url: str = "") -> Iterator[None]:
    """Turn errors of the storage at ``url``, if it is known, into one-line errors about ``what``."""
    try:
        yield
    except (SQLAlchemyError, OptunaError, sqlite3.Error) as failure:
        reason = _without_password(first_line(failure.__cause__ or failure), url)
        raise _error_class(failure)(
            f"{what}: the study's storage failed ({reason}); stored trials are safe, fix it and run again"
        ) from failure


def _error_class(failure: BaseException) -> type[SktuneError]:
    """Return the class of a storage's failure: whether it may pass, or the database or the command is to be mended."""
    cause = failure.__cause__ or failure
    if (code := getattr(getattr(cause, "orig", cause), "sqlite_errorcode", None)) is None:
        may_pass = isinstance(failure, sqlalchemy.exc.OperationalError) or isinstance(
            cause, sqlalchemy.exc.OperationalError
        )
    else:
        may_pass = code & 0xFF in _PASSING
    return StorageError if may_pass else StudyError


def open_storage(url: str) -> RDBStorage:
    """Open the database at ``url``, and create Optuna's tables in it if necessary.

    Raises:
        StudyError: the URL is not that of a usable database.
    """
    path = sqlite_path(url)
    try:
        if path is None:
            if "@" in (sqlalchemy.make_url(url).host or ""):
                raise ValueError("part of the password is taken for the host")
            return _of_server(_connected(url, shown(url), {"pool_pre_ping": True}))  # it may have been restarted
        creator = partial(connect, path.absolute(), "rwc", check_same_thread=False)
        storage = _connected(f"sqlite:///{DATABASE}", shown(url), {"creator": creator})
    except RuntimeError as failure:  # how Optuna refuses tables of another version
        raise StudyError(
            f"{shown(url)} was made by another version of Optuna; run `optuna storage upgrade --storage URL` on it, or "
            "`pip install -U optuna` if it is the newer one"
        ) from failure
    except (ValueError, ImportError, sqlalchemy.exc.ArgumentError) as failure:
        # A password with an unquoted "/" is read as something else, which the error quotes.
        fix, reason = "give a URL such as sqlite:///study.db", first_line(failure)
        if isinstance(failure, sqlalchemy.exc.NoSuchModuleError) or not re.match(r"[\w+]+://", url):
            reason = "this is not the URL of a database"
            fix += " or postgresql://USER:PASSWORD@HOST/DATABASE"
        elif isinstance(failure, ImportError):
            driver = "pip install 'sktune[postgresql]'" if url.startswith("postgresql") else "install it"
            fix, reason = driver, f"its driver is missing ({described(failure.__cause__ or failure)})"
        elif "@" in url:
            reason = "its port is no number, or its password has characters that must be written as %2F, %40, ..."
        raise StudyError(f"--storage {shown(url)}: {reason}; {fix}") from failure
    # Readers do not wait for the writer, nor commits for the disk: a killed process loses nothing, a power failure at
    # most the last trial.
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    return storage


def _of_server(storage: RDBStorage) -> RDBStorage:
    """Have a PostgreSQL server end the transactions of hosts that are gone, which keep others from what they locked."""
    if storage.engine.dialect.name == "postgresql":

        @sqlalchemy.event.listens_for(storage.engine, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            connection.cursor().execute(f"SET idle_in_transaction_session_timeout = '{IDLE_S:g}s'")
            connection.commit()

        storage.engine.dispose()
    return storage


def _connected(url: str, shown_url: str, engine_kwargs: dict[str, Any]) -> StudyStorage:
    """Open the storage; if another process is creating its tables, wait for that."""
    for _ in range(MAX_OPENINGS):
        try:
            return StudyStorage(url, shown_url, engine_kwargs=engine_kwargs)
        except (SQLAlchemyError, OptunaError) as failure:
            if not re.search(
                "already exists|unique constraint|duplicate", str(failure.__cause__ or failure), re.IGNORECASE
            ):
                raise
            time.sleep(0.2)
    return StudyStorage(url, shown_url, engine_kwargs=engine_kwargs)


def check_file(url: str, create: bool) -> None:
    """Check a database before Optuna writes to it.

    Raises:
        StudyError: it is corrupt or another program's; or it is missing, and ``create`` is false.
        StorageError: it is locked, or the machine fails.
    """
    path = sqlite_path(url)
    if path is None:
        return
    if not path.exists():
        if not create:
            is_in_runs = path.name == DATABASE
            kept = (*path.parent.parent.glob(f"*/{DATABASE}"), *path.parent.parent.glob(f"*/{RECORD}"))
            others = [other.parent.name for other in kept] if is_in_runs else []
            hint = nearest(path.parent.name, others) if others else ""
            raise StudyError(f"there is no study at {path}; start one with `sktune search`{hint}")
        return
    if path.stat().st_size == 0:
        return
    try:
        connection = connect(path, "rw", isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type='table'"))
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    except sqlite3.OperationalError as failure:
        raise _error_class(failure)(
            f"{path} is locked or cannot be opened ({failure}); close the program that uses it"
        ) from failure
    except sqlite3.DatabaseError as failure:
        raise StudyError(f"{path} is not a readable database ({failure}); {WAY_OUT}") from failure
    if damage == "ok" and "studies" not in tables and "trial_params" in tables:
        damage = "it has no table of studies"
    if damage != "ok":
        raise StudyError(f"{path} is damaged ({damage.partition(chr(10))[0]}); {WAY_OUT}")
    if tables and "study_name" not in tables.get("studies", ""):
        raise StudyError(f"{path} belongs to another program; name another --storage")
