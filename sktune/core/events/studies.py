"""Events of the commands that read studies: ``show``, ``studies``, ``report`` and ``compare``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, PlainSerializer

from sktune.core.codec import LEFT_OUT_IF_EMPTY, LEFT_OUT_IF_NONE
from sktune.core.events.base import Event
from sktune.core.events.search import StudyResult
from sktune.core.events.values import Count, Interval, Options, Positive, Share
from sktune.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best trial so far.

    Attributes:
        trial: its number.
        origin: a starting point's name, or the sampler's.
        scopes: of its plan.
        latency_ms, baseline_ms: of a decode step.
        speedup, ci95: against the baseline; the interval is null for simulated figures.
    """

    trial: Count
    origin: str
    scopes: Count
    latency_ms: float
    baseline_ms: float
    speedup: float
    ci95: Interval | None


@dataclass(frozen=True, slots=True)
class FinalRowShown:
    """A row of the final comparison.

    Attributes:
        name: a trial's number, `baseline`, `baseline again`, `uncompiled`, ...
        latency_ms: of a decode step; null if it does not run.
        speedup, ci95: against the baseline.
        bit_identical: whether every bit equals the baseline's; null if not compared.
    """

    name: str
    latency_ms: float | None
    speedup: float | None
    ci95: Interval | None
    bit_identical: bool | None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a study has learned about one unit, border or option.

    Attributes:
        name: of the unit, border or option.
        saving_ms: average saving per decode step.
        ci95: 95% interval of ``saving_ms``.
        trials: number of trials that it was learned from.
    """

    name: str
    saving_ms: float
    ci95: tuple[float, float]
    trials: Count


@dataclass(frozen=True, slots=True)
class BlamedSegment:
    """A segment of units that made trials fail.

    Attributes:
        segment: its units.
        options: that it failed with.
        trials: numbers of the failed trials.
        reason: of the failures.
    """

    segment: str
    options: Options
    trials: tuple[Count, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """The most promising plan to try next.

    Attributes:
        plan: to try.
        expected_saving_ms: per decode step.
        ci95: 95% interval of ``expected_saving_ms``.
    """

    plan: Plan
    expected_saving_ms: float
    ci95: tuple[float, float]


@dataclass(frozen=True, slots=True)
class DeviceConstant:
    """What the device was found to be: a sum of constants of the law of SuperKernels.

    Attributes:
        name: what it is.
        us, sd_us: mean and standard deviation, in microseconds.
        prior_sd_us: the standard deviation before the first trial.
    """

    name: str
    us: float
    sd_us: float
    prior_sd_us: float

    @property
    def is_determined(self) -> bool:
        """Whether the study's trials say more than was expected before."""
        return self.sd_us < self.prior_sd_us


@dataclass(frozen=True, slots=True)
class EarlierStudyShown:
    """An earlier study that this one learns from.

    Attributes:
        study: its name.
        effects: number of its findings that this model has, too.
        weight: how far it is believed now, from 0 to 1.
        error_ms: root mean square error of what its findings alone say of the plans measured here; null before any.
        spread_ms: the same of expecting no plan to save anything.
    """

    study: str
    effects: Count
    weight: float
    error_ms: float | None
    spread_ms: float | None


@dataclass(frozen=True, slots=True)
class WhyShown:
    """What a study has learned.

    Attributes:
        baseline_ms: latency of the baseline step.
        units, borders, options: the effect of each.
        blamed: segments that made trials fail.
        next_experiment: null if no plan may save more.
        expected_gain_left: share of the baseline step that more trials are expected to save.
        model_misfit: how far the model of the effects is from the measurements.
        device: empty if its operators are unknown, or if scopes do not save what the law of SuperKernels says.
        earlier: the studies that it learns from.
    """

    baseline_ms: float
    units: tuple[Effect, ...]
    borders: tuple[Effect, ...]
    options: tuple[Effect, ...]
    blamed: tuple[BlamedSegment, ...]
    next_experiment: Experiment | None
    expected_gain_left: Annotated[float | None, ("type", "number")]
    model_misfit: float
    device: tuple[DeviceConstant, ...]
    earlier: Annotated[tuple[EarlierStudyShown, ...], LEFT_OUT_IF_EMPTY]


def moment(seconds: float) -> datetime:
    """Return a time in seconds since the epoch by this machine's clock and time zone."""
    return datetime.fromtimestamp(seconds).astimezone()


Moment = Annotated[
    float, PlainSerializer(lambda seconds: moment(seconds).isoformat(timespec="seconds"), return_type=str)
]
"""In seconds since the epoch; written in ISO 8601."""


