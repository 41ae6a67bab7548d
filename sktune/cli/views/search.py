"""Terminal output of searches: progress, results, comparisons and rechecks, and what a model has to tune."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch, singledispatchmethod
from statistics import median
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sktune.core.events import Event, Listener
from sktune.core.events.analysis import AnalysisStarted, GuideWalked
from sktune.core.events.search import (
    Converged,
    CoresChosen,
    FinalStarted,
    NoiseFloor,
    PlanVerified,
    SearchStarted,
    Settled,
    SpaceExhausted,
    TargetReady,
    TimeBudgetSpent,
    TrialFinished,
    TrialStage,
    TrialStarted,
)
from sktune.core.events.studies import StudyCompared
from sktune.core.layout import Unit
from sktune.core.plan import Option
from sktune.core.space import SearchSpace
from sktune.reports.outputs import OUTPUTS
from sktune.reports.study import final_rows, model_line, proxy_line, verdict_line
from sktune.study.result import SearchResult
from sktune.tuning.recheck import Recheck

LAST_TRIALS = 8


@singledispatch
def lines_of(event: Event) -> Sequence[str]:
    """Return an event as lines of text; most kinds have none."""
    del event
    return ()


@lines_of.register
def _(event: SearchStarted) -> Sequence[str]:
    of_all = f" of {event.trials:,}" if event.trials else ""
    return [f"study {event.study} in {event.folder}: {event.done}{of_all} trials done"]


@lines_of.register
def _(event: CoresChosen) -> Sequence[str]:
    return [event.text]


@lines_of.register
def _(event: TargetReady) -> Sequence[str]:
    lines = [f"{event.description}  ({_counted(event.space_size, 'plan')})"]
    if event.model_difference:
        lines.append(f"the baseline is not bit-identical to the uncompiled model: {event.model_difference}")
    return lines


@lines_of.register
def _(event: NoiseFloor) -> Sequence[str]:
    noise = f"; {event.noise}" if event.noise else ""
    return [f"noise floor {event.noise_floor:.2%}: the baseline compared with itself, {event.ratio:.4f}x{noise}"]


@lines_of.register
def _(event: TrialFinished) -> Sequence[str]:
    took = sum(event.seconds.values())
    head = f"trial {event.trial:>3}  {_counted(event.scopes, 'scope'):<10}  {took:5.1f} s  "
    if event.state == "complete":
        doubt = "[{:.3f}, {:.3f}]".format(*event.ci95) if event.ci95 else "simulated"
        noise = f"  ({event.noise})" if event.noise else ""
        return [f"{head}{event.latency_ms:.3f} ms, {event.speedup:.3f}x {doubt}  {event.origin}{noise}"]
    seen = " (known)" if event.known else ""
    return [f"{head}pruned: {event.reason}{seen}, {event.detail[:150]}  {event.origin}"]


@lines_of.register
def _(event: SpaceExhausted) -> Sequence[str]:
    return [f"the whole space was tried: {_counted(event.plans, 'plan')}"]


@lines_of.register
def _(event: TimeBudgetSpent) -> Sequence[str]:
    cut = "" if event.unfinished is None else f"; trial {event.unfinished} was cut off and is postponed"
    return [f"the time for trials is over after {_counted(event.trials, 'trial')}{cut}"]


@lines_of.register
def _(event: Converged) -> Sequence[str]:
    left, threshold = event.expected_gain_left, event.threshold
    return [f"converged: more trials are expected to save {left:.2%}, less than the threshold of {threshold:.2%}"]


@lines_of.register
def _(event: Settled) -> Sequence[str]:
    del event  # the same as Converged, which comes before it
    return ()


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


def recheck_table(checked: Recheck) -> Table:
    """Return the result of a recheck."""
    table = Table(show_header=False, title=f"[bold]{checked.verdict}[/bold]", title_justify="left")
    table.add_row("code", escape(checked.code))
    table.add_row("bits", escape(checked.verification.summary()["text"]))
    if speedup := checked.speedup:
        interval = "95% interval {:.3f} to {:.3f}, in one process".format(*speedup.bounds)
        figures = f"{speedup.latency_ms:.3f} ms, the baseline {speedup.baseline_ms:.3f} ms"
        table.add_row("speed", f"{speedup.ratio:.3f} times as fast as the baseline ({interval}): {figures}")
    for change in checked.changes:
        table.add_row("changed", escape(change))
    return table


class _Best:
    """The best speedup so far, among trials that may win."""

    def __init__(self) -> None:
        self._speedup = 1.0

    def is_beaten_by(self, event: TrialFinished) -> bool:
        """Whether a trial is better than all before it; if so, it becomes the best."""
        if event.state != "complete" or event.probe or event.speedup is None or event.speedup <= self._speedup:
            return False
        self._speedup = event.speedup
        return True


class PlainView:
    """Prints a line for each event."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._best = _Best()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        mark = "  <- best" if isinstance(event, TrialFinished) and self._best.is_beaten_by(event) else ""
        for line in lines_of(event):
            self._write(line + mark)


