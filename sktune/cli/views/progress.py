"""The progress of a search as lines of text: one for each event, for logs and terminals without a cursor."""

import time
from collections.abc import Callable, Sequence
from functools import singledispatch

from sktune.core.events.analysis import AnalysisStarted, GuideWalked
from sktune.core.events.base import Event
from sktune.core.events.search import (
    Converged,
    CoresChosen,
    FinalStage,
    FinalStarted,
    NoiseFloor,
    PlanVerified,
    SearchStarted,
    SpaceExhausted,
    StandingBy,
    TargetReady,
    TimeBudgetSpent,
    TrialFinished,
)
from sktune.core.events.workers import TrialRequeued, WorkerJoined, WorkerLost, WorkerQuarantined
from sktune.core.outcome import bracketed
from sktune.core.printable import counted, shortened

SHAPE_WIDTH, MAX_SHAPE_WIDTH = 34, 41
"""Fit "self_attn of each layer, 61 scopes" and "self_attn + mlp of each layer, 122 scopes"."""

PROGRESS_S = 20.0
"""Least time between two lines on the same part of the final comparison."""


@singledispatch
def lines_of(event: Event) -> Sequence[str]:
    """Return an event as lines of text; most kinds have none."""
    del event
    return ()


@lines_of.register
def _(event: StandingBy) -> Sequence[str]:
    return [f"on standby: study {event.study} is being run by {event.holder}"]


@lines_of.register
def _(event: SearchStarted) -> Sequence[str]:
    of_all = f" of {event.trials:,}" if event.trials else ""
    return [f"study {event.study} in {event.folder}: {event.done}{of_all} trials done"]


@lines_of.register
def _(event: CoresChosen) -> Sequence[str]:
    return [event.text]


@lines_of.register
def _(event: TargetReady) -> Sequence[str]:
    lines = [f"{event.description}  ({counted(event.space_size, 'plan')})"]
    if event.model_difference:
        lines.append(f"the baseline is not bit-identical to the uncompiled model: {event.model_difference}")
    if event.learns_from:
        lines.append(f"learns from {', '.join(event.learns_from)}; `sktune show --why` says how far that holds")
    return lines


@lines_of.register
def _(event: NoiseFloor) -> Sequence[str]:
    noise = f"; {event.noise}" if event.noise else ""
    return [f"noise floor {event.noise_floor:.2%}: the baseline compared with itself, {event.ratio:.4f}x{noise}"]


@lines_of.register
def _(event: TrialFinished) -> Sequence[str]:
    took = sum(event.seconds.values())
    head = f"trial {event.trial:>3}  {shortened(event.shape, MAX_SHAPE_WIDTH):<{SHAPE_WIDTH}}  {took:4.1f} s  "
    if event.state == "complete":
        noise = f"  ({event.noise})" if event.noise else ""
        return [f"{head}{figure(event)}  {event.latency_ms:.3f} ms  {event.origin}{noise}"]
    seen = " (known)" if event.known else ""
    return [f"{head}pruned: {event.reason}{seen}, {event.detail[:150]}  {event.origin}"]


@lines_of.register
def _(event: WorkerJoined) -> Sequence[str]:
    return [f"worker {event.worker} is ready: {counted(event.workers, 'worker')}"]


@lines_of.register
def _(event: WorkerLost) -> Sequence[str]:
    return [f"worker {event.worker} is lost: {event.why}; {counted(event.workers, 'worker')} left"]


@lines_of.register
def _(event: WorkerQuarantined) -> Sequence[str]:
    return [f"worker {event.worker} is not used any more: {event.why}; {counted(event.workers, 'worker')} left"]


@lines_of.register
def _(event: TrialRequeued) -> Sequence[str]:
    return [f"trial {event.trial} is run again: {event.why}"]


@lines_of.register
def _(event: SpaceExhausted) -> Sequence[str]:
    return [f"the whole space was tried: {counted(event.plans, 'plan')}"]


@lines_of.register
def _(event: TimeBudgetSpent) -> Sequence[str]:
    cut = "" if event.unfinished is None else f"; trial {event.unfinished} was cut off and is postponed"
    return [f"the time for trials is over after {counted(event.trials, 'trial')}{cut}"]


