"""Leases: which worker runs which trial, and until when, in a separate table beside Optuna's.

A trial has one lease at most. It is granted and settled by compare-and-set, so that of any number of results of a trial
one is told, and whoever continues the study after its coordinator was killed sees what was running.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import sqlalchemy
from sqlalchemy import Column, Connection, Engine, Float, Integer, String, delete, insert, update

from sktune.study.claims import make_table, rows_of
from sktune.study.facts import stored_value
from sktune.study.storage import translated
from sktune.study.worker_log import WorkerLog

_TABLE = sqlalchemy.Table(
    "sktune_trial_leases",
    sqlalchemy.MetaData(),
    Column("study", String(512), primary_key=True),
    Column("trial", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("worker", String(512), nullable=False),
    Column("coordinator", String(32), nullable=False),
    Column("since", Float, nullable=False),
    Column("until", Float),
)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of a worker to run a trial.

    Attributes:
        trial: its number.
        attempt: from 1; a later one replaces an earlier one, whose result is void.
        worker: its die.
        coordinator: token of the claim of the search that granted it.
        since: when it was granted, in seconds since the epoch.
        until: when it expires, by the same clock; None while the worker has not begun.
    """

    trial: int
    attempt: int
    worker: str
    coordinator: str
    since: float
    until: float | None = None


def stored_leases(engine: Engine, study: str) -> tuple[Lease, ...]:
    """Return all leases of a study, by trial; only reads."""
    return stored_value(tuple[Lease, ...], rows_of(engine, _TABLE, study), f"study {study!r}: its leases")


class Leases:
    """The leases of the study ``name`` in the database behind ``engine``, as seen by the holder of ``token``.

    ``check`` is called in the transaction of a grant; it raises if that holder was taken over: otherwise it would
    revoke the lease of whoever runs the trial now.

    Attributes:
        workers: what becomes of those that get leases.
    """

    def __init__(
        self, engine: Engine, name: str, token: str, check: Callable[[Connection], None] = lambda connection: None
    ) -> None:
        self._engine, self._name, self._token, self._check = engine, name, token, check
        make_table(engine, _TABLE)
        self.workers = WorkerLog(engine, name, token)

    def all(self) -> tuple[Lease, ...]:
        """Return all leases, by trial."""
        with translated(self._name):
            return stored_leases(self._engine, self._name)

    def grant(self, trial: int, attempt: int, worker: str) -> Lease:
        """Give a trial to a worker; an earlier attempt loses its lease."""
        lease = Lease(trial, attempt, worker, self._token, time.time())
        row = {"attempt": attempt, "worker": worker, "coordinator": self._token, "since": lease.since, "until": None}
        with translated(self._name), self._engine.begin() as connection:
            self._check(connection)
            if not connection.execute(update(_TABLE).where(self._is(trial)).values(**row)).rowcount:
                connection.execute(insert(_TABLE).values(study=self._name, trial=trial, **row))
        return lease

    def begin(self, lease: Lease, until: float) -> None:
        """Store when a lease expires: its worker has begun."""
        with translated(self._name), self._engine.begin() as connection:
            connection.execute(update(_TABLE).where(self._holds(lease)).values(until=until))

    def settle(self, lease: Lease) -> bool:
        """End a lease, and return whether it was still valid: only then its result may be told."""
        with translated(self._name), self._engine.begin() as connection:
            return connection.execute(delete(_TABLE).where(self._holds(lease))).rowcount == 1

    def revoke(self, living: Collection[str]) -> tuple[Lease, ...]:
        """End the leases of coordinators that are not ``living``, by their tokens, and return them."""
        dead = tuple(lease for lease in self.all() if lease.coordinator not in living)
        return tuple(lease for lease in dead if self.settle(lease))

    def _is(self, trial: int) -> sqlalchemy.ColumnElement[bool]:
        return (_TABLE.c.study == self._name) & (_TABLE.c.trial == trial)

    def _holds(self, lease: Lease) -> sqlalchemy.ColumnElement[bool]:
        same = (_TABLE.c.attempt == lease.attempt) & (_TABLE.c.coordinator == lease.coordinator)
        return self._is(lease.trial) & same
