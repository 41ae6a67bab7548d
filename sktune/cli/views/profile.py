"""Terminal output of a profile."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from sktune.profiling.analysis import Profile
from sktune.profiling.comparison import MatchedProfiles
from sktune.profiling.tables import FigureTable, comparison_tables, headline, overview, profile_tables

NAME_WIDTH = 30
"""Longer names are folded before a column is left out for them."""
WORD_WIDTH = 12
"""Longer words are folded; figures and verdicts are shorter."""


def profile_view(profile: Profile, comparison: MatchedProfiles | None, picture: Path) -> RenderableType:
    """Return the tables of ``profile``, the comparison if there is one, and last what matters for scopes."""
    labelled = [("", profile)]
    if comparison:
        labelled = [("baseline: ", profile), ("candidate: ", comparison.candidate)]
    parts: list[RenderableType] = []
    for label, each in labelled:
        parts.append(Text(label + overview(each), style="bold"))
        parts += [Text(f"warning: {line}", style="yellow") for line in each.warnings]
        parts += [_Fitted(table) for table in profile_tables(each)]
    if comparison:
        parts += [_Fitted(table) for table in comparison_tables(comparison)]
    parts += [Text(label + headline(each), style="bold") for label, each in labelled]
    parts.append(Text(f"timeline: {picture}"))
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table that fits the terminal: spare columns are left out and names are folded, but figures are never cut."""

    table: FigureTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        if not table.rows:
            yield Text(f"{table.title}: {table.note}")
            return
        left_out: list[str] = []
        for column in table.spare:
            if _width(table, left_out) <= options.max_width:
                break
            left_out.append(column)
        yield _grid(table, left_out)
        notes = [table.note] if table.note else []
        if left_out:
            notes.append(f"Left out on this narrow terminal: {', '.join(left_out)}.")
        if notes:
            yield Text(" ".join(notes), style="dim")


def _grid(table: FigureTable, left_out: Collection[str]) -> Grid:
    grid = Grid(title=table.title, title_justify="left")
    shown = [number for number, column in enumerate(table.columns) if column not in left_out]
    for number in shown:
        cells = _cells(table, number)
        if number == 0:
            grid.add_column(table.columns[0], overflow="fold")
        else:
            justify: JustifyMethod = "right" if all(_is_figure(cell) for cell in cells[1:]) else "left"
            grid.add_column(table.columns[number], justify=justify, overflow="fold", min_width=_least_width(cells))
    for row in table.rows:
        grid.add_row(*(Text(row[number]) for number in shown))
    return grid


def _width(table: FigureTable, left_out: Collection[str]) -> int:
    """Return the least width of the table in characters, with borders and with names of at most ``NAME_WIDTH``."""
    columns = [_cells(table, number) for number, column in enumerate(table.columns) if column not in left_out]
    name = min(max(map(len, columns[0])), NAME_WIDTH)
    return name + sum(map(_least_width, columns[1:])) + 3 * len(columns) + 1


def _least_width(cells: Iterable[str]) -> int:
    return min(WORD_WIDTH, max(len(word) for cell in cells for word in cell.split()))


def _cells(table: FigureTable, number: int) -> list[str]:
    return [table.columns[number], *(row[number] for row in table.rows)]


def _is_figure(cell: str) -> bool:
    return cell.lstrip("+-").rstrip("%").replace(".", "", 1).isdigit()
