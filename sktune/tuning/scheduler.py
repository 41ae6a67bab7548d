"""The scheduler: gives jobs to workers, trials under leases, and decides what their failures mean.

It alone asks the study for proposals and tells it outcomes. What it must not lose is in the study, so that it may be
killed at any moment, and started again on another host.
"""

import itertools
import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol, Self, TypeVar

from sktune.core.errors import BackendError, MachineError, NotDeterministicError, OutOfTimeError, SktuneError, described
from sktune.core.events.base import Event, Listener
from sktune.core.events.search import TimeBudgetSpent, TrialStage
from sktune.core.events.workers import TrialLeased, TrialRequeued, WorkerJoined, WorkerLost, WorkerQuarantined
from sktune.core.outcome import Outcome, Reason
from sktune.core.space import SearchSpace
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.study.leases import Lease, Leases
from sktune.study.strategy import Strategy
from sktune.study.study import Proposal
from sktune.tuning.dies import Die
from sktune.tuning.trials import Trials
from sktune.worker.jobs import (
    GIVEN_BACK,
    Answered,
    Began,
    Compare,
    EngineEvent,
    Job,
    Joined,
    Judge,
    Lost,
    OnEvent,
    Opened,
    OpenTarget,
    ProcessComparison,
    Raised,
    Report,
    Runner,
    RunnerCall,
    SampleNoiseFloor,
    StageBegan,
    Worker,
    perform,
    silent,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Engine(Protocol):
    """Runs the calls of one search on its workers; only the thread that entered it may use it.

    Entering it starts workers: each of them is announced by ``Joined``, and by another one if it is replaced after a
    loss. A worker handles one call at a time. Events of a worker come in order. An engine may deliver an event twice,
    or after the worker was discarded: who listens must not mind. Leaving it ends everything that was started, on all
    hosts.
    """

    def __enter__(self) -> Self:
        """Start workers.

        Raises:
            BadInputError: there is nothing to run on.
        """
        ...

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        ...

    def submit(self, worker: Worker, call: RunnerCall, /) -> None:
        """Have a worker perform a call; return before it ends."""
        ...

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:
        """Pass on events as they happen; return after at least one, or after ``timeout_s``."""
        ...

    def discard(self, worker: Worker, /) -> None:
        """End a worker, and do not use its die again."""
        ...


class Share(Protocol):
    """What one search has of the places that its engine sees; only its engine's thread asks.

    A place is a die, by a name that all engines of a command use for it.
    """

    @property
    def surplus(self) -> int:
        """How many of its places the search does not use any more, and others would take."""
        ...

    def of(self, places: Sequence[str], /) -> Sequence[str]:
        """Return which of the places that there are may be used now.

        Raises:
            InterruptedSearchError: the search shall stop immediately.
        """
        ...

    def give_back(self, place: str, /) -> None:
        """Let other searches use a place, on which nothing runs any more."""
        ...


class InlineEngine:
    """Performs calls while its events are awaited, so that Ctrl-C interrupts them; an ``Engine``.

    Args:
        runner: performs them.
        die: held meanwhile; None if there is nothing to keep others off.
        folder: of the study.
    """

    def __init__(self, runner: Runner, die: Die | None, folder: Path) -> None:
        self._runner, self._worker = runner, Worker("this process")
        self._die, self._folder, self._entered = die, folder, ExitStack()
        self._calls: deque[RunnerCall] = deque()
        self._has_joined = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._die:
                stack.enter_context(self._die.held(self._folder))
            stack.enter_context(self._runner)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def submit(self, worker: Worker, call: RunnerCall, /) -> None:  # noqa: ARG002 - there is only one
        """See ``Engine.submit``."""
        self._calls.append(call)

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:  # noqa: ARG002 - there is always an event
        """See ``Engine.wait``."""
        if not self._has_joined:
            self._has_joined = True
            on_event(Joined(self._worker))
        elif self._calls:
            perform(self._runner, self._worker, self._calls.popleft(), on_event)

    def discard(self, worker: Worker, /) -> None:  # noqa: ARG002
        """See ``Engine.discard``."""
        self._runner.close()


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
"""How long a lost worker may come back: its machine restarts, or another takes its place."""


class WorkerLostError(BackendError):
    """No worker is left, but one may come back."""


@dataclass(frozen=True, slots=True)
class Dismissed(EngineEvent):
    """The worker is not used any more, and what it was doing is void."""

    why: str


class Fleet:
    """Keeps account of an engine's workers, and has any of them do a job, as a ``Runner`` does.

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
        self._lost_s: dict[str, float] = {}
        self._compared: Counter[str] = Counter()
        self.deadline_s = math.inf
        self.asked_die: str | None = None

    def __len__(self) -> int:
        return len(self._opened)

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
        """Whether there is a worker, idle or not, on another die than those to ``avoid``, or is about to be one."""
        now_s = time.monotonic()
        coming = {die for die, lost_s in self._lost_s.items() if now_s < min(lost_s + REJOIN_S, self.deadline_s)}
        return not coming.union(worker.die for worker in (*self._opened, *self._opening.values())) <= set(avoid)

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

    def _ask(self, job: Job[T], report: Report, avoid: Collection[str]) -> tuple[T, Worker]:
        while True:
            while (worker := self.idle(avoid) or self.idle()) is None:
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
            self._lost_s.pop(worker.die, None)
            self._opening[self.submit(worker, OpenTarget(), self.deadline_s)] = worker
        elif isinstance(event, Lost):
            if worker not in self._ended:  # it may not even have joined
                if event.why != GIVEN_BACK:
                    self._lost_s[worker.die] = time.monotonic()
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


OnSample = Callable[[NoiseFloorSample], None]

CONFIRMED = (Reason.CRASHED, Reason.TIMEOUT, Reason.MISMATCH)
"""Failures that a faulty die can cause, too: another die must agree, if there is one.

Faulty dies time out alike: of two that agree, one must have ended another trial well since, or a third is asked.
"""
MAX_HOSTS_LOST, MAX_WORKERS_LOST = 2, 3
"""A plan is blamed once workers on so many machines, or so many workers in all, were lost while they ran it."""
MIN_STAGE_S = 60.0
"""A stage of a trial is cut off after this, or the time limit of compiling if that is longer."""
STAGES = 5
"""In one call: those of a trial, and one for what comes between."""


def lease_s(opened: Opened, compile_timeout_s: float) -> float:
    """Return how long a sound worker may take for one call: to open the target again, and for all stages."""
    return 2 * sum(opened.seconds.values()) + STAGES * max(MIN_STAGE_S, compile_timeout_s)


@dataclass
class _Task:
    """A trial that was proposed and has no outcome yet.

    Attributes:
        proposal: what to run.
        attempt: number of attempts so far.
        lease, worker, call, until_s: of the attempt that runs; ``until_s`` on the clock of ``time.monotonic``.
        unrescued: the outcome before a safer option was added, which is what the attempt tries.
        suspects: failures to be confirmed, the workers where they happened, and how many trials these had ended well.
        avoid: dies on which it must not run again.
        lost: workers that were lost while they ran it.
        is_blamed: whether its worker failed in it, rather than before.
    """

    proposal: Proposal
    attempt: int = 0
    lease: Lease | None = None
    worker: Worker | None = None
    call: int = 0
    until_s: float | None = None
    unrescued: Outcome | None = None
    suspects: list[tuple[Worker, Outcome, int]] = field(default_factory=list)
    avoid: set[str] = field(default_factory=set)
    lost: list[Lost | Dismissed] = field(default_factory=list)
    is_blamed: bool = False


class Coordinator:
    """Runs the trials of one search; a context manager, which leaves unfinished trials to a later search.

    Args:
        fleet: has the workers.
        trials: proposes plans and stores outcomes.
        leases: of the study.
        emit: called with each event.
        lease_s: how long a worker may take for one call, from when it begins.
        is_shared: whether there can be several workers, so that the events say which has which trial.

    Attributes:
        is_out_of_time: whether a trial was cut off; then no other is begun.
    """

    def __init__(
        self, fleet: Fleet, trials: Trials, leases: Leases, emit: Listener, lease_s: float, *, is_shared: bool
    ) -> None:
        self._fleet, self._trials, self._leases, self._lease_s = fleet, trials, leases, lease_s
        self._emit, self._is_shared = emit, is_shared
        self._queue: deque[_Task] = deque()
        self._running: dict[int, _Task] = {}
        self._sampling: Worker | None = None
        self._sampled_until_s = math.inf
        self._ended_well = Counter[str]()  # by die
        self._on_sample: OnSample = lambda sample: None
        self.is_out_of_time = False

    def __enter__(self) -> Self:
        self._fleet.listen(self._take)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_blameless = kind is None or issubclass(kind, KeyboardInterrupt | SktuneError | OSError | OutOfTimeError)
        for task in (*self._running.values(), *self._queue):
            self._settle(task)
            if is_blameless and not task.is_blamed:
                self._trials.postpone(task.proposal)
        self._running.clear()
        self._queue.clear()

    @property
    def unfinished(self) -> int:
        """Number of trials that run or wait to be run again."""
        return len(self._running) + len(self._queue)

    def await_worker(self) -> None:
        """Wait until a worker is free for a new trial."""
        while not self.is_out_of_time and self._fleet.idle() is None:
            self._step()
            self._assign()

    def begin(self, space: SearchSpace, strategy: Strategy) -> None:
        """Propose a trial, and run it if its outcome is not known yet."""
        if proposal := self._trials.propose(space, strategy):
            self._queue.append(_Task(proposal))
            self._assign()

    def sample_noise_floor(self, before_trial: int, on_sample: OnSample) -> None:
        """Have a free worker compare the baseline with itself, beside the trials, which others can run meanwhile.

        Args:
            before_trial: see ``Runner.sample_noise_floor``.
            on_sample: called with the sample, if there is one.
        """
        worker = self._fleet.idle()
        assert worker is not None
        self._fleet.submit(worker, SampleNoiseFloor(before_trial), self._fleet.deadline_s)
        self._sampling, self._on_sample = worker, on_sample
        self._sampled_until_s = time.monotonic() + self._lease_s

    @property
    def is_sampling(self) -> bool:
        """Whether a worker compares the baseline with itself."""
        return self._sampling is not None

    def await_sample(self) -> None:
        """Wait until no worker does."""
        while self._sampling:
            self._step()

    def finish(self) -> None:
        """Wait until all trials have an outcome, or are out of time."""
        while self._running or (self._queue and not self.is_out_of_time):
            self._step()
            self._assign()
        self.await_sample()

    def drain(self) -> None:
        """Wait until nothing runs."""
        while self._running or self._sampling:
            self._step()

    def _step(self) -> None:
        self._fleet.wait(POLL_S)
        now_s = time.monotonic()
        for task in [one for one in self._running.values() if one.until_s is not None and one.until_s < now_s]:
            assert task.worker is not None
            why = f"it did not end trial {task.proposal.number} within its lease"
            task.lost.append(Dismissed(task.worker, why))
            self._fleet.quarantine(task.worker, why)
        if self._sampling and self._sampled_until_s < now_s:
            self._fleet.quarantine(self._sampling, "it did not end a comparison of the baseline with itself in time")

    def _assign(self) -> None:
        """Give waiting trials to free workers."""
        for task in () if self.is_out_of_time else tuple(self._queue):
            if not self._fleet.has_other(task.avoid):
                if task.suspects and len(self._fleet):  # nobody is left to disagree
                    self._queue.remove(task)
                    self._trials.end(task.proposal, task.suspects[0][1])
                    continue
                task.avoid.clear()
            if worker := self._fleet.idle(task.avoid):
                self._queue.remove(task)
                self._run(task, worker)

    def _run(self, task: _Task, worker: Worker) -> None:
        number = task.proposal.number
        task.attempt, task.worker, task.unrescued = task.attempt + 1, worker, None
        task.lease = self._leases.grant(number, task.attempt, worker.die)
        self._judge(task, worker, self._trials.request(task.proposal))
        self._tell(
            TrialLeased(trial=number, attempt=task.attempt, worker=worker.die, running=len(self._running),
                        queued=len(self._queue))
        )  # fmt: skip

    def _judge(self, task: _Task, worker: Worker, request: Judge) -> None:
        task.until_s = None
        task.call = self._fleet.submit(worker, request, self._trials.deadline_s())
        self._running[task.call] = task

    def _take(self, event: EngineEvent) -> None:
        """Handle an event of a worker that runs a trial or samples the noise floor, or is no longer there."""
        if self._sampling and event.worker == self._sampling:
            self._take_sample(event)
        for task in [one for one in self._running.values() if one.worker == event.worker]:
            match event:
                case Began():
                    assert task.lease is not None
                    task.until_s = time.monotonic() + self._lease_s
                    self._leases.begin(task.lease, time.time() + self._lease_s)
                case StageBegan():
                    self._emit(TrialStage(trial=task.proposal.number, stage=event.stage))
                case Answered():
                    del self._running[task.call]
                    self._take_outcome(task, event.worker, event.value)
                case Raised():
                    del self._running[task.call]
                    self._take_error(task, event)
                case Lost() | Dismissed():
                    del self._running[task.call]
                    task.lost += [event] if isinstance(event, Lost) else []
                    self._void(task, event.worker, event.why)

    def _take_sample(self, event: EngineEvent) -> None:
        if not isinstance(event, Answered | Raised | Lost | Dismissed):
            return
        self._sampling = None
        if isinstance(event, Answered) and event.value:
            self._on_sample(replace(event.value, die=event.worker.die) if self._is_shared else event.value)
        elif isinstance(event, Raised):
            if not isinstance(event.error, BackendError | OutOfTimeError):
                raise event.error
            logger.warning("the noise floor could not be measured: %s", event.error)

    def _take_outcome(self, task: _Task, worker: Worker, outcome: Outcome) -> None:
        proposal = task.proposal
        rescue = self._trials.rescue(outcome, proposal.plan)
        if rescue and task.unrescued is None:
            task.unrescued = outcome
            safer = proposal.plan.with_option(*rescue)
            self._judge(task, worker, replace(self._trials.request(proposal), plan=safer, known={}))
            return
        if task.unrescued is not None:
            outcome = self._trials.after_rescue(task.unrescued, outcome, proposal.plan)
        if not self._settle(task):
            return
        self._ended_well[worker.die] += outcome.reason not in CONFIRMED
        if outcome.speedup and self._fleet.is_slow(worker, outcome.speedup.baseline_ms):
            task.avoid.add(worker.die)
            self._requeue(task, worker, f"the baseline has become slow on {worker}")
        elif self._must_be_confirmed(task, worker, outcome):
            task.suspects.append((worker, outcome, self._ended_well[worker.die]))
            task.avoid.add(worker.die)
            self._requeue(task, worker, f"{outcome.reason} on {worker}, to be confirmed on another die")
        else:
            self._conclude(task, replace(outcome, die=worker.die) if self._is_shared else outcome)

    def _must_be_confirmed(self, task: _Task, worker: Worker, outcome: Outcome) -> bool:
        """Whether a failure may be the die's: no sound one has failed in the same way, and there is one to try."""
        agreeing = [(other.die, count) for other, failure, count in task.suspects if failure.reason is outcome.reason]
        is_sound = [self._ended_well[die] > count or outcome.reason is not Reason.TIMEOUT for die, count in agreeing]
        if outcome.reason not in CONFIRMED or any(is_sound):
            return False
        return self._fleet.has_other({*task.avoid, worker.die})

    def _conclude(self, task: _Task, outcome: Outcome) -> None:
        """Store the outcome of a trial, and remember the dies that failed with its plan in another way."""
        self._trials.end(task.proposal, outcome)
        for worker, failure, _ in task.suspects:
            if failure.reason is not outcome.reason:
                why = f"trial {task.proposal.number} ended with {failure.reason} there, but not on another die"
                self._fleet.strike(worker, why)

    def _take_error(self, task: _Task, event: Raised) -> None:
        if isinstance(event.error, OutOfTimeError):
            if not self.is_out_of_time:
                self.is_out_of_time = True
                self._emit(TimeBudgetSpent(trials=self._trials.finished, unfinished=task.proposal.number))
            self._queue.append(task)
            self._settle(task)
            return
        worker, why = event.worker, described(event.error)
        task.is_blamed = event.was_open and not isinstance(event.error, MachineError | OSError)
        if task.is_blamed and self._fleet.has_other({worker.die}):
            task.lost.append(Lost(worker, why))
            self._void(task, worker, why)
            self._fleet.strike(worker, why)
        else:
            self._void(task, worker, why)
            self._fleet.drop(worker, event.error)

    def _void(self, task: _Task, worker: Worker, why: str) -> None:
        """Run a trial again whose attempt says nothing about its plan, unless too many workers were lost with it."""
        if not self._settle(task):
            return
        # A worker that is out of time may be on a machine that is well.
        hosts = {event.worker.host for event in task.lost if isinstance(event, Lost)}
        if len(hosts) >= MAX_HOSTS_LOST or len(task.lost) >= MAX_WORKERS_LOST:
            where = f" on {len(hosts)} machines" if len(hosts) > 1 else ""
            detail = f"{len(task.lost)} workers{where} were lost while they ran it; the last: {why}"
            self._conclude(task, Outcome(Reason.CRASHED, detail))
            return
        self._requeue(task, worker, why)

    def _requeue(self, task: _Task, worker: Worker, why: str) -> None:
        self._queue.append(task)
        self._tell(TrialRequeued(trial=task.proposal.number, worker=worker.die, why=why, queued=len(self._queue)))

    def _settle(self, task: _Task) -> bool:
        """End the lease of a task's attempt; return whether its result counts."""
        lease, task.lease = task.lease, None
        return lease is not None and self._leases.settle(lease)

    def _tell(self, event: Event) -> None:
        if self._is_shared:
            self._emit(event)
