"""Events of the commands on what the compiler makes of scopes: before it runs, and afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from sktune.core.errors import ExitCode
from sktune.core.events.base import Event
from sktune.core.events.values import Count


@dataclass(frozen=True, slots=True, order=True)
class NamedOperator:
    """An operator or kernel.

    Attributes:
        name, type: in GE.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class FormedSuperKernel:
    """A SuperKernel formed by GE.

    Attributes:
        name: of its kernel.
        first, last: names of its first and last operator.
        operators: the operators in it, if GE's dump lists them.
        is_split: whether its scope was cut; it may be the only SuperKernel.
        is_on_one_stream: whether all its operators are known to be on one stream.
    """

    name: str
    first: str
    last: str
    operators: tuple[NamedOperator, ...] = ()
    is_split: bool = False
    is_on_one_stream: Annotated[bool, Field(exclude=True)] = False


@dataclass(frozen=True, slots=True)
class Split:
    """Where a scope was cut in two.

    Attributes:
        operator, operator_type: the operator between the two parts; empty if there is none.
        rule: why it cuts; empty if that is not known.
    """

    operator: str
    operator_type: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class ScopeFusion:
    """How one scope was fused.

    Attributes:
        label: of the scope.
        marked: the operators with the label.
        options: as marked.
        superkernels: in execution order.
        splits: the operators at which the scope was cut.
        left_out: operators of the scope that ran on their own, and those that ran between its SuperKernels.
        reasons: messages in the logs about it, and contradictory marks.
    """

    label: str
    marked: tuple[NamedOperator, ...] = ()
    options: str = ""
    superkernels: tuple[FormedSuperKernel, ...] = ()
    splits: tuple[Split, ...] = ()
    left_out: tuple[NamedOperator, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CutShown:
    """Operators at which a scope is cut, or because of which it is not fused.

    Attributes:
        type: in GE.
        rule: why they cut.
        count: their number.
    """

    type: str
    rule: str
    count: Count


@dataclass(frozen=True, slots=True)
class CheckedScopeShown:
    """What the compiler will make of a scope.

    Attributes:
        label: of the scope.
        operators: number of its tasks.
        superkernels: how many it becomes, if all operators can be fused that are not known to be refused.
        cuts: where it is cut.
        refusal: why it is refused, with what to change; empty if it is not.
        is_certain: whether it is refused, whatever is not known before the compile.
    """

    label: str
    operators: Count
    superkernels: Count
    cuts: Sequence[CutShown]
    refusal: str
    is_certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChecked(Event):
    """`check`: what the compiler will make of a plan, and what it will refuse, without a compile.

    Attributes:
        plan: the file.
        refused: whether the compiler is certain to refuse it.
        exit_code: of the command.
        scopes: of the plan.
    """

    event: ClassVar[str] = "plan_checked"
    plan: str
    refused: bool
    exit_code: Annotated[int, ("enum", (ExitCode.DONE, ExitCode.REFUSED))]
    scopes: Sequence[CheckedScopeShown]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionFinished(Event):
    """`fusion`: how the scopes of a plan were fused.

    Attributes:
        digest: equal for plans that were compiled to the same kernels.
        scopes: how each was fused.
        evidence: the kinds of input that were read.
        alone: digest of the names of all kernels that are not SuperKernels.
        findings: messages in the logs that name no scope, failures first.
    """

    event: ClassVar[str] = "fusion_finished"
    digest: str
    scopes: Sequence[ScopeFusion]
    evidence: Sequence[Annotated[str, ("enum", ("marks", "graph", "profile", "plog"))]]
    alone: str
    findings: Sequence[str]


SCOPE_EVENTS: tuple[type[Event], ...] = (PlanChecked, FusionFinished)
