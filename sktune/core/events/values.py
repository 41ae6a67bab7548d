"""Values in events: their JSON types, and nested objects.

``Annotated`` adds keywords of JSON Schema to a type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

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
SuperKernelVerdict = Annotated[str, ("enum", ("beneficial", "neutral", "regressed", "insufficient evidence"))]
Bottleneck = Annotated[str, ("enum", ("compute", "memory", "scheduling", "synchronisation"))]


class VerificationSummary(TypedDict):
    """How much of a plan was compared with the baseline, and the bound that follows.

    Attributes:
        steps: number of decode steps whose outputs and state were compared.
        contexts: number of different prefills that these steps started from.
        elements: number of elements of outputs and state, over all steps.
        confidence: of ``differing_share_below``, from 0 to 1.
        differing_share_below: upper bound of the share of steps that differ.
        regions: number of distinct regions, each compared with its own kernels.
        exact_regions: how many of these are exact by construction.
        text: a summary in one line.
    """

    steps: Count
    contexts: Count
    elements: Count
    confidence: float
    differing_share_below: float
    regions: Count
    exact_regions: Count
    text: str


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


class ModelResult(TypedDict):
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


class KernelShare(TypedDict):
    """All kernels of one type in a decode step.

    Attributes:
        type: of the kernels.
        count: number of kernels.
        total_ms: their total time.
        share: of the step, from 0 to 1.
    """

    type: str
    count: Count
    total_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class ReplacedOperator:
    """An operator of the baseline that is inside a SuperKernel of the candidate.

    Attributes:
        name, type: as in the profile.
    """

    name: str
    type: str


class SuperKernelFigures(TypedDict):
    """A SuperKernel of the candidate.

    Attributes:
        name: of the kernel.
        scope: the label of its scope.
        replaced: the baseline's operators that it replaces, in order; empty if they were not found.
        baseline_us: their span, from the first one's start to the last one's end, median over the steps; null if they
            were not found.
        candidate_us: median duration of the SuperKernel.
        noise_us: smaller differences are noise.
        verdict: whether it pays off.
    """

    name: str
    scope: str
    replaced: Sequence[ReplacedOperator]
    baseline_us: Positive | None
    candidate_us: Positive
    noise_us: Positive
    verdict: SuperKernelVerdict


class ProfileComparison(TypedDict):
    """A profile with scopes beside one without.

    Attributes:
        step_ms: of the candidate, median over the steps.
        speedup: of its step; profiling slows down both.
        superkernels: of the candidate, in execution order.
    """

    step_ms: float
    speedup: float
    superkernels: Sequence[SuperKernelFigures]


class ProfileFigures(TypedDict):
    """Where a decode step's time goes.

    Attributes:
        steps, layers, step_ms, compute_ms, communication_ms, gap_ms, gap_share, bottleneck, superkernels, top: as in
            ``profile_finished``.
    """

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
