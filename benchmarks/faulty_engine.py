"""An engine without processes, in virtual time, whose machines fail on schedule."""

import heapq
import itertools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from sktune.core.errors import OutOfTimeError, SktuneError
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.worker.jobs import (
    Answered,
    Began,
    EngineEvent,
    Joined,
    Judge,
    Lost,
    OnEvent,
    OpenTarget,
    Raised,
    RunnerCall,
    StageBegan,
    Worker,
)
from tests.fake_runner import FakeRunner

START_S = 1e6
OPEN_S, JUDGE_S, OTHER_S = 10.0, 4.0, 1.0
LATE_S = 200.0
RESTART_S = 5.0


class KilledError(BaseException):
    """The coordinator is killed: nothing is cleaned up."""


class VirtualTime:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.now_s = START_S

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def time(self) -> float:
        """Return the time."""
        return self.now_s


@dataclass(frozen=True)
class Fault:
    """What happens, to which die, and when.

    Attributes:
        kind: see ``FAULTS``.
        die: its index.
        at_s: seconds after the start.
    """

    kind: str
    die: int
    at_s: float


FAULTS = (
    "node lost while judging", "node lost after the result", "actor killed", "subprocess killed",
    "coordinator killed", "results twice", "partition", "slow die", "bit flips", "die hangs", "die hangs its plans",
)  # fmt: skip


