"""The interface of every runner: it opens a target, judges plans one by one, and compares the best.

What a runner can be asked for is a ``RunnerJob``: a value, which goes to whichever worker is to do it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from sktune.core.delivery import Delivery
from sktune.core.layout import Layout
from sktune.core.outcome import FinalRow, Outcome
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.core.verification import Verification
from sktune.measure.noise_floor import NoiseFloorSample, Threshold
from sktune.measure.placement import Placement
from sktune.measure.winner import MAX_FINALISTS, MAX_SHORTLISTED
from sktune.targets import TargetSpec

if TYPE_CHECKING:
    from sktune.recipes.peers import Peer

T_co = TypeVar("T_co", covariant=True)
NamedPlan = tuple[str, Plan]
"""A plan, with its trial's number as its name."""

Report = Callable[[str], None]
"""Called with each stage as it begins; see ``sktune.core.outcome.Stage``."""


def silent(stage: str) -> None:
    """Report nothing."""


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
    """

    measures_time: bool = True
    max_finalists: int = MAX_FINALISTS
    max_shortlisted: int = MAX_SHORTLISTED
    final_processes: int = 1
    has_references: bool = True


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
class JudgeRequest:
    """One trial.

    Attributes:
        plan: the plan to judge.
        log: file name of the trial's log; the file with its samples is named after it.
        known: numbers of finished trials, by fusion digest.
        threshold: the figure to beat; a plan that cannot beat it is measured only until that is certain.
        banned: regions known to differ from their own kernels: the difference, by the region's key.
    """

    plan: Plan
    log: str
    known: Mapping[str, int] = field(default_factory=dict)
    threshold: Threshold = field(default_factory=Threshold)
    banned: Mapping[str, str] = field(default_factory=dict)

    def run(self, runner: "Runner", report: Report) -> Outcome:
        """See ``Runner.judge``."""
        return runner.judge(self, report)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A plan to compare with the baseline far more thoroughly than its trial did.

    Attributes:
        name: of the plan; its log is named after it.
        plan: the plan.
        steps: decode steps to compare.
        seconds: time limit, without compilation; None for no limit.
        banned: as in ``JudgeRequest``.
    """

    name: str
    plan: Plan
    steps: int
    seconds: float | None = None
    banned: Mapping[str, str] = field(default_factory=dict)

    def run(self, runner: "Runner", report: Report) -> Verification | None:
        """See ``Runner.verify``."""
        return runner.verify(self, report)


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Finalists to compare in one fresh process.

    Attributes:
        plans: names and plans.
        process: number of the process, from 1; its log and its samples are named after it.
        references: whether to include what a user has without sktune; only where the runner's traits allow it.
        is_followed: whether another process compares after this one, so that it may start while this one compiles.
    """

    plans: Sequence[NamedPlan]
    process: int = 1
    references: bool = False
    is_followed: bool = False

    def run(self, runner: "Runner", report: Report) -> "ProcessComparison":
        """See ``Runner.compare``."""
        return runner.compare(self, report)


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


class Runner(Protocol):
    """Runs the plans of one target and reports their outcomes.

    A context manager: entering it may start what ``open`` will need, and leaving it ends everything that was started.
    Methods that take a ``report`` call it as each stage begins. All of them open the target if necessary, and raise
    ``OutOfTimeError`` at ``deadline_s``.

    Attributes:
        deadline_s: time by which every request must end, on the clock of ``time.monotonic``.
    """

    deadline_s: float

    def __enter__(self) -> Self:
        """Start early what takes long and will be needed."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close."""
        ...

    def close(self) -> None:
        """End everything that was started, without waiting; a later request starts it again."""
        ...

    def open(self) -> Opened:
        """Open the target and run its baseline; a target that is open and still usable is not opened again.

        Raises:
            TargetError: the target cannot be tuned.
            BackendError: the baseline does not run.
            NotDeterministicError: the baseline is not deterministic.
        """
        ...

    def judge(self, request: JudgeRequest, report: Report, /) -> Outcome:
        """Run one trial. Whatever the plan does, even to its process, becomes the outcome.

        Raises:
            SktuneError: no trial can run any more.
        """
        ...

    def sample_noise_floor(self, before_trial: int, /) -> NoiseFloorSample | None:
        """Compare the baseline with a second copy of itself; None where nothing is measured.

        Raises:
            BackendError: the process died.
        """
        ...

    def shortlist(self, plans: Sequence[NamedPlan], report: Report, /) -> list[str]:
        """Measure the plans again side by side; return their names, the fastest first.

        Raises:
            BackendError: the process died.
        """
        ...

    def verify(self, request: VerifyRequest, report: Report, /) -> Verification | None:
        """Compare a plan with the baseline.

        A plan that kills its process has that as its difference. None if no more of it was compared than in its trial,
        whose verification stands.

        Raises:
            BackendError: the baseline does not run.
            NotDeterministicError: the baseline is not deterministic.
        """
        ...

    def compare(self, request: CompareRequest, report: Report, /) -> ProcessComparison:
        """Compare plans with the baseline in a fresh process; a plan that kills it has a row without a speedup.

        Raises:
            BackendError: the process dies even with the baseline alone.
        """
        ...

    def deliver(self, plan: Plan, folder: Path, report: Report, /) -> Delivery | None:
        """Write the compiled code of ``plan`` into ``folder``; None where the code cannot be exported.

        Raises:
            BackendError: the plan does not compile to the same code again, or the folder cannot be written.
        """
        ...

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """Estimate how long the parts of the study will take.

        Args:
            opened: returned by the first ``open``.
            trials: seconds by stage of the latest trials, at least one trial.
        """
        ...


class RunnerJob(Protocol[T_co]):
    """What one worker is asked for. A frozen value that can be pickled."""

    def run(self, runner: Runner, report: Report, /) -> T_co:
        """Have ``runner`` do it, and return its answer; ``report`` is called with each stage as it begins."""
        ...


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """Opens the target."""

    def run(self, runner: Runner, report: Report) -> Opened:  # noqa: ARG002
        """See ``Runner.open``."""
        return runner.open()


@dataclass(frozen=True, slots=True)
class SampleNoiseFloor:
    """Compares the baseline with itself."""

    before_trial: int

    def run(self, runner: Runner, report: Report) -> NoiseFloorSample | None:  # noqa: ARG002
        """See ``Runner.sample_noise_floor``."""
        return runner.sample_noise_floor(self.before_trial)


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Ranks plans."""

    plans: Sequence[NamedPlan]

    def run(self, runner: Runner, report: Report) -> list[str]:
        """See ``Runner.shortlist``."""
        return runner.shortlist(self.plans, report)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Writes the compiled code of a plan into a folder."""

    plan: Plan
    folder: Path

    def run(self, runner: Runner, report: Report) -> Delivery | None:
        """See ``Runner.deliver``."""
        return runner.deliver(self.plan, self.folder, report)


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
