"""Events of a search, in the order in which they come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sktune.core.events.base import ABSENT, Absent, Event
from sktune.core.events.values import Count, Interval, Positive, Seconds, TrueOrNull, VerificationSummary
from sktune.core.outcome import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStarted(Event):
    """A search has opened its study.

    Attributes:
        study: its name.
        trials: asked for in total; null where only time ends the search.
        time_budget_s: most seconds for this call; null for no limit.
        done: trials that the study holds already.
        folder: of the study.
    """

    event: ClassVar[str] = "search_started"
    study: str
    trials: Count | None
    time_budget_s: float | None
    done: Count
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReady(Event):
    """The model is loaded and traced, its baseline compiled and verified.

    Attributes:
        description: what is tuned, in one line.
        space_size: distinct plans; it may exceed 2^64.
        model_difference: where the baseline differs from the uncompiled model, bit for bit; empty where it does not,
            null where nobody looked.
        seconds: `load` (imports, model, prefill, trace), `baseline` (import of the compiler, capture, compile, verify).
    """

    event: ClassVar[str] = "target_ready"
    description: str
    space_size: Count
    model_difference: str | None
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor(Event):
    """The baseline was compared with itself.

    Attributes:
        before_trial: how many trials had been finished.
        ratio, ci95: of the baseline against itself, with its 95% interval.
        noise_floor: relative effect below which nothing is claimed, of all looks so far.
        drift: relative change of the baseline's latency since the first look.
        noise: what else the machine did; empty where it was quiet.
    """

    event: ClassVar[str] = "noise_floor"
    before_trial: Count
    ratio: float
    ci95: Interval
    noise_floor: Positive
    drift: float
    noise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted(Event):
    """A plan is about to be tried.

    Attributes:
        trial: its number in the study.
        origin: a starting point's name, or the sampler's.
        scopes: of its plan.
    """

    event: ClassVar[str] = "trial_started"
    trial: Count
    origin: str
    scopes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStage(Event):
    """A trial enters its next stage.

    Attributes:
        trial: its number.
        stage: that begins.
    """

    event: ClassVar[str] = "trial_stage"
    trial: Count
    stage: Annotated[str, ("enum", ("compile", "verify", "measure", "observe"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished(Event):
    """What became of one plan.

    Attributes:
        trial: its number in the study.
        origin: a starting point's name, or the sampler's.
        scopes: of its plan.
        known: answered from the record.
        probe: it runs to be learned from, and is never the winner.
        simulated: whether the figures are computed.
        state: whether it compiled, kept every bit and was measured.
        reason: why it was pruned; null where it is complete.
        detail: one line for people.
        blamed: label of the scope that is to blame for a failure; empty where that is not known.
        latency_ms, baseline_ms: of a decode step; null where nothing was measured.
        speedup, ci95: against the baseline, with its 95% interval; the interval is null for simulated figures.
        comparison: against the baseline and beyond the noise floor; empty where nothing was compared.
        noise: what else the machine did; empty where it was quiet.
        seconds: by stage.
        regions: distinct regions of the plan.
        reused: of these, the ones that were compiled before.
        log: path relative to the study's folder.
        expected_left_s: seconds for the trials that are left and the final comparison, by the median trial so far; null
            where nothing but time ends the search.
    """

    event: ClassVar[str] = "trial_finished"
    trial: Count
    origin: str
    scopes: Count
    known: bool
    probe: bool
    simulated: bool
    state: Annotated[str, ("enum", ("complete", "pruned"))]
    reason: Reason | None
    detail: str
    blamed: str
    latency_ms: float | None
    baseline_ms: float | None
    speedup: float | None
    ci95: Interval | None
    comparison: Annotated[str, ("enum", ("", "faster", "slower", "same", "undecided"))]
    noise: str
    seconds: Seconds
    regions: Count
    reused: Count
    log: str
    expected_left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceExhausted(Event):
    """The whole space was tried.

    Attributes:
        plans: that were tried.
    """

    event: ClassVar[str] = "space_exhausted"
    plans: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Converged(Event):
    """With `--until-converged`: no plan is expected to save much more.

    Attributes:
        trials: that the study holds.
        expected_gain_left: share of the baseline step that more trials should save.
        threshold: share of the baseline step that ends the search.
    """

    event: ClassVar[str] = "converged"
    trials: Count
    expected_gain_left: float
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Converged):
    """Deprecated, the former name of `converged`: it follows that event with the same keys."""

    event: ClassVar[str] = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudgetSpent(Event):
    """There is no time for another trial.

    Attributes:
        trials: that the study holds.
        unfinished: the trial that was cut off, where one was. It is no failure: the next search takes it up.
    """

    event: ClassVar[str] = "time_budget_spent"
    trials: Count
    unfinished: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStarted(Event):
    """The final comparison begins.

    Attributes:
        simulated: whether its figures are computed.
        qualifiers: the trials that are measured again, of which the fastest enter the final comparison.
        references: whether what a user has without sktune is shown, for which a short time budget leaves no time.
    """

    event: ClassVar[str] = "final_started"
    simulated: bool
    qualifiers: Sequence[Count]
    references: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStage(Event):
    """The final comparison enters its next stage.

    Attributes:
        stage: that begins, for people.
    """

    event: ClassVar[str] = "final_stage"
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVerified(Event):
    """A finalist was compared with the baseline far more than its trial did.

    Attributes:
        trial: its number.
        identical: whether all bits are equal. A plan that is not identical is a `mismatch` from then on, and the next
            one moves up.
        steps: decode steps whose outputs and state were compared.
        contexts: different prefills that these steps started from.
        elements: elements of outputs and state, over all steps.
        confidence: of `differing_share_below`, from 0 to 1.
        differing_share_below: upper bound of the share of steps that differ.
        regions: distinct regions, each compared with its own kernels.
        exact_regions: of these, the ones that are exact by construction.
        text: all of this in one line.
    """

    event: ClassVar[str] = "plan_verified"
    trial: Count
    identical: bool
    steps: Count
    contexts: Count
    elements: Count
    confidence: float
    differing_share_below: float
    regions: Count
    exact_regions: Count
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult(Event):
    """What a study has found.

    Attributes:
        study: its name.
        trials: that it holds.
        complete: trials that compiled, kept every bit and were measured.
        pruned: the other trials, counted by reason.
        baseline_ms, best_ms: of a decode step; `best_ms` is null where the answer is "no scope".
        speedup: 1.0 where the answer is "no scope".
        ci95: 95% interval of `speedup`; null for simulated figures, and where the answer is "no scope".
        bit_identical: to the baseline, as far as `verification` says; null for simulated figures.
        processes: of the final comparison; 0 without one.
        verification: of the winner; null without one.
        model_difference: where the baseline differs from the uncompiled model, bit for bit; empty where it does not,
            null where nobody looked.
        simulated: there where the figures are computed.
        finished: there before the search has ended.
        compared: there where the time budget left no final comparison: the figures are the best trial's own.
        proxy_rank_correlation: there after a search on fewer layers: between its order of plans and that of the whole
            model; null for fewer than three plans.
        plan: path of best_plan.yaml; null where the answer is "no scope".
    """

    study: str
    trials: Count
    complete: Count
    pruned: Mapping[Reason, Count]
    baseline_ms: float | None
    best_ms: float | None
    speedup: float | None
    ci95: Interval | None
    bit_identical: TrueOrNull
    processes: Count
    verification: VerificationSummary | None
    model_difference: str | None
    simulated: bool = False
    finished: bool = True
    compared: bool = True
    proxy_rank_correlation: float | Absent | None = ABSENT
    plan: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFinished(StudyResult):
    """The last line of a search that ended."""

    event: ClassVar[str] = "study_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFinished(StudyResult):
    """With `--proxy-layers`: the search on fewer layers has ended. The events of the whole model follow."""

    event: ClassVar[str] = "proxy_finished"


SEARCH_EVENTS: tuple[type[Event], ...] = (
    SearchStarted, TargetReady, NoiseFloor, TrialStarted, TrialStage, TrialFinished, SpaceExhausted, Converged, Settled,
    TimeBudgetSpent, FinalStarted, FinalStage, PlanVerified, StudyFinished, ProxyFinished,
)  # fmt: skip
