"""The workers of one search: which of them can take a trial, and which are no longer trusted."""

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Self, TypeVar

from sktune.core.errors import BackendError, NotDeterministicError, described
from sktune.core.events.base import Listener
from sktune.core.events.workers import WorkerJoined, WorkerLost, WorkerQuarantined
from sktune.engines.base import (
    Answered,
    Engine,
    EngineEvent,
    Joined,
    Lost,
    OnEvent,
    Raised,
    RunnerCall,
    StageBegan,
    Worker,
)
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.worker.jobs import Compare, DurationEstimates, Job, Opened, OpenTarget, ProcessComparison, Report, silent

T = TypeVar("T")
SLOW = 1.25
"""Identical dies differ by 8% on average and 22% at most (arXiv 2208.11035); one that changes by more has a fault."""
MIN_RECORD = 3
"""Fewest baseline latencies from which a change can be told."""
FAR_SLOWER = 2.0
"""No die is that much slower than the others: outliers are 1.5 times as slow."""


def limit_ms(records: Mapping[str, Sequence[float]], die: str) -> float:
    """Return the baseline latency above which a die has become slow; infinite if too little is known.

    A die is held to its own record, changed as the other dies have changed: what slows down all of them is the machine
    or the model. While its record is short, it is held to theirs.

    Args:
        records: baseline latencies of each die, in order.
        die: of whom.
    """
    own = records.get(die, ())
    others = [record for name, record in records.items() if name != die and record]
    if not others:
        return math.inf
    if len(own) < MIN_RECORD:
        return FAR_SLOWER * median(map(median, others))
    return SLOW * median(own) * median(record[-1] / median(record) for record in others)


def dissenters(digests: Mapping[str, str]) -> set[str] | None:
    """Return the dies whose baseline has other bits than that of most; None if there is no majority.

    Args:
        digests: of each die's baseline; empty where nothing is compared.
    """
    if len(set(digests.values())) <= 1:
        return set()
    (common, votes), *_ = Counter(digests.values()).most_common()
    if 2 * votes <= len(digests):
        return None
    return {die for die, digest in digests.items() if digest != common}


POLL_S = 1.0
QUORUM = 3
"""Trials begin once this many workers have opened the model, or all: then a die with other bits is outvoted."""
MAX_STRIKES = 2
REJOIN_S = 60.0
"""How long to wait for a worker when all are lost: their machines may come back."""


class WorkerLostError(BackendError):
    """No worker is left, but one may come back."""


@dataclass(frozen=True, slots=True)
class Dismissed(EngineEvent):
    """The worker is not used any more, and what it was doing is void."""

    why: str


