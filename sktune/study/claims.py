"""Claims: which processes run a study, in a separate table beside Optuna's, and the lock of its folder.

Two searches never run the same study unnoticed. The table has a row for each study with all its holders and a version.
A row is only ever replaced as a whole, and only if its version is still the one that was read: a compare-and-set that
works on every SQL database, whatever its locks.
"""

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import sqlalchemy
from sqlalchemy import Column, Connection, Engine, String, Table, Text, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from sktune.core.errors import StudyError, StudyHeldError
from sktune.core.files import remove_parts
from sktune.study.facts import stored_value


def make_table(engine: Engine, table: Table) -> None:
    """Create a table if it does not exist; another process may create it at the same time."""
    try:
        table.create(engine, checkfirst=True)
    except SQLAlchemyError:
        if not sqlalchemy.inspect(engine).has_table(table.name):
            raise


def rows_of(engine: Engine, table: Table, study: str) -> list[dict[str, Any]]:
    """Return the rows of a study by the table's primary key; none without the table, which a reader does not create."""
    if not sqlalchemy.inspect(engine).has_table(table.name):
        return []
    query = sqlalchemy.select(table).where(table.c.study == study).order_by(*table.primary_key.columns)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


_TABLE = sqlalchemy.Table(
    "sktune_claims",
    sqlalchemy.MetaData(),
    Column("study", String(512), primary_key=True),  # as long as Optuna's names
    Column("version", String(32), nullable=False),
    Column("holders", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that runs a study.

    Attributes:
        token: random and unique to this claim.
        host: its name, for people.
        place: host, boot and process namespace, within which process numbers are unique.
        pid: its number in ``place``.
        started: its start in clock ticks since the boot (proc(5), field 22), to detect a reused process number.
        since: when it claimed the study, in seconds since the epoch.
        has_folder: whether it holds the lock of the storage's folder.
        fingerprint: of its search.
    """

    token: str
    host: str
    place: str
    pid: int
    started: int
    since: float
    has_folder: bool
    fingerprint: Mapping[str, str]

    @classmethod
    def here(cls, fingerprint: Mapping[str, str], *, has_folder: bool) -> "Holder":
        """Return this process as a holder."""
        pid = os.getpid()
        started = _started(pid)
        assert started is not None
        token = secrets.token_hex(16)
        return cls(token, socket.gethostname(), _place(), pid, started, time.time(), has_folder, dict(fingerprint))

    @property
    def is_near(self) -> bool:
        """Whether it can be seen from this process."""
        return self.place == _place()

    def is_gone(self, has_folder: bool) -> bool:
        """Whether its process has certainly ended; ``has_folder`` says whether the caller holds the folder's lock."""
        if self.is_near:
            return _started(self.pid) != self.started
        return self.has_folder and has_folder  # it no longer holds the lock

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        return f"process {self.pid}{'' if self.is_near else f' on {self.host}'} since {since}"


def living_tokens(engine: Engine, study: str) -> frozenset[str]:
    """Return the tokens of the searches that seem to run a study; only reads."""
    if not sqlalchemy.inspect(engine).has_table(_TABLE.name):
        return frozenset()
    with engine.connect() as connection:
        _, holders = _read(connection, study)
    return frozenset(holder.token for holder in holders if not holder.is_gone(has_folder=False))


class Claims:
    """The holders of the study ``name`` in the database behind ``engine``."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        make_table(engine, _TABLE)

    def holders(self) -> tuple[Holder, ...]:
        """Return all holders of the study, alive or not."""
        return self.read()[1]

    def read(self) -> tuple[str | None, tuple[Holder, ...]]:
        """Return the row's version, None if there is no row, and all holders."""
        with self._engine.connect() as connection:
            return _read(connection, self._name)

    def check(self, token: str, connection: Connection) -> None:
        """See that the search with ``token`` still runs the study, which it does until the transaction ends.

        For the latter, the database must have locks of rows, as all have that several hosts reach.

        Raises:
            StudyError: another search has taken over the study.
        """
        self._refuse_loss(token, _read(connection, self._name, lock=True)[1])

    def living(self, token: str, has_folder: bool) -> set[str]:
        """Return the tokens of all living holders, ``token`` among them; see ``Holder.is_gone``.

        Raises:
            StudyError: another search has taken over the study.
        """
        holders = self.holders()
        self._refuse_loss(token, holders)
        return {holder.token for holder in holders if not holder.is_gone(has_folder)}

    def beat(self, token: str) -> bool:
        """Change the row's version, as a sign of life; return whether the search with ``token`` runs the study."""
        version, holders = self.read()
        is_ours = token in {holder.token for holder in holders}
        if is_ours:
            self._put(version, holders)  # if another has changed it, that is a sign, too
        return is_ours

    def evict(self, version: str) -> bool:
        """Remove all holders if the row still has this version, and return whether it had."""
        return self._put(version, ())

    def acquire(self, me: Holder, *, join: bool = False, take_over: bool = False) -> None:
        """Add ``me`` as the only holder, or with ``join`` beside the others.

        Raises:
            StudyHeldError: another process holds the study.
            StudyError: its fingerprint differs from that of ``me``.
        """
        self._replace(lambda holders: self._admitted(holders, me, join, take_over))

    def release(self, token: str) -> None:
        """Remove the holder with ``token``, if it is still there."""
        self._replace(lambda holders: tuple(holder for holder in holders if holder.token != token))

    def _admitted(self, holders: tuple[Holder, ...], me: Holder, join: bool, take_over: bool) -> tuple[Holder, ...]:
        living = tuple(holder for holder in holders if not holder.is_gone(me.has_folder))
        near = [holder for holder in living if holder.is_near]
        if living and join:
            refuse_difference(self._name, living[0].fingerprint, me.fingerprint)
            return (*living, me)
        if near:
            raise StudyHeldError(
                f"study {self._name!r} is being run by {near[0]}; "
                "wait for it, join it with --join, or name another with --study"
            )
        if living and not take_over:
            raise StudyHeldError(
                f"study {self._name!r} is held by {living[0]}; "
                "wait for it, join it with --join, or, if that process has ended, give --take-over"
            )
        return (me,)

    def _replace(self, change: Callable[[tuple[Holder, ...]], tuple[Holder, ...]]) -> None:
        """Store the holders that ``change`` returns; try again if another process was faster."""
        while True:
            version, holders = self.read()
            if self._put(version, change(holders)):
                return

    def _put(self, version: str | None, holders: tuple[Holder, ...]) -> bool:
        """Store ``holders`` if the row still has this version, and return whether it had."""
        row = {"version": secrets.token_hex(16), "holders": json.dumps([asdict(holder) for holder in holders])}
        try:
            with self._engine.begin() as connection:
                if version is None:
                    connection.execute(insert(_TABLE).values(study=self._name, **row))
                    return True
                unchanged = (_TABLE.c.study == self._name) & (_TABLE.c.version == version)
                return connection.execute(update(_TABLE).where(unchanged).values(**row)).rowcount == 1
        except IntegrityError:  # another process has inserted the row
            return False

    def _refuse_loss(self, token: str, holders: tuple[Holder, ...]) -> None:
        if token not in {holder.token for holder in holders}:
            by = f" by {holders[0]}" if holders else ""
            raise StudyError(f"study {self._name!r} was taken over{by}; this search ends, and its trials are stored")


def _read(connection: Connection, study: str, *, lock: bool = False) -> tuple[str | None, tuple[Holder, ...]]:
    """Return the version of a study's row, None if there is no row, and all holders."""
    query = select(_TABLE).where(_TABLE.c.study == study)
    row = connection.execute(query.with_for_update(read=True) if lock else query).one_or_none()
    if row is None:
        return None, ()
    try:
        holders = json.loads(row.holders)  # not by pydantic, which refuses names of folders that are no text
    except ValueError:
        holders = row.holders
    return row.version, stored_value(tuple[Holder, ...], holders, f"study {study!r}: who runs it")


@contextmanager
def locked(folder: Path, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Lock the study's folder for this process, and delete what a killed one has not completed there.

    With ``on_wait``, which is called with the process that holds it, wait until it is free.

    Raises:
        StudyError: another live process holds it, or the folder cannot be written.
    """
    handle: TextIO | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is None:
                raise
            on_wait(_locker(handle))
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        remove_parts(folder)
    except BlockingIOError as failure:
        assert handle is not None
        holder = _locker(handle)
        handle.close()
        raise StudyError(
            f"the study in {folder} is being run by {holder}; wait for it, or name another with --study"
        ) from failure
    except OSError as failure:
        if handle is not None:
            with suppress(OSError):  # it tries to write again
                handle.close()
        raise StudyError(
            f"{folder} cannot be written ({failure.strerror}); choose another folder with --runs"
        ) from failure
    try:
        yield
    finally:
        handle.close()


def _locker(handle: TextIO) -> str:
    handle.seek(0)
    return f"process {handle.read().strip() or '?'}"


def is_held(lock: Path) -> bool:
    """Whether a living process holds the lock file ``lock``."""
    try:
        with lock.open(encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def refuse_difference(study: str, stored: Mapping[str, str], fingerprint: Mapping[str, str]) -> None:
    """Raise a ``StudyError`` if two fingerprints of a study differ; the message has both values."""
    if stored.get("format") != fingerprint.get("format"):
        raise StudyError(
            f"study {study!r} was made by another version of sktune, with a different kind of fingerprint; "
            "name a new one with --study"
        )
    # The model's digest covers other keys, so it comes last.
    for key in sorted({*stored, *fingerprint}, key=lambda key: (key == "model", key)):
        if stored.get(key) != fingerprint.get(key):
            values = (values_of.get(key, "None") for values_of in (stored, fingerprint))
            was, now = ("the default" if value == "None" else repr(value) for value in values)
            raise StudyError(
                f"study {study!r} was made with {key} {was}, but now it is {now}; "
                "continue it as it was made, or name a new one with --study"
            )


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # a sandbox without /proc, whose host name is unique
        return socket.gethostname()


def _started(pid: int) -> int | None:
    """Return when process ``pid`` started, in clock ticks since the boot; None if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(fields[18])
