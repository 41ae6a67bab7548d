"""Events of the commands that look at models, plans, profiles and machines, and how any command fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypedDict

from sktune.core.events.base import Event
from sktune.core.events.values import (
    Bottleneck,
    Count,
    Interval,
    KernelShare,
    Options,
    Share,
    VerificationSummary,
)
from sktune.core.exit_codes import ExitCode
from sktune.core.plan import Option


class UnitShown(TypedDict):
    """A unit of the decode step.

    Attributes:
        name: in the model.
        key: the same for this unit in all layers of its kind.
        layer: index of its layer; null outside of layers.
        time_share: of the step, from 0 to 1.
        place: where the model's own code puts it: a stream, a limit of cores.
    """

    name: str
    key: str
    layer: Count | None
    time_share: Share
    place: str


class LayerShown(TypedDict):
    """A layer.

    Attributes:
        name: in the model.
        kind: the same for layers of one structure.
    """

    name: str
    kind: str


class OperatorShown(TypedDict):
    """An operator or kernel.

    Attributes:
        name, type: as GE has them.
    """

    name: str
    type: str


class SuperKernelShown(TypedDict):
    """A SuperKernel that GE has formed.

    Attributes:
        name: of its kernel.
        first, last: names of the operators that it runs from and to.
        operators: what is inside, where GE's own dump says so.
        is_split: whether its scope became several SuperKernels.
    """

    name: str
    first: str
    last: str
    operators: Sequence[OperatorShown]
    is_split: bool


class SplitShown(TypedDict):
    """Where a scope was cut in two.

    Attributes:
        operator, operator_type: what runs between the two; empty where nothing does.
    """

    operator: str
    operator_type: str


class ScopeFusionShown(TypedDict):
    """What became of one scope.

    Attributes:
        label: of the scope.
        marked: the operators that carry the label.
        options: as marked.
        superkernels: in execution order.
        splits: the operators at which the scope was cut.
        left_out: operators of the scope that ran on their own, and those that ran between its SuperKernels.
        reasons: what the logs say about it, and marks that contradict each other.
    """

    label: str
    marked: Sequence[OperatorShown]
    options: str
    superkernels: Sequence[SuperKernelShown]
    splits: Sequence[SplitShown]
    left_out: Sequence[OperatorShown]
    reasons: Sequence[str]


class FindingShown(TypedDict):
    """What one requirement of a backend looks like on this machine.

    Attributes:
        backend: that needs it.
        what: is needed.
        state: whether it is there.
        found: what is there.
        fix: how to get it; empty where it is there.
        mend: deprecated, the former name of ``fix``.
    """

    backend: str
    what: str
    state: str
    found: str
    fix: str
    mend: Annotated[str, ("deprecated", True)]


class FittedShown(TypedDict):
    """A constant of the simulated device, before and after it was fitted.

    Attributes:
        name: of the constant.
        unit: of all its figures.
        before: its value so far.
        after: its new value; null where the profiles do not tell.
        standard_error: of the fit.
        note: why it was not fitted.
    """

    name: str
    unit: str
    before: float
    after: float | None
    standard_error: float | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Event):
    """`inspect`: what there is to tune in a model.

    Attributes:
        description: the model in one line.
        units: of the decode step, in execution order.
        layers: in execution order.
        kinds: units' keys by layer kind.
        plans: distinct plans of the space.
        parameters: of the space, each with its values.
        starting_points: values of the parameters by name.
    """

    event: ClassVar[str] = "inspected"
    description: str
    units: Sequence[UnitShown]
    layers: Sequence[LayerShown]
    kinds: Mapping[str, Sequence[str]]
    plans: Count
    parameters: Mapping[str, Sequence[Option]]
    starting_points: Mapping[str, Options]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked(Event):
    """`recheck`: whether a plan that was found earlier still holds here.

    Attributes:
        plan: the file.
        verdict: in a word.
        exit_code: of the command.
        code: whether the code is what was verified.
        changes: since the plan was found, in lines for people.
        verification: what was compared.
        baseline_ms, latency_ms: of a decode step; null where the bits differ.
        speedup, ci95: against the baseline, with its 95% interval; null where the bits differ.
    """

    event: ClassVar[str] = "rechecked"
    plan: str
    verdict: Annotated[str, ("enum", ("keep", "slower now", "bits differ"))]
    exit_code: Annotated[int, ("enum", (ExitCode.DONE, ExitCode.SLOWER_NOW, ExitCode.BITS_DIFFER))]
    code: str
    changes: Sequence[str]
    verification: VerificationSummary
    baseline_ms: float | None
    latency_ms: float | None
    speedup: float | None
    ci95: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanApplied(Event):
    """`apply`: a plan was turned into a change of a model's source.

    Attributes:
        files: that it changes.
        written: whether they were changed; else the diff is all.
        notes: lines for people.
        diff: as `git apply` takes it.
    """

    event: ClassVar[str] = "plan_applied"
    files: Sequence[str]
    written: bool
    notes: Sequence[str]
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUndone(Event):
    """`apply --undo`: the files are as they were.

    Attributes:
        files: that were put back.
    """

    event: ClassVar[str] = "plan_undone"
    files: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFinished(Event):
    """`profile`: where a decode step's time goes.

    Attributes:
        steps: that the profile holds.
        layers: of a step.
        step_ms: median over the steps.
        compute_ms, communication_ms: of the step, by kernels.
        gap_ms: of the step, in which no kernel ran.
        gap_share: of the step, from 0 to 1.
        bottleneck: what bounds the step.
        superkernels: of a step.
        top: the kernel types that take most of the step.
    """

    event: ClassVar[str] = "profile_finished"
    steps: Count
    layers: Count
    step_ms: float
    compute_ms: float
    communication_ms: float
    gap_ms: float
    gap_share: float
    bottleneck: Bottleneck
    superkernels: Count
    top: Sequence[KernelShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionFinished(Event):
    """`fusion`: what the scopes of a plan became.

    Attributes:
        digest: equal for plans that became the same kernels.
        scopes: each with what became of it.
        evidence: what was seen.
        alone: digest of the names of all kernels that are no SuperKernels.
    """

    event: ClassVar[str] = "fusion_finished"
    digest: str
    scopes: Sequence[ScopeFusionShown]
    evidence: Sequence[Annotated[str, ("enum", ("marks", "graph", "profile", "plog"))]]
    alone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinished(Event):
    """`doctor`: what this machine has of what sktune needs.

    Attributes:
        backends: that can be used here.
        findings: a row for each thing that is needed.
    """

    event: ClassVar[str] = "doctor_finished"
    backends: Sequence[str]
    findings: Sequence[FindingShown]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateFinished(Event):
    """`calibrate`: constants of the simulated device were fitted.

    Attributes:
        constants: the file.
        fitted: each constant.
    """

    event: ClassVar[str] = "calibrate_finished"
    constants: str
    fitted: Sequence[FittedShown]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeWritten(Event):
    """`recipe init`: a recipe was written.

    Attributes:
        recipe: the file.
        found, unknown: lines for people.
    """

    event: ClassVar[str] = "recipe_written"
    recipe: str
    found: Sequence[str]
    unknown: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInstalled(Event):
    """`agent install`: a skill and a subagent lie where agents look for them.

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
        message: the line that standard error has, too.
        exit_code: of the command.
    """

    event: ClassVar[str] = "error"
    message: str
    exit_code: Annotated[int, ("enum", (ExitCode.FAILED, ExitCode.BAD_INPUT))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStopped(Event):
    """The last line of any command that was interrupted; the same command goes on.

    Attributes:
        message: the line that standard error has, too.
        exit_code: of the command.
    """

    event: ClassVar[str] = "stopped"
    message: str
    exit_code: Annotated[int, ("enum", (ExitCode.FAILED,))]


COMMAND_EVENTS: tuple[type[Event], ...] = (
    Inspected, Rechecked, PlanApplied, PlanUndone, ProfileFinished, FusionFinished, DoctorFinished, CalibrateFinished,
    RecipeWritten, AgentInstalled, CommandFailed, CommandStopped,
)  # fmt: skip
