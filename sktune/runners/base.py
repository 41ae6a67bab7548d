"""What every runner gives: it opens a target, judges plans one by one, and compares the best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from sktune.core.delivery import Delivery
from sktune.core.layout import Layout
from sktune.core.outcome import FinalRow, Outcome
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.core.verification import Verification
from sktune.measure.noise_floor import NoiseFloorSample, Threshold
from sktune.measure.winner import MAX_FINALISTS, MAX_SHORTLISTED
from sktune.targets import TargetSpec

NamedPlan = tuple[str, Plan]
"""A plan by the number of its trial."""

Report = Callable[[str], None]
"""Called with the stage that begins; see ``sktune.core.outcome.Stage``."""


@dataclass(frozen=True, slots=True)
class RunnerTraits:
    """What a search has to know of a runner to use it well.

    Attributes:
        measures_time: whether figures are measured; otherwise they are computed, without noise and without bits.
        most_finalists: how many plans one process of the final comparison holds at most.
        most_shortlisted: how many plans ``shortlist`` may put in order; no more than ``most_finalists`` where many
            plans in one process are costly.
        final_processes: in how many fresh processes finalists are compared.
        has_references: whether the final comparison can show what a user has without sktune.
    """

    measures_time: bool = True
    most_finalists: int = MAX_FINALISTS
    most_shortlisted: int = MAX_SHORTLISTED
    final_processes: int = 1
    has_references: bool = True


@dataclass(frozen=True, slots=True)
class Opened:
    """What a runner found when it opened the target.

    Attributes:
        layout: of the traced decode step.
        description: what is tuned, in one line.
        seconds: ``load`` (imports, model, prefill, trace) and ``baseline`` (import of the compiler, capture,
            compile, verify).
        facts: what else the study should remember.
        modules: digests of the files that the target's import brought in; see ``sktune.core.contents``.
        traits: what the runner can do.
    """

    layout: Layout
    description: str
    seconds: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    traits: RunnerTraits = RunnerTraits()


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One trial.

    Attributes:
        plan: what to judge.
        log: file name of the trial's log; its samples' file is named after it.
        known: numbers of finished trials by the digest of what they became.
        threshold: what the plan has to beat; one that cannot is measured only until that is certain.
        banned: what differs in each region that was found to differ from its kernels, by the region's key.
    """

    plan: Plan
    log: str
    known: Mapping[str, int] = field(default_factory=dict)
    threshold: Threshold = field(default_factory=Threshold)
    banned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Plans to compare with the baseline far more than their trials did.

    Attributes:
        plans: names and plans.
        steps: decode steps to compare.
        seconds: most time for all plans, compiling apart; None for what it takes.
        banned: as in ``JudgeRequest``.
    """

    plans: Sequence[NamedPlan]
    steps: int
    seconds: float | None = None
    banned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Finalists to compare in one fresh process.

    Attributes:
        plans: names and plans.
        process: number of the process, from 1; its log and its samples are named after it.
        references: adds what a user has without sktune, where the runner's traits say that it can.
    """

    plans: Sequence[NamedPlan]
    process: int = 1
    references: bool = False


@dataclass(frozen=True, slots=True)
class ProcessComparison:
    """What one process of the final comparison has found: the rows, the baseline first, and what disturbed it."""

    rows: Sequence[FinalRow]
    noise: str = ""


@dataclass(frozen=True, slots=True)
class DurationEstimates:
    """How long things take in a study.

    Attributes:
        opening_s: until a fresh process has its baseline.
        trial_s: one trial.
        finalist_s: one more plan in the final comparison, where what it compiles to is found again.
        most_finalists: how many plans the final comparison takes at most.
        processes: in how many fresh processes it compares them.
    """

    opening_s: float
    trial_s: float
    finalist_s: float
    most_finalists: int
    processes: int

    @property
    def final_s(self) -> float:
        """The whole final comparison."""
        return self.processes * (self.opening_s + self.most_finalists * self.finalist_s)


class Runner(Protocol):
    """Runs plans of one target, and reports what becomes of them.

    A context manager: entering it may begin what opening will need, leaving it ends everything that was started.
    Methods that take a ``report`` call it with each stage that begins. All of them open the target where that is
    needed, and raise ``OutOfTimeError`` at ``deadline_s``.

    Attributes:
        deadline_s: when every request has to be over, on the clock of ``time.monotonic``.
    """

    deadline_s: float

    def __enter__(self) -> Self:
        """Begin what takes long and will be needed."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close."""
        ...

    def close(self) -> None:
        """End what was started, at once; a later request starts anew."""
        ...

    def open(self) -> Opened:
        """Return what is tuned, once its baseline runs; what is open and can be used again stays so.

        Raises:
            TargetError: nothing that can be tuned.
            BackendError: the baseline does not run.
            NotDeterministicError: the baseline differs from itself.
        """
        ...

    def judge(self, request: JudgeRequest, report: Report, /) -> Outcome:
        """Run one trial. Whatever the plan does, to its process too, is the outcome.

        Raises:
            SktuneError: nothing can be run any more.
        """
        ...

    def sample_noise_floor(self, before_trial: int, /) -> NoiseFloorSample | None:
        """Compare the baseline, compiled once more, with itself; None where nothing is measured.

        Raises:
            BackendError: the baseline does not survive it.
        """
        ...

    def shortlist(self, plans: Sequence[NamedPlan], report: Report, /) -> list[str]:
        """Return the names of the plans, the fastest first, as measured again side by side.

        Raises:
            BackendError: the process does not survive it.
        """
        ...

    def verify(self, request: VerifyRequest, report: Report, /) -> dict[str, Verification]:
        """Return what was compared of each plan, by name; a plan that breaks its process has that for its difference.

        Nothing is returned of a plan of which no more was compared than in its trial: that stands.

        Raises:
            BackendError: the baseline does not run.
            NotDeterministicError: the baseline differs from itself.
        """
        ...

    def compare(self, request: CompareRequest, report: Report, /) -> ProcessComparison:
        """Compare plans with the baseline in a fresh process; one that breaks it has a row without a speedup.

        Raises:
            BackendError: the baseline alone does not survive it.
        """
        ...

    def deliver(self, plan: Plan, folder: Path, report: Report, /) -> Delivery | None:
        """Write the compiled code of ``plan`` into ``folder``; None where it cannot be handed over.

        Raises:
            BackendError: the plan does not compile to the same code again, or the folder cannot be written.
        """
        ...

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """Return how long things will take.

        Args:
            opened: what the first ``open`` returned.
            trials: seconds by stage of the last trials, at least one.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunnerSetup:
    """What a runner is made from.

    Attributes:
        spec, space: what it opens, and what is a unit of it.
        folder: the study's folder; logs go to ``logs/`` in it.
        cache: folder of the compilers' caches.
        compile_timeout_s: most time for one compile, where that is not the target's to say.
        delivered: compiled code to load before anything is compiled, and the folder that it lies in.
    """

    spec: TargetSpec
    space: SpaceSpec
    folder: Path
    cache: Path
    compile_timeout_s: float = 300.0
    delivered: tuple[Path, Delivery] | None = None


RunnerFactory = Callable[[RunnerSetup], Runner]
