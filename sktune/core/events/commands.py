"""Events of the commands on models, plans, profiles and machines, and of any command that fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from sktune.core.errors import ExitCode
from sktune.core.events.base import ABSENT, Absent, Event
from sktune.core.events.values import (
    Count,
    Interval,
    Options,
    Positive,
    ProfileComparison,
    ProfileFigures,
)
from sktune.core.layout import Layer, UnitShown
from sktune.core.plan import Option
from sktune.core.verification import VerificationSummary


@dataclass(frozen=True, slots=True)
class NotModelled:
    """A part of the compiler that sktune does not model.

    Attributes:
        what: the part.
        consequence: for what is foreseen or simulated.
    """

    what: str
    consequence: str


class State(StrEnum):
    """Whether a requirement is met."""

    OK = "ok"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """A requirement of a backend, and its state on this machine.

    Attributes:
        backend: that needs it.
        what: the requirement.
        state: whether it is met.
        found: what was found.
        fix: how to meet it; empty if it is met.
    """

    backend: str
    what: str
    state: State
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A constant of the simulated device, before and after it was fitted.

    Attributes:
        name: of the constant.
        unit: of all its figures.
        before: its old value.
        after: its new value; null if the profiles do not determine it.
        standard_error: of the fit.
        note: why it was not fitted.
    """

    name: str
    unit: str
    before: float
    after: float | None = None
    standard_error: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TrialForetold:
    """A trial that a search would begin with, whatever its results.

    Attributes:
        trial: its number.
        origin: a starting point's name, or the sampler's.
        shape: of its plan, in a few words.
        refused: why it ends without a run; empty if it runs.
        seconds: of its run, compilation assumed.
    """

    trial: Count
    origin: str
    shape: str
    refused: str
    seconds: Positive


