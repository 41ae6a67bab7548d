"""The interface of every engine: it carries calls to the runners of many workers, and tells what became of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from sktune.core.errors import OutOfTimeError, SktuneError
from sktune.worker.jobs import DurationEstimates, Job, Judge, Opened, OpenTarget, Runner


@dataclass(frozen=True, slots=True)
class Worker:
    """One life of a runner that has a die to itself.

    Attributes:
        die: what it measures on, unique in the engine; a worker that replaces a lost one has the same.
        host: the machine, on which other workers may be.
        life: unique to this worker.
    """

    die: str
    host: str = ""
    life: str = ""

    def __str__(self) -> str:
        return self.die


@dataclass(frozen=True, slots=True)
class RunnerCall:
    """A job for one worker.

    Attributes:
        number: unique to this call.
        job: what to do.
        deadline_s: the runner's deadline, on the clock of this process.
    """

    number: int
    job: Job[Any] | OpenTarget
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that happened to a worker."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Joined(EngineEvent):
    """It can be called."""


@dataclass(frozen=True, slots=True)
class Lost(EngineEvent):
    """It ended, or is out of reach, and what it was doing is void."""

    why: str


@dataclass(frozen=True, slots=True)
class Began(EngineEvent):
    """It has begun a call, which may have waited until then."""

    call: int


@dataclass(frozen=True, slots=True)
class StageBegan(EngineEvent):
    """Its call has reached a stage."""

    call: int
    stage: str


@dataclass(frozen=True, slots=True)
class Answered(EngineEvent):
    """Its call has returned ``value``."""

    call: int
    value: Any


@dataclass(frozen=True, slots=True)
class Raised(EngineEvent):
    """Its call has raised an error; ``was_open`` says whether the target could be opened before a plan was judged."""

    call: int
    error: Exception
    was_open: bool = True


OnEvent = Callable[[EngineEvent], None]


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

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Runner.pace``; no worker is asked."""
        ...


def perform(runner: Runner, worker: Worker, call: RunnerCall, on_event: OnEvent) -> None:
    """Perform a call on a runner, and report it as an engine does."""
    runner.deadline_s = call.deadline_s
    on_event(Began(worker, call.number))
    job, was_open = call.job, not isinstance(call.job, Judge)
    try:
        if isinstance(job, OpenTarget):
            value: Any = runner.open()
        else:
            if not was_open:
                runner.open()
                was_open = True
            value = runner.run(job, lambda stage: on_event(StageBegan(worker, call.number, str(stage))))
    except (SktuneError, OutOfTimeError, OSError) as failure:
        on_event(Raised(worker, call.number, failure, was_open))
    else:
        on_event(Answered(worker, call.number, value))
