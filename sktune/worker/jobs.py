"""Jobs: what a worker is asked for, as frozen values, the interfaces of what does them, and what is heard of it.

A job goes to whichever ``Runner`` is to do it; there its ``run`` calls the method of a ``Bench`` that does the work, in
the worker's own process. Whoever runs jobs on many workers gives each a ``RunnerCall``, and hears of it in events.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, TypeVar

from pydantic import Field

from sktune.core.delivery import Delivery
from sktune.core.errors import OutOfTimeError, SktuneError
from sktune.core.layout import Layout
from sktune.core.outcome import MAX_FINALISTS, MAX_SHORTLISTED, FinalRow, Outcome, Stage
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.core.verification import Verification
from sktune.measure.latency import Measurement
from sktune.measure.machine import Placement
from sktune.measure.noise_floor import NoiseFloorSample, Threshold
from sktune.targets import TargetSpec

if TYPE_CHECKING:
    from sktune.recipes.peers import Peer

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
NamedPlan = tuple[str, Plan]
"""A plan, with its trial's number as its name."""

Report = Callable[[str], None]
"""Called with each stage as it begins; see ``sktune.core.outcome.Stage``."""


SCRATCH = "SKTUNE_SCRATCH"
"""Variable of a worker's environment: the folder for temporary files of compilers, deleted when it has ended."""


def silent(stage: str) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class DurationEstimates:
    """How long the parts of a study take.

    Attributes:
        opening_s: from the start of a process until its baseline is ready.
        trial_s: one trial.
        finalist_s: one more plan in the final comparison, its compiled code cached where that is possible.
        max_finalists: most plans in the final comparison.
        processes: number of fresh processes in which they are compared.
    """

    opening_s: float
    trial_s: float
    finalist_s: float
    max_finalists: int
    processes: int

    @property
    def final_s(self) -> float:
        """The whole final comparison."""
        return self.processes * (self.opening_s + self.max_finalists * self.finalist_s)


Estimate = Callable[["Opened", Sequence[Mapping[str, float]]], DurationEstimates]
"""Estimates durations from what was opened first, and the seconds by stage of the latest trials, at least of one."""
MIN_FINALIST_S = 0.01


def durations_in_one_process(opened: "Opened", trials: Sequence[Mapping[str, float]]) -> DurationEstimates:
    """Estimate durations where a process runs many plans: a finalist is compiled from the cache."""
    trial_s = median(sum(seconds.values()) for seconds in trials)
    finalist_s = median(sum(seconds.values()) - seconds.get("compile", 0.0) for seconds in trials)
    return opened.traits.durations(sum(opened.seconds.values()), trial_s, max(finalist_s, MIN_FINALIST_S))


def durations_in_fresh_processes(opened: "Opened", trials: Sequence[Mapping[str, float]]) -> DurationEstimates:
    """Estimate durations where each plan needs a process of its own, which opens the target."""
    opening_s, plan_s = sum(opened.seconds.values()), median(sum(seconds.values()) for seconds in trials)
    return opened.traits.durations(opening_s, opening_s + plan_s, max(plan_s, MIN_FINALIST_S))


@dataclass(frozen=True, slots=True)
class RunnerTraits:
    """What a search needs to know about a runner.

    Attributes:
        measures_time: whether figures are measured; otherwise they are computed, free of noise, and no bits are
            compared.
        max_finalists: most plans in one process of the final comparison.
        max_shortlisted: most plans that ``shortlist`` may rank; no more than ``max_finalists`` where it is costly
            to hold many plans in one process.
        final_processes: number of fresh processes in which finalists are compared.
        has_references: whether the final comparison can include what a user has without sktune.
        estimate: estimates how long the parts of the study will take.
    """

    measures_time: bool = True
    max_finalists: int = MAX_FINALISTS
    max_shortlisted: int = MAX_SHORTLISTED
    final_processes: int = 1
    has_references: bool = True
    estimate: Annotated[Estimate, Field(exclude=True)] = durations_in_one_process

    def durations(self, opening_s: float, trial_s: float, finalist_s: float) -> DurationEstimates:
        """Return these durations, with the final comparison's numbers of plans and processes."""
        return DurationEstimates(opening_s, trial_s, finalist_s, self.max_finalists, self.final_processes)


