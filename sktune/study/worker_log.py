"""What became of a study's workers, in a separate table beside Optuna's: who joined, was lost or quarantined, and why.

Rows are only added, so that several searches of one study can write at the same time.
"""

import time
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy
from sqlalchemy import Column, Engine, Float, Integer, String, Text, insert

from sktune.study.claims import make_table, rows_of
from sktune.study.facts import stored_value
from sktune.study.storage import translated

_TABLE = sqlalchemy.Table(
    "sktune_workers",
    sqlalchemy.MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("study", String(512), nullable=False, index=True),
    Column("worker", String(512), nullable=False),
    Column("host", String(512), nullable=False),
    Column("coordinator", String(32), nullable=False),
    Column("fate", String(32), nullable=False),
    Column("why", Text, nullable=False),
    Column("at", Float, nullable=False),
)


class Fate(StrEnum):
    """What became of a worker last."""

    JOINED = "joined"
    LOST = "lost"
    QUARANTINED = "quarantined"
    GIVEN_BACK = "given_back"


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """Something that happened to a worker.

    Attributes:
        worker: its die.
        host: its machine.
        coordinator: token of the claim of the search that it works for.
        fate: what happened.
        why: in one line; empty if it joined.
        at: when, in seconds since the epoch.
    """

    worker: str
    host: str
    coordinator: str
    fate: Fate
    why: str
    at: float


def stored_workers(engine: Engine, study: str) -> tuple[WorkerEntry, ...]:
    """Return all entries of a study, in order; only reads."""
    return stored_value(tuple[WorkerEntry, ...], rows_of(engine, _TABLE, study), f"study {study!r}: its workers")


class WorkerLog:
    """The workers of the study ``name`` in the database behind ``engine``, for the holder of ``token`` to write."""

    def __init__(self, engine: Engine, name: str, token: str) -> None:
        self._engine, self._name, self._token = engine, name, token
        make_table(engine, _TABLE)

    def add(self, worker: str, host: str, fate: Fate, why: str = "") -> None:
        """Store what happened to a worker."""
        row = {"worker": worker, "host": host, "coordinator": self._token, "fate": fate, "why": why, "at": time.time()}
        with translated(self._name), self._engine.begin() as connection:
            connection.execute(insert(_TABLE).values(study=self._name, **row))
