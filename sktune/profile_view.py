"""What people see of a profile on a terminal."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from sktune.profiling.analysis import Profile
from sktune.profiling.comparison import Comparison
from sktune.profiling.tables import Table, comparison_table, headline, overview, profile_tables


def profile_view(profile: Profile, comparison: Comparison | None, picture: Path) -> RenderableType:
    """Return the tables of ``profile``, the comparison where there is one, and last what matters for scopes."""
    shown = [profile] if comparison is None else [profile, comparison.candidate]
    parts: list[RenderableType] = []
    for label, found in zip(("baseline", "candidate") if comparison else ("",), shown, strict=True):
        parts.append(Text(f"{label}: {overview(found)}" if label else overview(found), style="bold"))
        parts += [Text(f"warning: {line}", style="yellow") for line in found.warnings]
        parts += [part for table in profile_tables(found) for part in _grid(table)]
    if comparison:
        parts += _grid(comparison_table(comparison))
    parts += [Text(headline(found), style="bold") for found in shown]
    parts.append(Text(f"timeline: {picture}"))
    return Group(*parts)


def _grid(table: Table) -> list[RenderableType]:
    grid = Grid(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        is_figure = number and all(_is_figure(row[number]) for row in table.rows)
        grid.add_column(column, justify="right" if is_figure else "left", no_wrap=number == 0)
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    return [grid, Text(table.note, style="dim")] if table.note else [grid]


def _is_figure(cell: str) -> bool:
    return cell.lstrip("+-").rstrip("%").replace(".", "", 1).isdigit()
