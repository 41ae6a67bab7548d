"""Terminal output of searches for several models: a row for each."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from sktune.cluster.side_by_side import ModelAnswer
from sktune.core.errors import first_line
from sktune.core.events.values import ModelResult

HEADINGS = ("model", "baseline ms", "best ms", "speedup", "95% interval", "trials", "study")
LEFT = ("model", "95% interval", "study")


def rows_of(answers: Sequence[ModelAnswer]) -> list[ModelResult]:
    """Return what became of each search."""
    rows = []
    for answer in answers:
        result = answer.result
        rows.append(
            ModelResult(
                model=answer.request.model,
                study=answer.request.study or "",
                trials=len(result.trials) if result else 0,
                baseline_ms=result.baseline_ms if result else None,
                best_ms=result.winner.speedup.latency_ms if result and result.winner else None,
                speedup=result.speedup if result else None,
                ci95=result.ci95 if result else None,
                failure=first_line(answer.failure) if answer.failure else None,
            )
        )
    return rows


def models_table(answers: Sequence[ModelAnswer]) -> Table:
    """Return the closing table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold", justify="left" if heading in LEFT else "right")
    for answer, row in zip(answers, rows_of(answers), strict=True):
        if row.failure is not None:
            cells = ["-", "-", "-", "failed", "-"]
        else:
            ci95, is_simulated = row.ci95, bool(answer.result and answer.result.is_simulated)
            interval = f"{ci95[0]:.3f} to {ci95[1]:.3f}" if ci95 else "simulated" if is_simulated else "none"
            figures = [(row.baseline_ms, 3), (row.best_ms or row.baseline_ms, 3), (row.speedup, 3)]
            cells = ["-" if value is None else f"{value:.{digits}f}" for value, digits in figures]
            cells += [interval, str(row.trials)]
        table.add_row(*map(escape, (row.model, *cells, row.study)))
    return table