class Fleet:
    """Keeps account of an engine's workers, and has any of them do a job; a ``Runner``.

    Args:
        engine: has the workers.
        emit: called with what becomes of workers, if there can be several.
        is_shared: whether there can be several.

    Attributes:
        deadline_s: by which workers must have opened the target, on the clock of ``time.monotonic``.
        asked_die: of the worker that was asked last; None if there can be only one.
    """

    def __init__(self, engine: Engine, emit: Listener, *, is_shared: bool) -> None:
        self._engine, self._is_shared = engine, is_shared
        self._emit: Listener = emit if is_shared else (lambda event: None)
        self._numbers = itertools.count(1)
        self._opening: dict[int, Worker] = {}
        self._opened: dict[Worker, Opened] = {}
        self._busy: dict[int, Worker] = {}
        self._answers: dict[int, Answered | Raised | Lost | Dismissed | None] = {}
        self._report: Report = silent
        self._listener: OnEvent = lambda event: None
        self._strikes: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()
        self._baselines: defaultdict[str, list[float]] = defaultdict(list)
        self._digests: dict[str, str] = {}
        self._ended: set[Worker] = set()
        self._failure: Exception | None = None
        self._deserted_s: float | None = None
        self._compared: Counter[str] = Counter()
        self.deadline_s = math.inf
        self.asked_die: str | None = None

    def __len__(self) -> int:
        return len(self._opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: the engine ends its workers."""

    def listen(self, listener: OnEvent) -> None:
        """Pass on the events of calls that were submitted, and losses."""
        self._listener = listener

    def open(self) -> Opened:
        """Wait until enough workers have opened the target, and return what one of them found.

        Raises:
            SktuneError: as ``Runner.open``, if no worker can open it.
        """
        while not self._opened or (self._opening and len(self._opened) < QUORUM):
            self.wait(POLL_S)
        return next(iter(self._opened.values()))

    def idle(self, avoid: Collection[str] = ()) -> Worker | None:
        """Return a worker that can take a call, on none of the dies to ``avoid``."""
        busy = set(self._busy.values())
        return next((one for one in self._opened if one not in busy and one.die not in avoid), None)

    def has_other(self, avoid: Collection[str]) -> bool:
        """Whether there is a worker, idle or not, on another die than those to ``avoid``."""
        return any(worker.die not in avoid for worker in self._opened)

    def submit(self, worker: Worker, job: Job[Any] | OpenTarget, deadline_s: float = math.inf) -> int:
        """Have a worker do a job, and return the call's number."""
        call = RunnerCall(next(self._numbers), job, deadline_s)
        self._busy[call.number] = worker
        self._engine.submit(worker, call)
        return call.number

    def run(self, job: Job[T], report: Report = silent, /) -> T:
        """Have any worker do a job, and return its answer; if the worker is lost, another one does it.

        Comparisons go to one of the dies that have compared least.
        """
        least = min((self._compared[worker.die] for worker in self._opened), default=0)
        avoid = [die for die, count in self._compared.items() if count > least] if isinstance(job, Compare) else ()
        answer, worker = self._ask(job, report, avoid)
        self._compared[worker.die] += isinstance(job, Compare)
        if self._is_shared and isinstance(answer, ProcessComparison | NoiseFloorSample):
            answer = replace(answer, die=worker.die)
        return answer

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Runner.pace``."""
        return self._engine.pace(opened, trials)

    def _ask(self, job: Job[T], report: Report, avoid: Collection[str]) -> tuple[T, Worker]:
        while True:
            while (worker := self.idle(avoid if self.has_other(avoid) else ())) is None:
                self.wait(POLL_S)
            self._report = report
            self.asked_die = worker.die if self._is_shared else None
            call = self.submit(worker, job, self.deadline_s)
            self._answers[call] = None
            while (answer := self._answers[call]) is None:
                self.wait(POLL_S)
            del self._answers[call]
            if isinstance(answer, Raised):
                raise answer.error
            if isinstance(answer, Answered):
                return answer.value, worker

    def wait(self, timeout_s: float) -> None:
        """Handle what happens until there was an event, or the time is over.

        Raises:
            SktuneError: no worker is left, and the reason.
        """
        self._engine.wait(timeout_s, self._take)
        if self._opened or self._opening:
            self._deserted_s = None
        elif self._failure is not None:
            now_s = time.monotonic()
            self._deserted_s = self._deserted_s or now_s
            if not isinstance(self._failure, WorkerLostError) or now_s - self._deserted_s > REJOIN_S:
                raise self._failure

    def _take(self, event: EngineEvent) -> None:
        worker = event.worker
        if isinstance(event, Joined):
            self._opening[self.submit(worker, OpenTarget(), self.deadline_s)] = worker
        elif isinstance(event, Lost):
            if worker not in self._ended:  # it may not even have joined
                self._end(event, WorkerLostError(f"no worker is left; the last was {worker}: {event.why}"))
                self._emit(WorkerLost(worker=worker.die, why=event.why, workers=len(self)))
        elif (call := getattr(event, "call", 0)) not in self._busy or self._busy[call] != worker:
            return  # it was discarded, or the event is delivered twice
        elif call in self._opening:
            self._take_opening(event, call)
        else:
            if isinstance(event, Answered | Raised):
                del self._busy[call]
            if call not in self._answers:
                self._listener(event)
            elif isinstance(event, Answered | Raised):
                self._answers[call] = event
            elif isinstance(event, StageBegan):
                self._report(event.stage)

    def _take_opening(self, event: EngineEvent, call: int) -> None:
        worker = event.worker
        if isinstance(event, Answered):
            del self._busy[call], self._opening[call]
            self._take_opened(worker, event.value)
        elif isinstance(event, Raised):
            self.drop(worker, event.error)

    def _take_opened(self, worker: Worker, opened: Opened) -> None:
        first = next(iter(self._opened.values()), opened)
        if opened.layout.digest != first.layout.digest:
            self.drop(worker, BackendError(f"worker {worker} has traced another model; make its files equal"))
            return
        self._opened[worker] = opened
        self._emit(WorkerJoined(worker=worker.die, host=worker.host, workers=len(self)))
        if opened.baseline_digest:
            self._digests[worker.die] = opened.baseline_digest
        differing = dissenters({one.die: self._digests[one.die] for one in self._opened if one.die in self._digests})
        if differing is None and not self._opening:
            raise NotDeterministicError(
                f"the baseline has other bits on {' and '.join(map(str, self._opened))}; use only dies that agree"
            )
        for one in [one for one in self._opened if one.die in (differing or ())]:
            self.quarantine(one, "its baseline has other bits than that of most dies")

    def drop(self, worker: Worker, why: Exception) -> None:
        """Use a worker no more: it cannot run anything, which is not a plan's fault."""
        self._engine.discard(worker)
        self._end(Dismissed(worker, described(why)), why)
        self._emit(WorkerLost(worker=worker.die, why=described(why), workers=len(self)))

    def quarantine(self, worker: Worker, why: str) -> None:
        """Use a die no more."""
        self._engine.discard(worker)
        self._end(Dismissed(worker, why), BackendError(f"no worker is left; the last was {worker}: {why}"))
        self._emit(WorkerQuarantined(worker=worker.die, why=why, workers=len(self)))

    def _end(self, event: Lost | Dismissed, failure: Exception) -> None:
        """Forget a worker; whoever waits for it learns of it."""
        self._failure = failure
        self._ended.add(event.worker)
        self._opened.pop(event.worker, None)
        for call in [call for call, worker in self._busy.items() if worker == event.worker]:
            del self._busy[call]
            self._opening.pop(call, None)
            if call in self._answers:
                self._answers[call] = event
        self._listener(event)

    def strike(self, worker: Worker, why: str) -> None:
        """Count a failure that no other die has; quarantine the die at the second one."""
        self._strikes[worker.die] += 1
        if self._strikes[worker.die] >= MAX_STRIKES and worker in self._opened:
            self.quarantine(worker, why)

    def is_slow(self, worker: Worker, baseline_ms: float) -> bool:
        """Whether a die seems to have become slow, by the baseline's latency in a trial; the second time in a row, it
        is quarantined. Otherwise remember the latency.
        """
        if baseline_ms > limit_ms(self._baselines, worker.die):
            self._slow[worker.die] += 1
            if self._slow[worker.die] >= MAX_STRIKES:
                self.quarantine(worker, "its baseline has become slow")
            return True
        self._slow[worker.die] = 0
        self.remember(worker.die, baseline_ms)
        return False

    def remember(self, die: str, baseline_ms: float) -> None:
        """Add a baseline latency to a die's record."""
        self._baselines[die].append(baseline_ms)
