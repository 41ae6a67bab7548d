"""Terminal output of what searches have found: results, comparisons and rechecks. It fits 80 columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sktune.core.events.studies import StudyCompared, StudyRow
from sktune.core.outcome import FinalRow, bracketed
from sktune.reports.outputs import OUTPUTS
from sktune.reports.plan_names import trial_name
from sktune.reports.study import (
    dies_line,
    final_names,
    gain_left_line,
    interval_text,
    model_line,
    trials_line,
    verdict_line,
)
from sktune.study.result import SearchResult

if TYPE_CHECKING:
    from sktune.tuning.recheck import Recheck

COLUMNS = ("trial", "ms/step", "speedup", "95% interval", "bits")
LEFT = ("95% interval", "bits")
DROPPED = ("bits", "ms/step", "95% interval", "trial")
"""Columns that a narrow terminal goes without, in this order."""
GAP, PLAN_WIDTH = "  ", 18
"""Between columns; and the least width of a plan's name."""
MAX_TIES = 3


def result_table(result: SearchResult) -> RenderableType:
    """Return the final comparison and the verdict."""
    lines = [
        *_failures(result),
        trials_line(result),
        verdict_line(result),
        *filter(None, [gain_left_line(result), model_line(result), dies_line(result)]),
        *_ties(result),
    ]
    files = [name for name in OUTPUTS if (result.folder / name).exists()]
    lines.append(f"Files in {result.folder}: {', '.join(files) or 'none yet; `sktune report` writes them'}")
    title = Text(result.facts.description or result.study, style="bold")
    parts: list[RenderableType] = [title, _FinalTable(result)] if result.final else []
    return Group(*parts, *map(Text, lines))


def studies_table(rows: Sequence[StudyRow]) -> RenderableType:
    """Return a line for each study."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("study", overflow="fold", min_width=20)  # a name is copied
    for title in ("trials", "speedup", "last trial", "verdict"):
        table.add_column(title)
    for row in rows:
        speedup = f"{row.speedup:.3f}" if row.speedup else ""
        table.add_row(*map(Text, (row.study, str(row.trials), speedup, (row.changed or "")[:-3], row.verdict)))
    return table


@dataclass(frozen=True, slots=True)
class _FinalTable:
    """The rows of the final comparison; a narrow terminal gets fewer columns rather than figures cut in two."""

    result: SearchResult

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for a terminal's width."""
        columns = _final_columns(self.result)
        widths = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
        for name in DROPPED:
            if sum(width + len(GAP) for width in widths.values()) + PLAN_WIDTH > options.max_width:
                widths.pop(name, None)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("plan", overflow="fold")
        for name in widths:
            table.add_column(name, no_wrap=True, justify="left" if name in LEFT else "right")
        for index, (plan, is_winner) in enumerate(_final_plans(self.result)):
            cells = (plan, *(columns[name][index] for name in widths))
            table.add_row(*map(escape, cells), style="green" if is_winner else None)
        yield table


def _final_plans(result: SearchResult) -> list[tuple[str, bool]]:
    """Return the name of each row, and whether it is the winner."""
    names = final_names(result)
    winner = str(result.winner.number) if result.winner else None
    return [
        (f"{names[row.name]} (winner)" if row.name == winner else names[row.name], row.name == winner)
        for row in result.final
    ]


def _final_columns(result: SearchResult) -> dict[str, list[str]]:
    """Return the cells of each column but the first; simulated figures have neither intervals nor bits."""
    rows = [(row.name if row.name.isdigit() else "", *_figures(result, row)) for row in result.final]
    headings = COLUMNS[:3] if result.is_simulated else COLUMNS
    return {name: [cells[index] for cells in rows] for index, name in enumerate(headings)}


def _figures(result: SearchResult, row: FinalRow) -> tuple[str, str, str, str]:
    """Return latency, speedup, interval and bits of a row."""
    speedup = result.final_speedup(row)
    if speedup is None:
        return "-", "-", "-", "failed"
    interval = "-" if row.name == "baseline" else interval_text(speedup, none="none")
    bits = {True: "identical", False: "differ", None: "-"}[row.bit_identical]
    return f"{speedup.latency_ms:.3f}", f"{speedup.ratio:.3f}", interval, bits


def _failures(result: SearchResult) -> list[str]:
    """Return a line for each row of the final comparison that was not measured."""
    names = final_names(result)
    failed = [row for row in result.final if result.final_speedup(row) is None]
    trials = {row.name: f" (trial {row.name})" for row in failed if row.name.isdigit()}
    return [f"{names[row.name]}{trials.get(row.name, '')}: {row.verdict}" for row in failed]


def _ties(result: SearchResult) -> list[str]:
    """Return a line with the plans that may be as fast as the winner."""
    ties = result.verdict.ties if result.verdict else ()
    if not ties:
        return []
    names = [trial_name(tie.number, tie.plan, result.facts.layout) for tie in ties[:MAX_TIES]]
    more = f" and {len(ties) - MAX_TIES} more" if len(ties) > MAX_TIES else ""
    return [f"Not significantly slower, but not simpler: {', '.join(names)}{more}"]


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
    doubt = bracketed(study.speedup, study.ci95)
    return f"trial {study.winner} wins its final comparison, {study.speedup:.3f}x {doubt}"


def recheck_table(checked: "Recheck") -> Table:
    """Return the result of a recheck."""
    table = Table(show_header=False, title=f"[bold]{checked.verdict}[/bold]", title_justify="left")
    table.add_row("code", escape(checked.code))
    table.add_row("bits", escape(checked.verification.summary.text))
    if speedup := checked.speedup:
        interval = f"95% interval {interval_text(speedup)}, in one process"
        figures = f"{speedup.latency_ms:.3f} ms, the baseline {speedup.baseline_ms:.3f} ms"
        table.add_row("speed", f"{speedup.ratio:.3f} times as fast as the baseline ({interval}): {figures}")
    for change in checked.changes:
        table.add_row("changed", escape(change))
    return table