class WorkerState(StrEnum):
    """What a worker does now."""

    RUNNING = "running"
    FREE = "free"
    ENDED = "ended"
    LOST = "lost"
    QUARANTINED = "quarantined"
    GIVEN_BACK = "given_back"


@dataclass(frozen=True, slots=True)
class Mishap:
    """What became of a worker.

    Attributes:
        fate: what happened.
        why: in one line.
        at: when, in ISO 8601.
    """

    fate: Annotated[str, ("enum", ("lost", "quarantined"))]
    why: str
    at: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShown:
    """One die that a study was searched on.

    Attributes:
        worker: the die; unique on its host.
        host: its machine; empty if it was lost before it was ready.
        state: what it does; `ended` if its search has.
        trial, attempt: that it runs.
        since: when it was given the trial, in ISO 8601.
        until: when its lease of the trial expires; None while it has not begun.
        trials: number of finished trials that ended there.
        baseline_ms: median of the baseline in them; null if nothing was measured.
        mishaps: when it was lost or quarantined, and why, also if it has joined again.
    """

    worker: str
    host: str
    state: WorkerState
    trial: Annotated[Count | None, LEFT_OUT_IF_NONE] = None
    attempt: Annotated[Count | None, LEFT_OUT_IF_NONE] = None
    since: Annotated[Moment | None, LEFT_OUT_IF_NONE] = None
    until: Annotated[float | None, Field(exclude=True)] = None
    trials: Count
    baseline_ms: float | None
    mishaps: Annotated[Sequence[Mishap], LEFT_OUT_IF_EMPTY] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyShown(StudyResult):
    """`show`: what a study has found so far, as `study_finished`.

    Attributes:
        incumbent: the best trial so far; null before a plan has passed.
        blamed: number of failed trials by the scope that caused them.
        final: rows of the final comparison, the baseline first.
        workers: the dies that it was searched on, if a search could have several.
        why: with `--why`, what the study has learned.
        page: with `--why`, path of the page that shows it.
    """

    event: ClassVar[str] = "study_shown"
    incumbent: Incumbent | None
    blamed: Mapping[str, Count]
    final: Sequence[FinalRowShown]
    workers: Sequence[WorkerShown] | None = None
    why: WhyShown | None = None
    page: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWritten(Event):
    """`report`: a study's report, plan and trials were written again.

    Attributes:
        files: that were written.
    """

    event: ClassVar[str] = "report_written"
    files: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServed(Event):
    """`serve`, and `search --open`: pages of studies can be opened now.

    Attributes:
        url: of the page; it contains a secret.
        study: whose page it is; null for the index of all studies.
    """

    event: ClassVar[str] = "page_served"
    url: str
    study: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCompared(Event):
    """`compare`: one line for each study.

    Attributes:
        study: its name.
        strategies: that proposed its plans.
        trials: number of its trials.
        best_after: speedup of the best trial after 5, 10, 20, ... trials; null beyond its last trial.
        winner: trial that won its final comparison; null if none did.
        speedup, ci95: of the final comparison; the interval is null for simulated figures.
        failed_share: of its trials, from 0 to 1.
        seconds: total time of its searches.
        simulated: whether the figures are simulated.
        differs: which of versions, environment, space and seed differ from those of the first study.
    """

    event: ClassVar[str] = "study_compared"
    study: str
    strategies: Sequence[str]
    trials: Count
    best_after: Mapping[str, float | None]
    winner: Count | None
    speedup: float | None
    ci95: Interval | None
    failed_share: Share
    seconds: Positive
    simulated: bool
    differs: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareFinished(Event):
    """`compare`: its last line.

    Attributes:
        studies: names of the compared studies.
        picture: path of the page that shows them.
    """

    event: ClassVar[str] = "compare_finished"
    studies: Sequence[str]
    picture: str


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study in a list.

    Attributes:
        study: its name.
        trials: number of its trials.
        speedup: of the winner or, before the final comparison, of the best trial; null if there is none.
        verdict: in one line; or why the study cannot be read.
        changed: when its last trial ended, by the clock of its host; null before.
    """

    study: str
    trials: Count
    speedup: float | None
    verdict: str
    changed: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiesListed(Event):
    """`studies`, and `show` without a study: all studies.

    Attributes:
        studies: the newest first.
    """

    event: ClassVar[str] = "studies_listed"
    studies: Sequence[StudyRow]


STUDY_EVENTS: tuple[type[Event], ...] = (
    StudyShown,
    StudiesListed,
    ReportWritten,
    PageServed,
    StudyCompared,
    CompareFinished,
)
