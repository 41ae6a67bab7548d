"""The coordinator: gives trials to workers under leases, and decides what their failures mean.

It alone asks the study for proposals and tells it outcomes. What it must not lose is in the study, so that it may be
killed at any moment, and started again on another host.
"""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from sktune.core.errors import BackendError, MachineError, OutOfTimeError, SktuneError, described
from sktune.core.events.base import Event, Listener
from sktune.core.events.search import TimeBudgetSpent, TrialStage
from sktune.core.events.workers import TrialLeased, TrialRequeued
from sktune.core.outcome import Outcome, Reason
from sktune.core.space import SearchSpace
from sktune.engines.base import Answered, Began, EngineEvent, Lost, Raised, StageBegan, Worker
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.study.leases import Lease, Leases
from sktune.study.strategy import Strategy
from sktune.study.study import Proposal
from sktune.tuning.fleet import POLL_S, Dismissed, Fleet
from sktune.tuning.trials import Trials
from sktune.worker.jobs import Judge, Opened, SampleNoiseFloor

logger = logging.getLogger(__name__)

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
