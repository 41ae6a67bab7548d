"""Terminal output of searches for several shapes: a row for each."""

from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sktune.reports.plan_names import ENGLISH
from sktune.reports.shapes import NUMERIC, PAGE, REPORT, answer_lines, shapes_table
from sktune.study.result import BEST_PLAN
from sktune.study.shapes import ShapesResult

SIZE_WIDTH = 20
"""Most characters in a line of a shape's name that is never folded, as a size is; the path of a recipe may be."""


def shapes_view(answer: ShapesResult) -> RenderableType:
    """Return the table of shapes, and the answer in sentences."""
    lines = [Text(line) for line in answer_lines(answer)]
    if not answer.is_finished:
        return Group(*lines)
    shown = shapes_table(answer)
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), caption=ENGLISH("shapes.loss")
    )
    names = [str(row[0]).replace(" context=", "\ncontext=") for row in shown.rows]
    are_short = max(len(line) for name in names for line in name.splitlines()) <= SIZE_WIDTH
    for number, heading in enumerate(shown.columns):
        justify: Literal["left", "right"] = "right" if number in NUMERIC else "left"
        table.add_column(heading, overflow="fold", justify=justify, no_wrap=are_short and not number)
    for name, row in zip(names, shown.rows, strict=True):
        table.add_row(*(escape(str(value)) for value in (name, *row[1:])))
    files = ", ".join(name for name in (PAGE, REPORT, BEST_PLAN) if (answer.folder / name).exists())
    return Group(table, *lines, Text(f"Files in {answer.folder}: {files or 'none yet'}"))