class LiveView:
    """Shows progress, the incumbent and the last trials, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_TRIALS)
        self._title, self._status, self._best = "", "loading the model", ""
        self._done, self._best_trial = 0, _Best()
        self._total: int | None = None
        self._ends_s: float | None = None
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._take(event)

    @singledispatchmethod
    def _take(self, event: Event) -> None:
        self._lines.extend(lines_of(event))

    @_take.register(NoiseFloor)
    @_take.register(SpaceExhausted)
    def _(self, event: Event) -> None:
        """Show nothing: it would push trials off the screen."""

    @_take.register
    def _(self, event: SearchStarted) -> None:
        self._total, self._done = event.trials, event.done

    @_take.register
    def _(self, event: TargetReady) -> None:
        self._title, *others = lines_of(event)
        self._lines.extend(others)

    @_take.register
    def _(self, event: TrialStarted) -> None:
        self._status = f"trial {event.trial}: {event.origin}, {_counted(event.scopes, 'scope')}"

    @_take.register
    def _(self, event: TrialStage) -> None:
        self._status = self._status.partition(" -")[0] + f" - {event.stage}"

    @_take.register
    def _(self, event: TrialFinished) -> None:
        (line,) = lines_of(event)
        self._done += 1
        self._lines.append(line)
        if event.expected_left_s is not None:
            self._ends_s = time.monotonic() + event.expected_left_s
        if self._best_trial.is_beaten_by(event):
            self._best = line

    @_take.register
    def _(self, event: FinalStarted) -> None:
        (self._status,) = lines_of(event)

    def _render(self) -> RenderableType:
        spent = time.monotonic() - self._began
        width = 30
        filled = int(width * min(1.0, self._done / self._total)) if self._total else 0
        bar = "━" * filled + "─" * (width - filled)
        done = f"{self._done}/{self._total} trials" if self._total else _counted(self._done, "trial")
        left = "" if self._ends_s is None else f", about {_rough(max(0.0, self._ends_s - time.monotonic()))} left"
        grid = Table.grid(padding=(0, 1))
        for line in self._lines:
            grid.add_row(Text(line, overflow="ellipsis", no_wrap=True))
        return Group(
            Text(self._title, style="bold"),
            Text(f"{bar} {done}  {spent:.0f} s{left}  {self._status}"),
            Text(f"best: {self._best or 'none yet'}", style="green" if self._best else ""),
            grid,
        )


@contextmanager
def following(people: Console, *, in_place: bool) -> Iterator[Listener]:
    """Show a search's events while it runs: redrawn ``in_place`` if the console can, else a line for each."""
    if in_place and people.is_terminal:
        with LiveView(people) as live:
            yield live
    else:
        yield PlainView(lambda line: people.print(Text(line), soft_wrap=True))


def result_table(result: SearchResult) -> RenderableType:
    """Return the final comparison and the verdict."""
    table = Table(title=escape(result.facts.description or result.study), title_justify="left")
    for heading in ("", "ms per step", "speedup", "95% interval", "bits"):
        table.add_column(heading, justify="right" if heading in ("ms per step", "speedup") else "left")
    for row in final_rows(result):
        table.add_row(*(escape(cell) for cell in row), style="green" if "(winner)" in row[0] else None)
    summary = result.summary()
    pruned = ", ".join(f"{count} {reason}" for reason, count in summary["pruned"].items() if count) or "none"
    lines = [
        f"{_counted(summary['trials'], 'trial')}: {summary['complete']} complete; pruned: {pruned}",
        verdict_line(result),
        *filter(None, [model_line(result)]),
        *([proxy_line(result)] if result.proxy else []),
    ]
    if result.verdict and result.verdict.ties:
        ties = ", ".join(f"trial {tie.number}" for tie in result.verdict.ties)
        lines.append(f"Not significantly slower, but not simpler: {ties}")
    files = [name for name in OUTPUTS if (result.folder / name).exists()]
    lines.append(f"Files in {result.folder}: {', '.join(files) or 'none yet; `sktune report` writes them'}")
    return Group(*([table] if result.final else []), *(Text(line) for line in lines))


