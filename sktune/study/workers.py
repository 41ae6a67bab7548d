"""The workers of a study: what each does now, has done, and why it is not used any more."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from sqlalchemy import Engine

from sktune.core.events.studies import Mishap, WorkerShown, WorkerState
from sktune.core.printable import natural_order
from sktune.study.claims import living_tokens
from sktune.study.leases import Lease, stored_leases
from sktune.study.records import TrialRecord
from sktune.study.worker_log import Fate, WorkerEntry, stored_workers

_STATES: Mapping[Fate, WorkerState] = {
    Fate.LOST: WorkerState.LOST, Fate.QUARANTINED: WorkerState.QUARANTINED, Fate.GIVEN_BACK: WorkerState.GIVEN_BACK,
}  # fmt: skip


Place = tuple[str, str]
"""Host and die of a worker."""


@dataclass(frozen=True, slots=True)
class Workers:
    """All workers of a study; none if no search of it could have several.

    Attributes:
        all: by host and die.
        queued: number of trials that wait to be run again, without those that a free worker is about to take.
        hosts_by_claim: the host of a die, by the token of the search that it worked for, and by the die.
    """

    all: tuple[WorkerShown, ...] = ()
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
        return sum(worker.trial is not None for worker in self.all)

    @property
    def hosts(self) -> int:
        """Number of machines."""
        return len({worker.host for worker in self.all})

    def name(self, worker: WorkerShown) -> str:
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
                for place in sorted(of_places, key=lambda place: [*map(natural_order, place)])]  # fmt: skip
    unleased = sum(record.number not in numbers for record in waiting)
    free = sum(status.state is WorkerState.FREE for status in statuses)
    return Workers(tuple(statuses), max(0, unleased - free), hosts)


def _status(
    entries: Sequence[WorkerEntry], records: Sequence[TrialRecord], lease: Lease | None, living: frozenset[str]
) -> WorkerShown:
    latest = entries[-1]
    is_used = latest.fate is Fate.JOINED and latest.coordinator in living
    now = WorkerState.RUNNING if lease else WorkerState.FREE if is_used else WorkerState.ENDED
    measured = [record.outcome.speedup.baseline_ms for record in records if record.outcome and record.outcome.speedup]
    return WorkerShown(
        worker=latest.worker, host=latest.host, state=_STATES.get(latest.fate, now),
        trial=lease.trial if lease else None, attempt=lease.attempt if lease else None,
        since=lease.since if lease else None, until=lease.until if lease else None,
        trials=len(records), baseline_ms=median(measured) if measured else None,
        mishaps=tuple(Mishap(entry.fate, entry.why, entry.at) for entry in entries
                      if entry.fate in (Fate.LOST, Fate.QUARANTINED)),
    )  # fmt: skip
