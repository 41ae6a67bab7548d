"""Values in events: their JSON types, and nested objects.

``Annotated`` adds keywords of JSON Schema to a type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import nan
from typing import Annotated

from pydantic import Field, PlainSerializer

from sktune.core.plan import Option

Count = Annotated[int, ("minimum", 0)]
Positive = Annotated[float, ("minimum", 0)]
Share = Annotated[float, ("minimum", 0), ("maximum", 1)]
Interval = Annotated[Sequence[float], ("minItems", 2), ("maxItems", 2)]
Span = Annotated[Sequence[Count], ("minItems", 3), ("maxItems", 3)]
TrueOrNull = Annotated[bool | None, ("enum", (True, None))]
Seconds = Mapping[str, Positive]
"""Seconds by stage."""
Options = Mapping[str, Option]
Goal = Annotated[str, ("enum", ("first", "best"))]
GuideOption = Annotated[
    str, ("enum", ("attention_only", "moe_only", "attention_moe", "whole_layer", "all_layers", "custom"))
]
Bottleneck = Annotated[str, ("enum", ("compute", "memory", "scheduling", "synchronisation"))]


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host of a cluster.

    Attributes:
        name: of the host.
        dies: number of dies that Ray may give away there.
        devices: number of devices that the driver shows; null for a CPU.
        cores: number of cores that a worker may use.
        torch, cann: versions, or that it is not installed.
        clock_mhz: of the fastest core; null if the system does not tell.
        free_disk_bytes: in the folder where Ray runs.
    """

    name: str
    dies: Count
    devices: Count | None
    cores: Count
    torch: str
    cann: str
    clock_mhz: float | None
    free_disk_bytes: Count


@dataclass(frozen=True, slots=True)
class ModelResult:
    """A search of several in one command.

    Attributes:
        model: as it was given.
        study: name of the study.
        trials: number of its trials.
        baseline_ms, best_ms: of a decode step; `best_ms` is null if the answer is "no scope".
        speedup: 1.0 if the answer is "no scope".
        ci95: 95% interval of `speedup`; null for simulated figures, and if the answer is "no scope".
        failure: why the search failed, in one line; null if it ended.
    """

    model: str
    study: str
    trials: Count
    baseline_ms: float | None
    best_ms: float | None
    speedup: float | None
    ci95: Interval | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """A shape of several in one search.

    Attributes:
        shape: such as `batch=1 context=1024`.
        study: name of its study.
        trials: number of its trials.
        baseline_ms, best_ms: latency of a decode step without scopes, and that over the speedup of the best plan here.
        speedup: of the best plan here; 1.0 if that is "no scope".
        ci95: 95% interval of `speedup`; null for simulated figures, and if the answer is "no scope".
        single_ms, single_regret: latency of the single plan for all shapes, and what it loses to the best plan that was
            compared here, as a share of that one's latency.
        plan: number of the plan to use here, from 0, among the fewest plans.
        plan_ms, plan_regret: the same of that plan.
        gain_left: with 95% probability no plan saves more than this share of the step here beyond the study's own
            answer; null if it is not known.
    """

    shape: str
    study: str
    trials: Count
    baseline_ms: float
    best_ms: float
    speedup: float
    ci95: Interval | None
    single_ms: float
    single_regret: float
    plan: Count
    plan_ms: float
    plan_regret: float
    gain_left: float | None = None


Rounded = Annotated[float, PlainSerializer(lambda value: round(value, 6), return_type=float)]
"""Written with six digits after the point."""
RoundedUs = Annotated[float, PlainSerializer(lambda value: round(value, 3), return_type=Positive)]
"""In microseconds; written in whole nanoseconds."""


@dataclass(frozen=True, slots=True)
class KernelShare:
    """All kernels of one type in a decode step.

    Attributes:
        type: of the kernels.
        count: number of kernels.
        total_ms: their total time.
        share: of the step, from 0 to 1.
    """

    type: str
    count: Count
    total_ms: Rounded
    share: Rounded


@dataclass(frozen=True, slots=True)
class ReplacedOperator:
    """An operator of the baseline that is inside a SuperKernel of the candidate.

    Attributes:
        name, type: as in the profile.
    """

    name: str
    type: str


class SuperKernelVerdict(StrEnum):
    """Whether a SuperKernel pays off."""

    BENEFICIAL = "beneficial"
    NEUTRAL = "neutral"
    REGRESSED = "regressed"
    INSUFFICIENT = "insufficient evidence"


@dataclass(frozen=True, slots=True)
class SuperKernelFigures:
    """A SuperKernel of the candidate.

    Attributes:
        name: of the kernel.
        scope: the label of its scope.
        is_fragment: whether it is part of a scope that was split.
        replaced: the baseline's operators that it replaces, in order; empty if they were not found.
        baseline_us: their span, from the first one's start to the last one's end, median over the steps; null if they
            were not found.
        candidate_us: median duration of the SuperKernel.
        noise_us: smaller differences are noise.
        verdict: whether it pays off.
    """

    name: str
    scope: str
    is_fragment: Annotated[bool, Field(exclude=True)]
    replaced: Sequence[ReplacedOperator]
    baseline_us: RoundedUs | None
    candidate_us: RoundedUs
    noise_us: RoundedUs
    verdict: SuperKernelVerdict

    @property
    def gain_us(self) -> float:
        """Time saved per step; negative for a loss. NaN if the replaced operators were not found."""
        return nan if self.baseline_us is None else self.baseline_us - self.candidate_us


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """A profile with scopes beside one without.

    Attributes:
        step_ms: of the candidate, median over the steps.
        speedup: of its step; profiling slows down both.
        superkernels: of the candidate, in execution order.
    """

    step_ms: Rounded
    speedup: Rounded
    superkernels: Sequence[SuperKernelFigures]


@dataclass(frozen=True, slots=True)
class ProfileFigures:
    """Where a decode step's time goes.

    Attributes:
        steps: number of steps in the profile.
        layers: number of layers in a step.
        step_ms: median over the steps.
        compute_ms, communication_ms: time of these kernels in a step.
        gap_ms: time of a step in which no kernel ran.
        gap_share: of the step, from 0 to 1.
        bottleneck: what limits the step; null if the profile is too doubtful for a conclusion.
        superkernels: number of SuperKernels in a step.
        top: the kernel types that take most of the step.
    """

    steps: Count
    layers: Count
    step_ms: Rounded
    compute_ms: Rounded
    communication_ms: Rounded
    gap_ms: Rounded
    gap_share: Rounded
    bottleneck: Bottleneck | None
    superkernels: Count
    top: Sequence[KernelShare]