@lines_of.register
def _(event: Converged) -> Sequence[str]:
    left = f"with 95% probability no plan saves more than {event.gain_left:.2%} of the step beyond the best one"
    if event.stops:
        return [f"converged: {left}, less than the threshold of {event.threshold:.2%}"]
    way = f"Ctrl-C, then the same command with --until {event.threshold:.2%}, ends it with its comparison"
    return [f"enough: {left}; {way}"]


@lines_of.register
def _(event: FinalStarted) -> Sequence[str]:
    references = "" if event.simulated or not event.references else ", and the alternatives without sktune"
    return [f"final comparison: the best plans and the baseline{references}"]


@lines_of.register
def _(event: PlanVerified) -> Sequence[str]:
    verdict = "" if event.identical else "rejected, "
    return [f"trial {event.trial}: {verdict}{event.text}"]


@lines_of.register(AnalysisStarted)
@lines_of.register(GuideWalked)
def _(event: AnalysisStarted | GuideWalked) -> Sequence[str]:
    return event.lines


def left_of(event: FinalStage) -> str:
    """Return how long a part of the final comparison will take, if that is known."""
    return f", about {duration(event.left_s)} left" if event.left_s else ""


def figure(event: TrialFinished) -> str:
    """Return the speedup of a trial that was measured, with its interval."""
    assert event.speedup is not None
    return f"{event.speedup:.3f}x {bracketed(event.speedup, event.ci95)}"


def duration(seconds: float) -> str:
    """Return a time in its largest sensible unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Gains:
    """What a search has gained so far, among the trials that may win.

    Args:
        began_s: when the command began, on the clock of ``time.monotonic``; None for now.

    Attributes:
        best: speedup of the best plan of the study, also by earlier calls; 1 if none is faster than the baseline.
    """

    def __init__(self, began_s: float | None = None) -> None:
        self.began_s = time.monotonic() if began_s is None else began_s
        self.best, self._has_gain = 1.0, False

    def begin(self, event: SearchStarted) -> None:
        """Begin a search; one that continues a study may have had its first gain in an earlier call."""
        self.best, self._has_gain = max(1.0, event.best_speedup or 1.0), event.done > 0

    def is_best(self, event: TrialFinished) -> bool:
        """Whether a trial is better than all before it; if so, it becomes the best."""
        if event.state != "complete" or event.probe or event.speedup is None or event.speedup <= self.best:
            return False
        self.best = event.speedup
        return True

    def first(self, event: TrialFinished) -> str:
        """Return a line if a trial is the first that is faster than the baseline beyond doubt, otherwise nothing."""
        low = event.ci95[0] if event.ci95 else event.speedup
        if self._has_gain or event.state != "complete" or event.probe or low is None or low <= 1.0:
            return ""
        self._has_gain = True
        steps = f" on {counted(event.verified_steps, 'step')} so far" if event.verified_steps else ""
        bits = "" if event.simulated else f", bits identical{steps}"
        after = duration(time.monotonic() - self.began_s)
        return f"first gain after {after}: {figure(event)}{bits} ({event.shape})"


class PlainView:
    """Prints a line for each event.

    Args:
        write: prints a line.
        began_s: when the command began, on the clock of ``time.monotonic``; None for now.
    """

    def __init__(self, write: Callable[[str], None], began_s: float | None = None) -> None:
        self._write = write
        self._gains = Gains(began_s)
        self._part, self._next_line_s = "", 0.0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, SearchStarted):
            self._gains.begin(event)
        if isinstance(event, FinalStage):
            self._show_part(event)
        trial = event if isinstance(event, TrialFinished) else None
        mark = "  <- best" if trial and self._gains.is_best(trial) else ""
        for line in lines_of(event):
            self._write(line + mark)
        if trial and (gain := self._gains.first(trial)):
            self._write(gain)

    def _show_part(self, event: FinalStage) -> None:
        """Print where the final comparison is: each part as it begins, and a long one every ``PROGRESS_S``."""
        now_s = time.monotonic()
        if event.part != self._part or now_s >= self._next_line_s:
            self._part, self._next_line_s = event.part, now_s + PROGRESS_S
            self._write(f"{event.part}: {event.stage}{left_of(event)}")