@dataclass
class FaultyEngine:
    """Runs calls on a ``FakeRunner`` for each die; an ``Engine``.

    Attributes:
        make: makes the runner of a die.
        hosts: the host of each die.
        faults: in any order; those that have happened are removed, so that a second engine goes on with the rest.
        clock: advanced by ``wait``.
        busy: the plan that each worker judges.
        seed: of durations.
        spared: plans that have lost a worker: no other one is lost with them, as two would blame them.
        active: faults that last, with their dies.
        deadly: trials that end the machine that they run on.
    """

    make: Callable[[], FakeRunner]
    hosts: Sequence[str]
    faults: list[Fault]
    clock: VirtualTime
    seed: int = 0
    spared: set[Plan] = field(default_factory=set)
    active: set[tuple[str, int]] = field(default_factory=set)
    deadly: Collection[int] = ()

    def __post_init__(self) -> None:
        self._order, self._lives = itertools.count(), itertools.count()
        self._events: list[tuple[float, int, Worker | None, Callable[[], Sequence[EngineEvent]]]] = []
        self._runners: dict[Worker, FakeRunner] = {}
        self.busy: dict[Worker, Plan] = {}
        self._discarded: set[str] = set()
        self._random = random.Random(self.seed)
        self.is_open = False

    def __enter__(self) -> Self:
        self.is_open = True
        for die in range(len(self.hosts)):
            self._start(die, 0.0)
        for fault in tuple(self.faults):
            self._at(max(0.0, START_S + fault.at_s - self.clock.now_s), None, partial(self._strike, fault))
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False
        self._runners.clear()

    def submit(self, worker: Worker, call: RunnerCall, /) -> None:
        """See ``Engine.submit``."""
        die = self._index(worker)
        if ("hangs", die) in self.active:
            self._at(0.1, worker, lambda: [Began(worker, call.number)])
            return
        delay_s = self._duration_s(call) * (3.0 if ("slow", die) in self.active else 1.0)
        if isinstance(call.job, Judge):
            self.busy[worker] = call.job.plan
            self._at(0.1, worker, lambda: [Began(worker, call.number), StageBegan(worker, call.number, "compile")])
        self._at(delay_s, worker, lambda: self._answer(worker, call))

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:
        """See ``Engine.wait``."""
        if not self._events or self._events[0][0] > self.clock.now_s + timeout_s:
            self.clock.now_s += timeout_s
            return
        at_s, _, worker, happens = heapq.heappop(self._events)
        self.clock.now_s = max(self.clock.now_s, at_s)
        if worker is None or worker in self._runners:
            for event in happens():
                on_event(event)

    def discard(self, worker: Worker, /) -> None:
        """See ``Engine.discard``."""
        self._discarded.add(worker.die)
        self._runners.pop(worker, None)
        self.busy.pop(worker, None)

    def _at(self, delay_s: float, worker: Worker | None, happens: Callable[[], Sequence[EngineEvent]]) -> None:
        heapq.heappush(self._events, (self.clock.now_s + delay_s, next(self._order), worker, happens))

    def _index(self, worker: Worker) -> int:
        return int(worker.die.removeprefix("die "))

    def _start(self, die: int, delay_s: float) -> None:
        worker = Worker(f"die {die}", self.hosts[die], str(next(self._lives)))

        def join() -> Sequence[EngineEvent]:
            if worker.die in self._discarded:
                return ()
            self._runners[worker] = self.make()
            return [Joined(worker)]

        self._at(delay_s, None, join)

    def _duration_s(self, call: RunnerCall) -> float:
        longest_s = {OpenTarget: OPEN_S, Judge: JUDGE_S}.get(type(call.job), OTHER_S)
        return longest_s * self._random.uniform(0.5, 1.5)

    def _answer(self, worker: Worker, call: RunnerCall) -> Sequence[EngineEvent]:
        self.busy.pop(worker, None)
        die, runner = self._index(worker), self._runners[worker]
        trial = call.job if isinstance(call.job, Judge) else None
        if trial and int(trial.log[6:10]) in self.deadly:
            self._start(die, RESTART_S)
            return self._lose(die, "the node died")
        try:
            value: Any = runner.open() if isinstance(call.job, OpenTarget) else runner.run(call.job)
        except (SktuneError, OutOfTimeError) as failure:
            return [Raised(worker, call.number, failure)]
        if trial:
            value = self._spoilt(die, trial, value)
        answers: list[EngineEvent] = [Answered(worker, call.number, value)]
        if ("lost after", die) in self.active and trial and trial.plan not in self.spared:
            self.active.discard(("lost after", die))
            self.spared.add(trial.plan)
            self._start(die, RESTART_S)
            return [*self._lose(die, "the node died"), *answers]
        if ("twice", die) in self.active:
            answers *= 2
        if ("partition", die) in self.active:  # the answer arrives when all is over
            late = tuple(answers)
            self._at(LATE_S, None, lambda: late)
            return ()
        return answers

    def _spoilt(self, die: int, request: Judge, outcome: Outcome) -> Outcome:
        """Return what a faulty die makes of an outcome."""
        if ("hangs plans", die) in self.active:
            return Outcome(Reason.TIMEOUT, "measure did not end within 60 s", stage=Stage.MEASURE)
        if ("killed", die) in self.active:
            self.active.discard(("killed", die))
            return Outcome(Reason.CRASHED, "the worker was killed by SIGKILL", stage=Stage.MEASURE)
        if ("flips", die) in self.active and self._random.random() < 0.7:
            return Outcome(Reason.MISMATCH, "seed 0, step 3: logits[0, 7]", stage=Stage.VERIFY)
        if ("slow", die) in self.active and outcome.speedup:
            # It slows down in the middle of a measurement, so that ratios are wrong, too.
            wrong = replace(outcome.speedup, baseline_ms=3 * outcome.speedup.baseline_ms, ratio=9.9, ci95=(9.8, 10.0))
            return replace(outcome, speedup=wrong, reason=None)
        return outcome

    def _strike(self, fault: Fault) -> Sequence[EngineEvent]:
        busy = next((plan for worker, plan in self.busy.items() if self._index(worker) == fault.die), None)
        loses = fault.kind in ("node lost while judging", "actor killed")
        if loses and (busy is None or busy in self.spared):
            self._at(0.5, None, lambda: self._strike(fault))  # not now
            return ()
        self.faults.remove(fault)
        if fault.kind == "coordinator killed":
            raise KilledError
        if loses:
            assert busy is not None
            self.spared.add(busy)
            is_host = fault.kind == "node lost while judging"
            events = self._lose(fault.die, "the node died" if is_host else "the actor died")
            self._start(fault.die, RESTART_S)
            return events
        lasting = {"node lost after the result": "lost after", "subprocess killed": "killed", "results twice": "twice",
                   "partition": "partition", "slow die": "slow", "bit flips": "flips", "die hangs": "hangs",
                   "die hangs its plans": "hangs plans"}  # fmt: skip
        self.active.add((lasting[fault.kind], fault.die))
        return ()

    def _lose(self, die: int, why: str) -> list[EngineEvent]:
        gone = [worker for worker in self._runners if self._index(worker) == die]
        for worker in gone:
            del self._runners[worker]
            self.busy.pop(worker, None)
        return [Lost(worker, why) for worker in gone]