@dataclass(frozen=True, slots=True)
class Opened:
    """A target that a runner has opened.

    Attributes:
        layout: of the traced decode step.
        description: what is tuned, in one line.
        seconds: ``load`` (imports, model, prefill, trace) and ``baseline`` (import of the compiler, capture,
            compile, verify).
        facts: other values that the study stores.
        modules: digests of the modules imported with the target; see ``sktune.core.contents``.
        traits: what the runner can do.
        baseline_digest: of the bits that the baseline computes, equal on all sound dies; empty if unknown.
    """

    layout: Layout
    description: str
    seconds: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    traits: RunnerTraits = RunnerTraits()
    baseline_digest: str = ""


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """Opens the target, unless it is open; see ``Runner.open``."""


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Loads the model in a worker's process, traces its layout, and captures and records the baseline.

    Attributes:
        spec: the stored form of the target's spec.
        space: which of its modules are units.
        delivered: folder and description of compiled code to load before anything is compiled.
        is_first: whether this is the first worker, which also finds out what later ones need not know.
    """

    answer: ClassVar[Any] = Opened
    log: ClassVar[str] = "worker.log"
    spec: Mapping[str, Any]
    space: SpaceSpec
    delivered: tuple[Path, Delivery] | None = None
    is_first: bool = True


@dataclass(frozen=True, slots=True)
class CheckMachine:
    """Compiles one operator, if that is cheap, to tell a compiler that fails from a plan that does."""

    answer: ClassVar[Any] = bool
    log: str

    def run(self, bench: "Bench", report: Report) -> bool:
        """Return True; see ``Bench.check_machine``."""
        report(Stage.COMPILE)
        bench.check_machine()
        return True


@dataclass(frozen=True, slots=True)
class Judge:
    """One trial.

    Attributes:
        plan: the plan to judge.
        log: file name of the trial's log; the file with its samples is named after it.
        known: numbers of finished trials, by fusion digest.
        threshold: the figure to beat; a plan that cannot beat it is measured only until that is certain.
        banned: regions known to differ from their own kernels: the difference, by the region's key.
    """

    answer: ClassVar[Any] = Outcome
    plan: Plan
    log: str
    known: Mapping[str, int] = field(default_factory=dict)
    threshold: Threshold = field(default_factory=Threshold)
    banned: Mapping[str, str] = field(default_factory=dict)

    def run(self, bench: "Bench", report: Report) -> Outcome:
        """See ``Bench.judge``."""
        return bench.judge(self, report)


@dataclass(frozen=True, slots=True)
class SampleNoiseFloor:
    """Compares the baseline with a second copy of itself.

    Attributes:
        before_trial: number of the trial that comes next.
    """

    answer: ClassVar[Any] = NoiseFloorSample | None
    before_trial: int

    def run(self, bench: "Bench", report: Report) -> NoiseFloorSample | None:
        """See ``Bench.sample_noise_floor``."""
        return bench.sample_noise_floor(self, report)

    @property
    def log(self) -> str:
        """File name of its log."""
        return f"floor-{self.before_trial:04d}.log"


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Ranks plans, as a trial's figure can be 20% off.

    Attributes:
        plans: names and plans.
    """

    answer: ClassVar[Any] = list[str]
    log: ClassVar[str] = "qualifying.log"
    plans: Sequence[NamedPlan]

    def run(self, bench: "Bench", report: Report) -> list[str]:
        """See ``Bench.shortlist``."""
        return bench.shortlist(self, report)


@dataclass(frozen=True, slots=True)
class Verify:
    """Compares a plan with the baseline far more thoroughly than its trial did.

    Attributes:
        name: of the plan; its log is named after it.
        plan: the plan.
        steps: fewest decode steps to compare.
        seconds: time limit, without compilation; None for no limit. If it is reached, fewer steps are compared and the
            bound is weaker.
        banned: as in ``Judge``.
    """

    answer: ClassVar[Any] = Verification | None
    name: str
    plan: Plan
    steps: int
    seconds: float | None = None
    banned: Mapping[str, str] = field(default_factory=dict)

    def run(self, bench: "Bench", report: Report) -> Verification | None:
        """See ``Bench.verify``."""
        return bench.verify(self, report)

    @property
    def log(self) -> str:
        """File name of its log."""
        return f"verify-{self.name}.log"


@dataclass(frozen=True, slots=True)
class ProcessComparison:
    """The result of one process of the final comparison.

    Attributes:
        rows: the baseline first.
        noise: what disturbed it; empty if nothing did.
        die: that it ran on, if the search has several; empty otherwise. A runner does not know.
    """

    rows: Sequence[FinalRow]
    noise: str = ""
    die: str = ""


@dataclass(frozen=True, slots=True)
class Compare:
    """Compares finalists with the baseline in one fresh process.

    Attributes:
        plans: names and plans.
        process: number of the process, from 1; its log and its samples are named after it.
        references: whether to include what a user has without sktune; only where the runner's traits allow it.
        is_followed: whether another process compares after this one, so that it may start while this one compiles.
        alone: name of the only plan, where the others have a process each; empty otherwise.
    """

    answer: ClassVar[Any] = ProcessComparison
    plans: Sequence[NamedPlan]
    process: int = 1
    references: bool = False
    is_followed: bool = False
    alone: str = ""

    def run(self, bench: "Bench", report: Report) -> ProcessComparison:
        """See ``Bench.compare``."""
        return bench.compare(self, report)

    @property
    def log(self) -> str:
        """File name of its log."""
        return f"final-{self.process}{f'-{self.alone}' if self.alone else ''}.log"


@dataclass(frozen=True, slots=True)
class Deliver:
    """Writes the compiled code of a plan into a folder."""

    answer: ClassVar[Any] = Delivery | None
    log: ClassVar[str] = "deliver.log"
    plan: Plan
    folder: Path

    def run(self, bench: "Bench", report: Report) -> Delivery | None:
        """See ``Bench.deliver``."""
        return bench.deliver(self, report)


