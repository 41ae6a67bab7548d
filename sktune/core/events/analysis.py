"""Events of an analysis; the events of its search come between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sktune.core.events.base import Event
from sktune.core.events.values import (
    Count,
    Goal,
    GuideOption,
    Interval,
    ProfileFigures,
    TrueOrNull,
)
from sktune.core.verification import VerificationSummary

ModelType = Annotated[str, ("enum", ("moe", "standard", "other"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How much faster a plan is.

    Attributes:
        baseline_ms, latency_ms: of a decode step.
        speedup: the measured ratio of the two.
        ci95: 95% interval of ``speedup``; null for simulated figures.
        improvement_percent: of the baseline's latency.
    """

    baseline_ms: float | None
    latency_ms: float | None
    speedup: float | None
    ci95: Interval | None
    improvement_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionResultShown(Figures):
    """The result of one option of the scope guide.

    Attributes:
        option: its name for programs.
        name: its name for people.
        exists: whether the model has the modules that it puts into scopes.
        status: the result in a word.
        detail: one line for people.
        trial: that tried it; null if none did.
        scopes: number of scopes in its plan.
        final: the figures of the final comparison; null if it was not part of it.
    """

    option: GuideOption
    name: str
    exists: bool
    status: str
    detail: str
    trial: Count | None
    scopes: Count | None
    final: Figures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationShown(Figures):
    """The plan that an analysis recommends.

    Attributes:
        option: of the scope guide; null for "no scope".
        name: the option's name for people.
        reason: why, in sentences.
        plan: path of a plan file; null if the answer is "no scope".
        trial: that tried the plan.
        scopes: number of scopes in the plan.
        bit_identical: to the baseline, as far as ``verification`` covers; null if nothing was compared.
        verification: what was compared.
        compared: whether the plan was in the final comparison.
    """

    option: GuideOption | None
    name: str
    reason: str
    plan: str | None
    trial: Count | None
    scopes: Count
    bit_identical: TrueOrNull
    verification: VerificationSummary | None
    compared: bool


@dataclass(frozen=True, slots=True)
class Risk:
    """A reason to trust a recommendation less.

    Attributes:
        risk: its name for programs.
        text: one line for people.
    """

    risk: str
    text: str


@dataclass(frozen=True, slots=True)
class ModuleShares:
    """Shares of the decode step by the role of its modules, from 0 to 1.

    Attributes:
        attention, moe, ffn, other: share of the step.
        source: where the shares come from.
    """

    attention: float
    moe: float
    ffn: float
    other: float
    source: Annotated[str, ("enum", ("profile", "traced", "simulated"))]

    @property
    def largest(self) -> str:
        """Name of the module that takes most of the step; empty where no unit's time is known."""
        shares = {"attention": self.attention, "moe": self.moe, "ffn": self.ffn}
        name = max(shares, key=shares.__getitem__)
        return name if shares[name] else ""


@dataclass(frozen=True, slots=True)
class DecisionStep:
    """A question of the scope guide's decision tree.

    Attributes:
        question, answer: names for programs.
        leads_to: the option that the answer selects; null if another question follows.
        text: one line for people.
    """

    question: str
    answer: str
    leads_to: GuideOption | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisStarted(Event):
    """An analysis has chosen its backend.

    Attributes:
        model: as the user named it.
        goal: a first attempt, or the best performance.
        backend, device: that the search runs on.
        lines: for people.
    """

    event: ClassVar[str] = "analysis_started"
    model: str
    goal: Goal
    backend: str
    device: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideWalked(Event):
    """The model is traced, and the scope guide's decision tree has been walked.

    Attributes:
        model_type: the answer to the tree's first question.
        kinds: number of layers of each kind.
        shares: of the decode step.
        decision: the path through the tree.
        guide_choice: the option at its end.
        lines: for people.
    """

    event: ClassVar[str] = "guide_walked"
    model_type: ModelType
    kinds: Mapping[str, Count]
    shares: ModuleShares
    decision: Sequence[DecisionStep]
    guide_choice: GuideOption
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisFinished(Event):
    """The last line of an analysis.

    Attributes:
        study: name of the study with the trials.
        goal: a first attempt, or the best performance.
        language: of all texts.
        simulated: whether the figures are simulated.
        stand_in: whether they were measured, but not on an NPU.
        model_type, kinds, shares, decision, guide_choice: as in `guide_walked`, updated by the search.
        profile: as `profile_finished`; null without a profile.
        options: of the guide, each with its result.
        recommendation: the plan to use.
        risks: reasons to trust it less.
        next: commands to run next.
        files: that were written.
    """

    event: ClassVar[str] = "analysis_finished"
    study: str
    goal: Goal
    language: Annotated[str, ("enum", ("en", "zh"))]
    simulated: bool
    stand_in: bool
    model_type: ModelType
    kinds: Mapping[str, Count]
    shares: ModuleShares
    decision: Sequence[DecisionStep]
    guide_choice: GuideOption
    profile: ProfileFigures | None
    options: Sequence[OptionResultShown]
    recommendation: RecommendationShown
    risks: Sequence[Risk]
    next: Sequence[str]
    files: Sequence[str]


ANALYSIS_EVENTS: tuple[type[Event], ...] = (AnalysisStarted, GuideWalked, AnalysisFinished)
