"""Events of a search, in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sktune.core.events.base import ABSENT, Absent, Event
from sktune.core.events.values import (
    Count,
    Interval,
    ModelResult,
    Positive,
    Seconds,
    ShapeRow,
    Span,
    TrueOrNull,
)
from sktune.core.outcome import Reason
from sktune.core.verification import VerificationSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStarted(Event):
    """A search has opened its study.

    Attributes:
        study: its name.
        trials: requested in total; null if only time ends the search.
        time_budget_s: time limit of this call; null for none.
        done: number of trials that the study already has.
        folder: of the study.
        best_speedup: of the best plan in the trials that the study already has, if one has passed.
    """

    event: ClassVar[str] = "search_started"
    study: str
    trials: Count | None
    time_budget_s: float | None
    done: Count
    folder: str
    best_speedup: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingBy(Event):
    """With `--standby`: another search runs the study; this one waits until it is gone.

    Attributes:
        study: its name.
        holder: the other search's process.
    """

    event: ClassVar[str] = "standing_by"
    study: str
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresChosen(Event):
    """At the start: other processes or a quota are in the way of steps on this CPU, or were when the study was begun.

    Attributes:
        cores: number of cores that sktune may use.
        busy: processors, as numbered by the system, that other processes use.
        pinned: processors that steps run on; empty for all that sktune may use.
        threads: of an operator; null for the default, or the user's `OMP_NUM_THREADS`.
        text: all of this in one line for people, and what would help.
    """

    event: ClassVar[str] = "cores_chosen"
    cores: Count
    busy: Sequence[Count]
    pinned: Sequence[Count]
    threads: Count | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReady(Event):
    """The model is loaded and traced, and its baseline is compiled and verified.

    Attributes:
        description: of the model, in one line.
        space_size: number of distinct plans; it may exceed 2^64.
        units: number of units of a decode step.
        model_difference: where the baseline's bits differ from the uncompiled model's; empty if they do not, null if
            not compared.
        seconds: `load` (imports, model, prefill, trace), `baseline` (import of the compiler, capture, compile, verify).
        learns_from: the earlier studies whose findings are the prior of this search.
    """

    event: ClassVar[str] = "target_ready"
    description: str
    space_size: Count
    units: Count
    model_difference: str | None
    seconds: Seconds
    learns_from: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor(Event):
    """The baseline was compared with itself.

    Attributes:
        before_trial: number of trials finished before.
        ratio, ci95: of the baseline against itself, with its 95% interval.
        noise_floor: relative effect below which no difference is reported, from all samples so far.
        drift: relative change of the baseline's latency since the first sample.
        noise: what disturbed the measurement; empty if nothing did.
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
        scopes: number of scopes in its plan.
        shape: of its plan, in a few words.
        spans: for each scope, the positions of its first and last unit in the step, from 0, and a number that is equal
            for scopes with equal options.
    """

    event: ClassVar[str] = "trial_started"
    trial: Count
    origin: str
    scopes: Count
    shape: str
    spans: Sequence[Span]


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
    """The result of one plan.

    Attributes:
        trial: its number in the study.
        origin: a starting point's name, or the sampler's.
        scopes: number of scopes in its plan.
        shape: of its plan, in a few words.
        known: whether the stored result of the same plan was returned.
        probe: whether it only ran for the sampler to learn from; it never wins.
        simulated: whether the figures are simulated.
        state: `complete` if it compiled, kept every bit and was measured.
        reason: why it was pruned; null if it is complete.
        detail: one line for people.
        blamed: label of the scope that caused a failure; empty if unknown.
        latency_ms, baseline_ms: of a decode step; null if nothing was measured.
        speedup, ci95: against the baseline, with its 95% interval; the interval is null for simulated figures.
        comparison: against the baseline and beyond the noise floor; empty if nothing was compared.
        verified_steps: number of decode steps whose outputs and state were compared with the baseline's, bit for bit.
        noise: what disturbed the measurement; empty if nothing did.
        seconds: by stage.
        regions: number of distinct regions in the plan.
        reused: how many of these had been compiled before.
        log: path relative to the study's folder.
        expected_left_s: seconds expected for the remaining trials and the final comparison, from the median trial so
            far; null if only convergence ends the search.
    """

    event: ClassVar[str] = "trial_finished"
    trial: Count
    origin: str
    scopes: Count
    shape: str
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
    verified_steps: Count
    noise: str
    seconds: Seconds
    regions: Count
    reused: Count
    log: str
    expected_left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceExhausted(Event):
    """Every plan of the space was tried.

    Attributes:
        plans: number of plans tried.
    """

    event: ClassVar[str] = "space_exhausted"
    plans: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Converged(Event):
    """Hardly any gain is left: the search ends with `--until` or `--until-converged`, and may be stopped without.

    Attributes:
        trials: number of trials in the study.
        expected_gain_left: share of the baseline step that more trials are expected to save.
        gain_left: share of the baseline step; with 95% probability no plan saves more beyond the best one.
        threshold: the share of the baseline step that it is now below.
        stops: whether the search ends.
    """

    event: ClassVar[str] = "converged"
    trials: Count
    expected_gain_left: float
    gain_left: float
    threshold: float
    stops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudgetSpent(Event):
    """There is no time for another trial.

    Attributes:
        trials: number of trials in the study.
        unfinished: the trial that was cut off, if any. It did not fail: the next search runs it again.
    """

    event: ClassVar[str] = "time_budget_spent"
    trials: Count
    unfinished: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStarted(Event):
    """The final comparison begins.

    Attributes:
        simulated: whether its figures are simulated.
        qualifiers: the trials that are measured again; the fastest of them enter the final comparison.
        references: whether the uncompiled model and other references are measured, too; a short time budget leaves
            no time for them.
    """

    event: ClassVar[str] = "final_started"
    simulated: bool
    qualifiers: Sequence[Count]
    references: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStage(Event):
    """The final comparison enters its next stage.

    Attributes:
        part: of the comparison, in words for people.
        stage: of this part that begins, in words for people.
        left_s: seconds that the part and those like it will take, if known.
        worker: the die that it runs on, if the search can have several.
    """

    event: ClassVar[str] = "final_stage"
    part: str
    stage: str
    left_s: float | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVerified(VerificationSummary, Event):
    """The plan that wins was compared with the baseline on many more steps than in its trial.

    Attributes:
        trial: its number.
        identical: whether all bits are equal. A plan that is not becomes a `mismatch`, and the next one is compared.
    """

    event: ClassVar[str] = "plan_verified"
    trial: Count
    identical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult(Event):
    """The result of a study.

    Attributes:
        study: its name.
        trials: number of its trials.
        complete: number of trials that compiled, kept every bit and were measured.
        pruned: number of the other trials by reason.
        baseline_ms, best_ms: of a decode step; `best_ms` is null if the answer is "no scope".
        speedup: 1.0 if the answer is "no scope".
        ci95: 95% interval of `speedup`; null for simulated figures, and if the answer is "no scope".
        repeatability: present if a winner was measured again: relative difference that another search's `speedup` of
            this plan would stay within, in 95% of cases, if the machine varies as during this one.
        bit_identical: to the baseline, as far as `verification` covers; null for simulated figures.
        processes: number of processes in the final comparison; 0 without one.
        dies: present if several workers searched and measured: the dies of the final comparison.
        verification: of the winner; null without one.
        model_difference: where the baseline's bits differ from the uncompiled model's; empty if they do not, null if
            not compared.
        simulated: present if the figures are simulated.
        finished: present until the search has ended.
        compared: present if the time budget left no time for a final comparison: the figures are the best trial's own.
        gain_left: with 95% probability no plan of the space saves more than this share of the baseline step beyond the
            answer; null while nothing is known.
        plan: path of best_plan.yaml; null if the answer is "no scope".
    """

    study: str
    trials: Count
    complete: Count
    pruned: Mapping[Reason, Count]
    baseline_ms: float | None
    best_ms: float | None
    speedup: float | None
    ci95: Interval | None
    repeatability: float | Absent = ABSENT
    bit_identical: TrueOrNull
    processes: Count
    dies: Sequence[str] = ()
    verification: VerificationSummary | None
    model_difference: str | None
    simulated: bool = False
    finished: bool = True
    compared: bool = True
    gain_left: float | None
    plan: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFinished(StudyResult):
    """The last line of a search that ended."""

    event: ClassVar[str] = "study_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFinished(StudyResult):
    """With `--proxy-layers`: the search on fewer layers has ended; the events of the whole model follow."""

    event: ClassVar[str] = "proxy_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsFinished(Event):
    """With `--models`: the last line.

    Attributes:
        studies: what became of each search, in the order of the list.
    """

    event: ClassVar[str] = "models_finished"
    studies: Sequence[ModelResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapesFinished(Event):
    """With `--shapes`: the last line.

    Attributes:
        study: name of the study of all shapes.
        trials: at all shapes together.
        finished: whether each shape has its final comparison; until then there are no rows.
        objective: of the single plan, `sum` or `worst`.
        regret: share that the fewest plans may lose at each shape to the best one there.
        shapes: a row for each shape.
        plans: how many the fewest plans are.
        bit_identical: true if every plan has the baseline's bits at each of its shapes; null for simulated figures.
        simulated: whether the figures come from a model of the device.
        plan: path of the plan file, which has the single plan and the plan of each shape; null if no plan wins.
    """

    event: ClassVar[str] = "shapes_finished"
    study: str
    trials: Count
    finished: bool
    objective: str
    regret: float
    shapes: Sequence[ShapeRow]
    plans: Count
    bit_identical: bool | None
    simulated: bool
    plan: str | None


SEARCH_EVENTS: tuple[type[Event], ...] = (
    StandingBy, SearchStarted, CoresChosen, TargetReady, NoiseFloor, TrialStarted, TrialStage, TrialFinished,
    SpaceExhausted, Converged, TimeBudgetSpent, FinalStarted, FinalStage, PlanVerified, StudyFinished,
    ProxyFinished, ModelsFinished, ShapesFinished,
)  # fmt: skip
