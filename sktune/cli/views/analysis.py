"""What people see of an analysis on a terminal."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sktune.analysis.model import Analysis, option_told, walk_told
from sktune.analysis.report import OPTION_COLUMNS, bits_told, options_rows, profile_told

COLUMNS = ("option", "trial", "result", "latency", "speedup")
"""Of the options' table, what a narrow terminal holds; the report has all."""


def analysis_view(analysis: Analysis) -> RenderableType:
    """Return the walk through the guide's tree, the options, the recommendation, its risks and what to run next."""
    words = analysis.words
    table = Table(title=words("head.options"), title_justify="left")
    for name in COLUMNS:
        table.add_column(words(f"column.{name}"), overflow="fold")
    for row, option in zip(options_rows(analysis), analysis.options, strict=True):
        is_recommended = option.trial is not None and option.trial == analysis.recommendation.trial
        cells = [cell for name, cell in zip(OPTION_COLUMNS, row, strict=True) if name in COLUMNS]
        table.add_row(*map(escape, cells), style="green" if is_recommended else None)
    told = words("recommendation", option=option_told(words, analysis.recommendation.option))
    lines = [*walk_told(words, analysis.findings, analysis.walk), *profile_told(analysis)]
    risks = [f"- {risk.text}" for risk in analysis.risks]
    commands = [line for command in analysis.commands for line in (words(command.purpose), f"  {command.line}")]
    return Group(
        *map(Text, lines),
        table,
        Text(analysis.figures_told, style="yellow"),
        Text(f"{told} {analysis.reason_told}", style="bold"),
        *([Text(f"{words('item.bits')}: {bits}")] if (bits := bits_told(analysis)) else []),
        Text(words("head.risks"), style="bold"),
        *map(Text, [*risks, *commands, words("files", files=", ".join(map(str, analysis.files)))]),
    )
