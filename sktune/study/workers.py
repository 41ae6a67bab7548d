"""The workers of a study: what each does now, has done, and why it is not used any more."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from statistics import median
from typing import Any

from sqlalchemy import Engine

from sktune.study.claims import living_tokens
from sktune.study.leases import Lease, stored_leases
from sktune.study.records import TrialRecord
from sktune.study.worker_log import Fate, WorkerEntry, stored_workers


class WorkerState(StrEnum):
    """What a worker does now."""

    RUNNING = "running"
    FREE = "free"
    ENDED = "ended"
    LOST = "lost"
    QUARANTINED = "quarantined"
    GIVEN_BACK = "given_back"


_STATES: Mapping[Fate, WorkerState] = {
    Fate.LOST: WorkerState.LOST, Fate.QUARANTINED: WorkerState.QUARANTINED, Fate.GIVEN_BACK: WorkerState.GIVEN_BACK,
}  # fmt: skip


Place = tuple[str, str]
"""Host and die of a worker."""


def moment(seconds: float) -> datetime:
    """Return a time in seconds since the epoch by this machine's clock and time zone."""
    return datetime.fromtimestamp(seconds).astimezone()


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One die that a study was searched on.

    Attributes:
        worker: the die, unique on its host.
        host: the machine.
        state: what it does; ``ENDED`` if its search has.
        lease: the trial that it runs; None if it runs none.
        trials: number of finished trials that ended there.
        baseline_ms: median of the baseline in them; None if nothing was measured.
        mishaps: when it was lost or quarantined, and why, also if it has joined again.
    """

    worker: str
    host: str
    state: WorkerState
    lease: Lease | None
    trials: int
    baseline_ms: float | None
    mishaps: tuple[WorkerEntry, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; what does not apply is left out."""
        values: dict[str, Any] = {"worker": self.worker, "host": self.host, "state": str(self.state)}
        if self.lease:
            values |= {"trial": self.lease.trial, "attempt": self.lease.attempt, "since": _text(self.lease.since)}
        values |= {"trials": self.trials, "baseline_ms": self.baseline_ms}
        mishaps = [{"fate": str(each.fate), "why": each.why, "at": _text(each.at)} for each in self.mishaps]
        return values | ({"mishaps": mishaps} if mishaps else {})


@dataclass(frozen=True, slots=True)
class Workers:
    """All workers of a study; none if no search of it could have several.

    Attributes:
        all: by host and die.
        queued: number of trials that wait to be run again, without those that a free worker is about to take.
        hosts_by_claim: the host of a die, by the token of the search that it worked for, and by the die.
    """

    all: tuple[WorkerStatus, ...] = ()
    queued: int = 0
    hosts_by_claim: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)

    @property
    def are_several(self) -> bool:
        """Whether there was more than one, so that people want to know which did what."""
        return len(self.all) > 1

    @property
    def are_alive(self) -> bool:
        """Whether a search has workers now."""
        return any(worker.state in (WorkerState.RUNNING, WorkerState.FREE) for worker in self.all)

    @property
    def running(self) -> int:
        """Number of trials that run now."""
        return sum(worker.lease is not None for worker in self.all)

    @property
    def hosts(self) -> int:
        """Number of machines."""
        return len({worker.host for worker in self.all})

    def to_list(self) -> list[dict[str, Any]]:
        """Return plain values, ready for JSON."""
        return [worker.to_dict() for worker in self.all]

    def name(self, worker: WorkerStatus) -> str:
        """Return the die, with the host if other hosts have one of that name."""
        return self._named(worker.worker, worker.host)

    def name_of(self, record: TrialRecord) -> str:
        """Return who ran a trial: the die as ``name``, or host and process if the search had a single worker."""
        if record.outcome is None or not record.outcome.die:
            return record.worker
        die = record.outcome.die
        return self._named(die, self.hosts_by_claim.get((record.claim, die), ""))

    def _named(self, die: str, host: str) -> str:
        is_unique = Counter(worker.worker for worker in self.all)[die] < 2
        return die if is_unique or not host else f"{die} on {host}"


def workers_of(engine: Engine, study: str, records: Sequence[TrialRecord]) -> Workers:
    """Return the workers of a study in the database behind ``engine``; only reads.

    Args:
        engine: of the storage.
        study: its name.
        records: all its trials.
    """
    entries = stored_workers(engine, study)
    if not entries:
        return Workers()
    living = living_tokens(engine, study)
    leases = [lease for lease in stored_leases(engine, study) if lease.coordinator in living]
    hosts = {(entry.coordinator, entry.worker): entry.host for entry in entries}
    leased = {(hosts.get((lease.coordinator, lease.worker), ""), lease.worker): lease for lease in leases}
    of_places: defaultdict[Place, list[WorkerEntry]] = defaultdict(list)
    for entry in entries:
        of_places[entry.host, entry.worker].append(entry)
    ended: defaultdict[Place, list[TrialRecord]] = defaultdict(list)
    for record in records:
        if record.outcome and (die := record.outcome.die):
            ended[hosts.get((record.claim, die), ""), die].append(record)
    numbers = {lease.trial for lease in leases}
    waiting = [record for record in records if record.outcome is None and record.claim in living]
    statuses = [_status(of_places[place], ended[place], leased.get(place), living)
                for place in sorted(of_places, key=_natural)]  # fmt: skip
    unleased = sum(record.number not in numbers for record in waiting)
    free = sum(status.state is WorkerState.FREE for status in statuses)
    return Workers(tuple(statuses), max(0, unleased - free), hosts)


def _status(
    entries: Sequence[WorkerEntry], records: Sequence[TrialRecord], lease: Lease | None, living: frozenset[str]
) -> WorkerStatus:
    latest = entries[-1]
    is_used = latest.fate is Fate.JOINED and latest.coordinator in living
    now = WorkerState.RUNNING if lease else WorkerState.FREE if is_used else WorkerState.ENDED
    measured = [record.outcome.speedup.baseline_ms for record in records if record.outcome and record.outcome.speedup]
    return WorkerStatus(
        latest.worker, latest.host, _STATES.get(latest.fate, now), lease, len(records),
        median(measured) if measured else None,
        tuple(entry for entry in entries if entry.fate in (Fate.LOST, Fate.QUARANTINED)),
    )  # fmt: skip


def _natural(place: Place) -> list[list[tuple[int, str]]]:
    """Return a key that puts die 2 before die 10."""
    return [[(int(part or 0), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
            for name in place]  # fmt: skip


def _text(seconds: float) -> str:
    return moment(seconds).isoformat(timespec="seconds")
