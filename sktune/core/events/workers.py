"""Events of workers and of the hosts that they are on: who they are, and which of them runs which trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sktune.core.events.base import Event
from sktune.core.events.values import Count, HostFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Event):
    """A worker has opened the model; it takes trials.

    Attributes:
        worker: its die.
        host: its machine; empty for this one.
        workers: number of workers that take trials now.
    """

    event: ClassVar[str] = "worker_joined"
    worker: str
    host: str
    workers: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Event):
    """A worker has ended, or its machine is gone. What it was running says nothing about the plan.

    Attributes:
        worker: its die.
        why: in one line.
        workers: number of workers that are left.
    """

    event: ClassVar[str] = "worker_lost"
    worker: str
    why: str
    workers: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerQuarantined(Event):
    """A worker is not used any more: its die became slow, computes other bits, or fails where others do not.

    Attributes:
        worker: its die.
        why: in one line.
        workers: number of workers that are left.
    """

    event: ClassVar[str] = "worker_quarantined"
    worker: str
    why: str
    workers: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLeased(Event):
    """A worker is given a trial.

    Attributes:
        trial: its number.
        attempt: from 1.
        worker: its die.
        running: number of trials that run now, this one included.
        queued: number of trials that wait to be run again.
    """

    event: ClassVar[str] = "trial_leased"
    trial: Count
    attempt: Count
    worker: str
    running: Count
    queued: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequeued(Event):
    """An attempt at a trial is void, or must be confirmed on another die; it is run again.

    Attributes:
        trial: its number.
        worker: the die of the attempt.
        why: in one line.
        queued: number of trials that wait to be run again.
    """

    event: ClassVar[str] = "trial_requeued"
    trial: Count
    worker: str
    why: str
    queued: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChecked(Event):
    """With `sktune engine check`: what the hosts of a cluster have; all have the same fingerprint.

    Attributes:
        hosts: each host with dies.
        dies: their total number.
        fingerprint: what the figures of a search depend on besides the model, by name.
    """

    event: ClassVar[str] = "engine_checked"
    hosts: Sequence[HostFacts]
    dies: Count
    fingerprint: Mapping[str, str]


WORKER_EVENTS: tuple[type[Event], ...] = (
    WorkerJoined,
    WorkerLost,
    WorkerQuarantined,
    TrialLeased,
    TrialRequeued,
    EngineChecked,
)
