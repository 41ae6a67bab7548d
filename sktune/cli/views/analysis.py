"""Terminal output of an analysis."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sktune.analysis.model import Analysis, option_text, walk_lines
from sktune.analysis.report import OPTION_COLUMNS, bits_text, options_rows, profile_lines

COLUMNS = ("option", "trial", "result", "latency", "speedup")
"""Columns of the options' table that fit a narrow terminal; the report has all."""


def analysis_view(analysis: Analysis) -> RenderableType:
    """Return the path through the guide's tree, the options, the recommendation, its risks and the next commands."""
    text = analysis.text
    table = Table(title=text("head.options"), title_justify="left")
    for name in COLUMNS:
        table.add_column(text(f"column.{name}"), overflow="fold")
    for row, option in zip(options_rows(analysis), analysis.options, strict=True):
        is_recommended = option.trial is not None and option.trial == analysis.recommendation.trial
        cells = [cell for name, cell in zip(OPTION_COLUMNS, row, strict=True) if name in COLUMNS]
        table.add_row(*map(escape, cells), style="green" if is_recommended else None)
    advice = text("recommendation", option=option_text(text, analysis.recommendation.option))
    lines = [*walk_lines(text, analysis.findings, analysis.walk), *profile_lines(analysis)]
    risks = [f"- {risk.text}" for risk in analysis.risks]
    commands = [line for command in analysis.commands for line in (text(command.purpose), f"  {command.line}")]
    return Group(
        *map(Text, lines),
        table,
        Text(analysis.figures_text, style="yellow"),
        Text(f"{advice} {analysis.reason_text}", style="bold"),
        *([Text(f"{text('item.bits')}: {bits}")] if (bits := bits_text(analysis)) else []),
        Text(text("head.risks"), style="bold"),
        *map(Text, [*risks, *commands, text("files", files=", ".join(map(str, analysis.files)))]),
    )
