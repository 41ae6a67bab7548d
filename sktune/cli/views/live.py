"""The progress of a search, redrawn in place: time left, incumbent and running plan as strips, the last trials.

What else happens is printed above that and stays: the first gain, busy cores, how the search ended.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatchmethod
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sktune.cli.views.progress import Gains, PlainView, duration, figure, left_of, lines_of
from sktune.cli.views.strip import plan_strip, sparkline
from sktune.core.events.base import Event, Listener
from sktune.core.events.search import (
    FinalStage,
    FinalStarted,
    NoiseFloor,
    SearchStarted,
    TargetReady,
    TrialFinished,
    TrialStage,
    TrialStarted,
)
from sktune.core.events.values import Span
from sktune.core.events.workers import TrialLeased, TrialRequeued
from sktune.core.outcome import Reason
from sktune.core.printable import counted

LAST_TRIALS = 8
INDENT = 6
BAR_WIDTH = 30
NARROW = 30
FIGURE_WIDTH = 21
"""Fits "1.160x [1.150, 1.170]"."""


class LiveView:
    """Shows progress, the incumbent and the last trials, redrawn in place.

    Args:
        console: a terminal.
        began_s: when the command began, on the clock of ``time.monotonic``; None for now.
    """

    def __init__(self, console: Console, began_s: float | None = None) -> None:
        self._console, self._gains = console, Gains(began_s)
        self._rows: deque[Text] = deque(maxlen=LAST_TRIALS)
        self._title, self._now, self._units = "", "loading the model", 0
        self._running: Sequence[Span] = ()
        self._spans: dict[int, Sequence[Span]] = {}
        self._leases: dict[int, TrialLeased] = {}
        self._best: tuple[TrialFinished, Sequence[Span]] | None = None
        self._course: list[float] = []
        self._done, self._is_over = 0, False
        self._total: int | None = None
        self._latest_end_s: float | None = None
        self._expected_end_s: float | None = None
        self._live = Live(console=console, refresh_per_second=4, get_renderable=lambda: self.picture(console.width))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._now, self._running, self._is_over = "", (), True
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._take(event)

    @singledispatchmethod
    def _take(self, event: Event) -> None:
        for line in lines_of(event):
            self._console.print(Text(line))

    @_take.register
    def _(self, event: NoiseFloor) -> None:
        """Show nothing: the report has it."""

    @_take.register
    def _(self, event: SearchStarted) -> None:
        self._gains.begin(event)
        (self._title,) = lines_of(event)
        self._total, self._done, self._course, self._best = event.trials, event.done, [], None
        self._latest_end_s = self._gains.began_s + event.time_budget_s if event.time_budget_s else None
        self._expected_end_s = None

    @_take.register
    def _(self, event: TargetReady) -> None:
        self._title, *others = lines_of(event)
        self._units = event.units
        for line in others:
            self._console.print(Text(line))

    @_take.register
    def _(self, event: TrialStarted) -> None:
        self._running = self._spans[event.trial] = event.spans
        self._now = f"trial {event.trial}  {event.shape}  ({event.origin})"

    @_take.register
    def _(self, event: TrialStage) -> None:
        self._now = f"{self._now.partition(' - ')[0]} - {event.stage}"

    @_take.register
    def _(self, event: TrialFinished) -> None:
        self._done += 1
        if event.expected_left_s is not None:
            self._expected_end_s = time.monotonic() + event.expected_left_s
        self._leases.pop(event.trial, None)
        spans = self._spans.pop(event.trial, ())
        if is_best := self._gains.is_best(event):
            self._best = event, spans
        self._course.append(self._gains.best)
        self._rows.append(_trial_row(event, is_best=is_best))
        if gain := self._gains.first(event):
            self._console.print(Text(gain, style="green"))

    @_take.register
    def _(self, event: TrialLeased) -> None:
        self._leases[event.trial] = event

    @_take.register
    def _(self, event: TrialRequeued) -> None:
        self._leases.pop(event.trial, None)
        for line in lines_of(event):
            self._console.print(Text(line))

    @_take.register
    def _(self, event: FinalStarted) -> None:
        (self._now,) = lines_of(event)
        self._running = ()

    @_take.register
    def _(self, event: FinalStage) -> None:
        place = f" on {event.worker}" if event.worker else ""
        self._now = f"{event.part} - {event.stage}{place}{left_of(event)}"

    def picture(self, width: int) -> RenderableType:
        """Return what is shown now, for a terminal of this width."""
        lines = [_line(self._title or "sktune", "bold"), self._progress(width)]
        if self._now:
            lines.append(_line(f"now   {self._now}"))
        if len(self._leases) > 1:
            running = ", ".join(f"{lease.trial} on {lease.worker}" for lease in self._leases.values())
            lines.append(_line(f"{len(self._leases)} trials run: {running}"))
        if self._running:
            lines.append(_indented(plan_strip(self._running, self._units, width - INDENT)))
        lines.append(self._best_line())
        if self._best:
            lines.append(_indented(plan_strip(self._best[1], self._units, width - INDENT)))
            scale = f"  1.00x to {self._course[-1]:.2f}x" if width >= NARROW else ""
            course = sparkline([1.0, *self._course], width - INDENT - len(scale))
            lines.append(_indented(Text.assemble((course, "green"), scale)))
        return Group(*lines, *self._rows)

    def _progress(self, width: int) -> Text:
        bar_width = min(BAR_WIDTH, width // 3)
        filled = int(bar_width * min(1.0, self._done / self._total)) if self._total else 0
        done = f"{self._done}/{self._total} trials" if self._total else counted(self._done, "trial")
        spent = duration(time.monotonic() - self._gains.began_s)
        return Text.assemble(
            ("━" * filled, "cyan"), ("─" * (bar_width - filled), "dim"), f" {done}  {spent}{self._time_left()}"
        )

    def _time_left(self) -> str:
        now_s = time.monotonic()
        if self._is_over:
            return ""
        if self._expected_end_s is not None:
            left_s = self._expected_end_s - now_s
            return f", about {duration(left_s)} left" if left_s >= 1 else ", longer than expected"
        if self._latest_end_s is not None:
            return f", at most {duration(max(0.0, self._latest_end_s - now_s))} left"
        return ", time left known after a trial" if self._total else ", until it converges"

    def _best_line(self) -> Text:
        if self._best is None:
            earlier = f"{self._gains.best:.3f}x, of a trial before this call" if self._gains.best > 1 else "none yet"
            return _line(f"best  {earlier}")
        event, _ = self._best
        return _line(f"best  trial {event.trial}  {figure(event)}  {event.shape}", "bold green")


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _indented(text: Text) -> Text:
    return Text(" " * INDENT, no_wrap=True, overflow="crop").append_text(text)


def _trial_row(event: TrialFinished, *, is_best: bool) -> Text:
    """Return a trial's figures first: a narrow terminal cuts the end off."""
    row = _line(f"trial {event.trial:>3}  ")
    if event.state == "complete":
        row.append(f"{figure(event):<{FIGURE_WIDTH}}", "green" if is_best else "")
        return row.append(f"  {event.shape}").append("  <- best" if is_best else "", "green")
    is_slower = event.reason is Reason.SLOWER
    words = str(event.reason).replace("_", " ")
    found = f"{event.speedup:.3f}x {words}" if event.speedup else words
    row.append(f"{found:<{FIGURE_WIDTH}}", "dim" if is_slower else "red")
    return row.append(f"  {event.shape}", "dim").append("" if is_slower else f": {event.detail}", "dim")


@contextmanager
def following(people: Console, *, in_place: bool, began_s: float | None = None) -> Iterator[Listener]:
    """Show a search's events while it runs: redrawn ``in_place`` if the console can, else a line for each.

    ``began_s`` is when the command began, on the clock of ``time.monotonic``; None for now.
    """
    if in_place and people.is_terminal:
        with LiveView(people, began_s) as live:
            yield live
    else:
        yield PlainView(lambda line: people.print(Text(line), soft_wrap=True), began_s)