@dataclass(frozen=True, slots=True)
class DurationForetold:
    """How long a whole search takes.

    Attributes:
        trials: of the search.
        runs: of the program, all included.
        seconds: of these, compilation assumed.
        compile_seconds: the assumed part.
    """

    trials: Count
    runs: Count
    seconds: Positive
    compile_seconds: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed(Event):
    """`search --rehearse`: what the first start of a recipe's program has shown, and what a search would do.

    Attributes:
        recipe: its name.
        can_start: whether a search could start here; the exit code is 0 only then.
        findings: of `doctor --recipe`.
        stand_ins: modules that were stand-ins, as they are not installed.
        decode: the function that is the decode step.
        ranks: processes that run it.
        units, layers: numbers of them in the step.
        kinds: number of layers of each kind.
        plans: number of distinct plans in the space.
        decode_steps: in one run.
        loading_seconds: from the start to the first decode step.
        step_seconds: of an eager decode step, with what the program does between two.
        seconds: of the whole start.
        assumed_compile_seconds: of each later run; nothing has been compiled.
        first_trials: that do not depend on results.
        starting_points: names of those that the sampler tries next, in an order that depends on results.
        durations: for several numbers of trials.
    """

    event: ClassVar[str] = "rehearsal"
    recipe: str
    can_start: bool
    findings: Sequence[Finding]
    stand_ins: Sequence[str]
    decode: str
    ranks: Count
    units: Count
    layers: Count
    kinds: Mapping[str, Count]
    plans: Count
    decode_steps: Count
    loading_seconds: Positive
    step_seconds: Positive
    seconds: Positive
    assumed_compile_seconds: Positive
    first_trials: Sequence[TrialForetold]
    starting_points: Sequence[str]
    durations: Sequence[DurationForetold]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Event):
    """`inspect`: what there is to tune in a model.

    Attributes:
        description: the model in one line.
        units: of the decode step, in execution order.
        layers: in execution order.
        kinds: keys of the units by layer kind.
        plans: number of distinct plans in the space.
        parameters: of the space, each with its values.
        starting_points: by name: values of the parameters.
    """

    event: ClassVar[str] = "inspected"
    description: str
    units: Sequence[UnitShown]
    layers: Sequence[Layer]
    kinds: Mapping[str, Sequence[str]]
    plans: Count
    parameters: Mapping[str, Sequence[Option]]
    starting_points: Mapping[str, Options]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked(Event):
    """`recheck`: whether an earlier plan is still valid here.

    Attributes:
        plan: the file.
        verdict: in a few words.
        exit_code: of the command.
        code: whether the code is still the code that was verified.
        changes: since the plan was found, as lines for people.
        verification: what was compared.
        baseline_ms, latency_ms: of a decode step; null if the bits differ, or there is no scope.
        speedup, ci95: against the baseline, with its 95% interval; null as these.
        shape: whose plan it is, if the file has plans for several shapes.
    """

    event: ClassVar[str] = "rechecked"
    plan: str
    verdict: Annotated[str, ("enum", ("keep", "slower now", "bits differ", "no scope"))]
    exit_code: Annotated[int, ("enum", (ExitCode.DONE, ExitCode.SLOWER_NOW, ExitCode.BITS_DIFFER))]
    code: str
    changes: Sequence[str]
    verification: VerificationSummary
    baseline_ms: float | None
    latency_ms: float | None
    speedup: float | None
    ci95: Interval | None
    shape: str | Absent = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanApplied(Event):
    """`apply`: a plan was turned into a change of a model's source.

    Attributes:
        files: that it changes.
        written: whether the files were changed; otherwise only the diff was made.
        notes: lines for people.
        diff: for `git apply`.
    """

    event: ClassVar[str] = "plan_applied"
    files: Sequence[str]
    written: bool
    notes: Sequence[str]
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUndone(Event):
    """`apply --undo`: the original files were restored.

    Attributes:
        files: that were restored.
    """

    event: ClassVar[str] = "plan_undone"
    files: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFinished(ProfileFigures, Event):
    """`profile`: where a decode step's time goes.

    Attributes:
        warnings: what was left out or assumed, and other reasons to trust the figures less.
        comparison: present if there is a candidate: its SuperKernels, and the operators that they replace.
    """

    event: ClassVar[str] = "profile_finished"
    warnings: Sequence[str]
    comparison: ProfileComparison | Absent = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinished(Event):
    """`doctor`: which of sktune's requirements this machine meets.

    Attributes:
        backends: that can be used here.
        findings: one for each requirement.
        not_modelled: what is left out where a compiler's answer is foreseen or simulated.
    """

    event: ClassVar[str] = "doctor_finished"
    backends: Sequence[str]
    findings: Sequence[Finding]
    not_modelled: Sequence[NotModelled]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateFinished(Event):
    """`calibrate`: constants of the simulated device were fitted.

    Attributes:
        constants: the file.
        fitted: each constant.
    """

    event: ClassVar[str] = "calibrate_finished"
    constants: str
    fitted: Sequence[Fitted]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeWritten(Event):
    """`recipe init`: a recipe was written.

    Attributes:
        recipe: the file.
        found, to_do, unknown: lines for people.
    """

    event: ClassVar[str] = "recipe_written"
    recipe: str
    found: Sequence[str]
    to_do: Sequence[str]
    unknown: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInstalled(Event):
    """`agent install`: a skill and a subagent are installed where agents look for them.

    Attributes:
        written, unchanged: files.
    """

    event: ClassVar[str] = "agent_installed"
    written: Sequence[str]
    unchanged: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFailed(Event):
    """The last line of any command that failed.

    Attributes:
        message: the line that is also printed on standard error.
        exit_code: of the command.
    """

    event: ClassVar[str] = "error"
    message: str
    exit_code: Annotated[int, ("enum", (ExitCode.FAILED, ExitCode.BAD_INPUT))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStopped(Event):
    """The last line of any command that was interrupted; the same command resumes it.

    Attributes:
        message: the line that is also printed on standard error.
        exit_code: of the command.
    """

    event: ClassVar[str] = "stopped"
    message: str
    exit_code: Annotated[int, ("enum", (ExitCode.FAILED,))]


COMMAND_EVENTS: tuple[type[Event], ...] = (
    Rehearsed, Inspected, Rechecked, PlanApplied, PlanUndone, ProfileFinished, DoctorFinished, CalibrateFinished,
    RecipeWritten, AgentInstalled, CommandFailed, CommandStopped,
)  # fmt: skip
