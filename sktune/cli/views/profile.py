"""What people see of a profile on a terminal."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from sktune.profiling.analysis import Profile
from sktune.profiling.comparison import Comparison
from sktune.profiling.tables import Table, comparison_table, headline, overview, profile_tables

NAME_WIDTH = 30
"""Longer names are folded before a column is left out for them."""


def profile_view(profile: Profile, comparison: Comparison | None, picture: Path) -> RenderableType:
    """Return the tables of ``profile``, the comparison where there is one, and last what matters for scopes."""
    shown = [("", profile)]
    if comparison:
        shown = [("baseline: ", profile), ("candidate: ", comparison.candidate)]
    parts: list[RenderableType] = []
    for label, found in shown:
        parts.append(Text(label + overview(found), style="bold"))
        parts += [Text(f"warning: {line}", style="yellow") for line in found.warnings]
        parts += [_Fitted(table) for table in profile_tables(found)]
    if comparison:
        parts.append(_Fitted(comparison_table(comparison)))
    parts += [Text(label + headline(found), style="bold") for label, found in shown]
    parts.append(Text(f"timeline: {picture}"))
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table in the width of the terminal: spare columns are left out and names are folded, figures never cut."""

    table: Table

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


def _grid(table: Table, left_out: Collection[str]) -> Grid:
    grid = Grid(title=table.title, title_justify="left")
    kept = [number for number, column in enumerate(table.columns) if column not in left_out]
    for number in kept:
        cells = _cells(table, number)
        if number == 0:
            grid.add_column(table.columns[0], overflow="fold")
        else:
            justify: JustifyMethod = "right" if all(_is_figure(cell) for cell in cells[1:]) else "left"
            grid.add_column(table.columns[number], justify=justify, min_width=_longest_word(cells))
    for row in table.rows:
        grid.add_row(*(Text(row[number]) for number in kept))
    return grid


def _width(table: Table, left_out: Collection[str]) -> int:
    """Return how many signs wide the table is at least, with its borders and names of ``NAME_WIDTH``."""
    kept = [_cells(table, number) for number, column in enumerate(table.columns) if column not in left_out]
    name = min(max(map(len, kept[0])), NAME_WIDTH)
    return name + sum(map(_longest_word, kept[1:])) + 3 * len(kept) + 1


def _longest_word(cells: Iterable[str]) -> int:
    return max(len(word) for cell in cells for word in cell.split())


def _cells(table: Table, number: int) -> list[str]:
    return [table.columns[number], *(row[number] for row in table.rows)]


def _is_figure(cell: str) -> bool:
    return cell.lstrip("+-").rstrip("%").replace(".", "", 1).isdigit()