def comparison_table(studies: Sequence[StudyCompared], is_simulated: bool) -> RenderableType:
    """Return a row for each event ``study_compared``."""
    figure = "simulated speedup" if is_simulated else "speedup"
    table = Table(title=f"{figure} of the best trial so far, by number of trials", title_justify="left")
    for heading in ("study", "strategy"):
        table.add_column(heading, overflow="fold")
    for heading in (*studies[0].best_after, "trials", "failed", "seconds"):
        table.add_column(heading, justify="right")
    is_mixed = any(study.differs for study in studies)
    if is_mixed:
        table.add_column("differs from the first in", style="yellow")
    for study in studies:
        cells = [study.study, ", ".join(study.strategies) or "starting points"]
        cells += ["-" if best is None else f"{best:.3f}" for best in study.best_after.values()]
        cells += [str(study.trials), f"{study.failed_share:.0%}", f"{study.seconds:.0f}"]
        table.add_row(*map(Text, cells), *([Text(", ".join(study.differs))] if is_mixed else []))
    return Group(table, *(Text(f"{study.study}: {_winner(study)}") for study in studies))


def _winner(study: StudyCompared) -> str:
    if study.speedup is None:
        return "no final comparison yet"
    if study.winner is None:
        return "no scope wins its final comparison"
    doubt = "[{:.3f}, {:.3f}]".format(*study.ci95) if study.ci95 else "simulated"
    return f"trial {study.winner} wins its final comparison, {study.speedup:.3f}x {doubt}"


def inspection_view(description: str, space: SearchSpace, is_simulated: bool) -> RenderableType:
    """Return what there is to tune: a block for each layer kind, the rest of the step, parameters, starting points.

    Args:
        description: the target in one line.
        space: bound to the layout to show.
        is_simulated: whether the units' time shares are those of a simulated step.
    """
    layout = space.layout
    step = "simulated step" if is_simulated else "eager step"
    parts: list[RenderableType] = [Text(description, style="bold")]
    for kind in layout.kinds:
        layers = [index for index, layer in enumerate(layout.layers) if layer.kind == kind]
        units = [unit for unit in layout.units if unit.layer in layers]
        ends = dict.fromkeys(layout.layers[index].name for index in (layers[0], layers[-1]))
        title = f"layer kind {kind}: {_counted(len(layers), 'layer')} ({' to '.join(ends)})"
        parts.append(_layer_table(title, units, step))
    if outside := [unit for unit in layout.units if unit.layer is None]:
        table = Table("unit", f"share of the {step}", title="outside of layers", title_justify="left")
        for unit in outside:
            table.add_row(Text(unit.name), f"{unit.time_share:6.1%}")
        parts.append(table)
    parts.append(_parameter_table(space))
    parts.append(Text(f"{_counted(space.size, 'plan')}, {_counted(len(space.choices), 'parameter')}"))
    for point in space.starting_points:
        scopes = len(space.plan(point.values).scopes)
        parts.append(Text(f"starting point: {point.name} ({_counted(scopes, 'scope')})"))
    return Group(*parts)


def _layer_table(title: str, units: Sequence[Unit], step: str) -> Table:
    """Return one layer's units; ``units`` are those of all layers of the kind."""
    table = Table("unit of one layer", f"share of the {step}, median layer", "all layers", title=escape(title))
    table.title_justify = "left"
    for key in dict.fromkeys(unit.key for unit in units):
        shares = [unit.time_share for unit in units if unit.key == key]
        table.add_row(Text(key), f"{median(shares):6.1%}", f"{sum(shares):6.1%}")
    return table


def _parameter_table(space: SearchSpace) -> Table:
    """Return parameters and values; ``layers.N`` stands for all layers if each has its own parameters."""
    rows = {re.sub(r"^layers\.\d+\.", "layers.N.", name): choices for name, choices in space.choices.items()}
    table = Table("parameter", "values", title="parameters", title_justify="left")
    for name, choices in rows.items():
        table.add_row(Text(name), Text(", ".join(_as_in_yaml(value) for value in choices)))
    return table


def _as_in_yaml(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "not given"


def _rough(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