class Progress:
    """What becomes known while a job is done. Nobody listens, unless a subclass does."""

    def heartbeat(self) -> None:
        """Go on: called from time to time during measurements."""

    def scope(self, label: str) -> None:
        """Take the label of a scope as it is compiled or first run."""

    def scored(self, outcome: Outcome) -> None:
        """Take an outcome before its scopes are timed, which adds only ``scope_times`` and ``seconds``."""

    def measured(self, names: Sequence[str], measurement: Measurement) -> None:
        """Take the names of the contenders of a measurement, and all their samples."""


class Bench(Protocol):
    """Does jobs on one target. Methods call ``report`` as each stage begins."""

    def check_machine(self) -> None:
        """Compile one operator, if that is cheap; raise what keeps the machine from it."""
        ...

    def judge(self, job: Judge, report: Report, /) -> Outcome:
        """Run one trial. Failures of the plan are outcomes.

        Raises:
            SktuneError: no trial can run any more.
        """
        ...

    def sample_noise_floor(self, job: SampleNoiseFloor, report: Report, /) -> NoiseFloorSample | None:
        """Compare the baseline with a second copy of itself; None where nothing is measured."""
        ...

    def shortlist(self, job: Shortlist, report: Report, /) -> list[str]:
        """Measure the plans again side by side; return their names, the fastest first."""
        ...

    def verify(self, job: Verify, report: Report, /) -> Verification | None:
        """Compare a plan with the baseline.

        A plan that cannot be run has that as its difference. None if no more of it was compared than in its trial,
        whose verification stands.

        Raises:
            BackendError: the baseline does not run.
            NotDeterministicError: the baseline is not deterministic.
        """
        ...

    def compare(self, job: Compare, report: Report, /) -> ProcessComparison:
        """Compare plans with the baseline; a plan that does not run has a row without a speedup.

        Raises:
            BackendError: the baseline does not run.
        """
        ...

    def deliver(self, job: Deliver, report: Report, /) -> Delivery | None:
        """Write the compiled code of a plan into a folder; None where the code cannot be exported.

        Raises:
            BackendError: the plan does not compile to the same code again, or the folder cannot be written.
        """
        ...


class Job(Protocol[T_co]):
    """What one worker is asked for: a frozen value, whose class names the type of the answer in ``answer``."""

    answer: ClassVar[Any]

    @property
    def log(self) -> str:
        """File name of its log, below ``logs/`` in the study's folder."""
        ...

    def run(self, bench: Bench, report: Report, /) -> T_co:
        """Have ``bench`` do it, and return its answer; ``report`` is called with each stage as it begins."""
        ...


class Runner(Protocol):
    """Does jobs on a target that it opens if necessary, and outlives whatever a plan does to its process.

    A context manager: entering it may start what opening will need, and leaving it ends everything that was started.

    Attributes:
        deadline_s: time by which every job must end, on the clock of ``time.monotonic``.
    """

    deadline_s: float

    def __enter__(self) -> Self:
        """Start early what takes long and will be needed."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close."""
        ...

    def close(self) -> None:
        """End everything that was started, without waiting; a later job starts it again."""
        ...

    def open(self) -> Opened:
        """Open the target and run its baseline; a target that is open and still usable is not opened again.

        Raises:
            TargetError: the target cannot be tuned.
            BackendError: the baseline does not run.
            NotDeterministicError: the baseline is not deterministic.
        """
        ...

    def run(self, job: Job[T], report: Report = silent, /) -> T:
        """Do a job; see the method of ``Bench`` that it names.

        A plan that kills its process has that as its outcome, difference or row.

        Raises:
            BackendError: the process died where no plan is judged, verified or compared.
            OutOfTimeError: at ``deadline_s``.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunnerSetup:
    """What a runner is made from.

    Attributes:
        spec, space: the target to open, and which of its modules are units.
        folder: the study's folder; logs go to ``logs/`` in it.
        cache: folder of the compilers' caches.
        compile_timeout_s: time limit for one compilation; a recipe sets its own limit.
        delivered: compiled code to load before anything is compiled, as its folder and its description.
        placement: cores and threads of the processes that time steps; other runners than sktune's worker ignore it.
        variables: further environment variables of the worker, which keep it to its die.
        host: subfolder of logs and caches for a program whose runs are on several hosts, which may share the folders.
        hosts: on which each run of a program is, this one first; empty for this one alone.
    """

    spec: TargetSpec
    space: SpaceSpec
    folder: Path
    cache: Path
    compile_timeout_s: float = 300.0
    delivered: tuple[Path, Delivery] | None = None
    placement: Placement = field(default_factory=Placement)
    variables: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    hosts: "Sequence[Peer]" = ()


RunnerFactory = Callable[[RunnerSetup], Runner]


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


GIVEN_BACK = "it is not needed for the final comparison, and free for another search"
"""Why a worker is lost that the search has given back itself."""


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
