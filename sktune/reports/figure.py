"""Figures of a study: a title, a sentence, a drawing, and behind it the same values as a table."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sktune.core.printable import one_line
from sktune.reports.markup import EMPTY, element


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text.

    Attributes:
        columns: their headings.
        rows: text, or markup of the page or the report; as many values as there are columns.
        trials: for each row the number of its trial, to filter and highlight it; empty if rows are not trials.
        numeric: indices of the columns that are aligned to the right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    trials: Sequence[int | None] = ()
    numeric: frozenset[int] = frozenset()

    def html(self, name: str | None = None) -> Markup:
        """Return the table in HTML; ``name`` is that of the file as which a browser saves it."""
        head = (element("th", title, scope="col") for title in self.columns)
        trials = self.trials or [None] * len(self.rows)
        rows = (
            element("tr", *(element("td", value) for value in row), data_t=trial)
            for row, trial in zip(self.rows, trials, strict=True)
        )
        look = " ".join(f"n{index}" for index in sorted(self.numeric)) or None
        body = element("tbody", *rows)
        return element("table", element("thead", element("tr", *head)), body, class_=look, data_name=name)

    def markdown(self) -> str:
        """Return the table in Markdown, in which the values are text."""
        head = "|" + "".join(f" {title} |" if title else " |" for title in self.columns)
        rule = ("---:" if index in self.numeric else "---" for index in range(len(self.columns)))
        rows = ((str(value) if isinstance(value, Markup) else table_cell(value) for value in row) for row in self.rows)
        return "\n".join((head, *(f"| {' | '.join(cells)} |" for cells in (rule, *rows))))


def table_cell(value: object) -> str:
    """Return a value as text that is safe in a Markdown table: one line, without markup."""
    flat = one_line(str(value)).replace("`", "'")
    escaped = re.sub(r"[\\\[\]|]", r"\\\g<0>", flat)  # a link of the text may run a script
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a study, as the page, the Optuna dashboard and notebooks show it; see ``figures.FIGURES``.

    Attributes:
        title: a heading.
        lead: what the drawing says, in a sentence or two.
        body: the drawing in SVG, or other markup.
        table: the drawing's values.
        is_open: whether the page shows the table at first.
        notes: sentences below it.
        plot: returns the drawing as a plotly figure, for notebooks and the dashboard; None if they do without it.
    """

    title: str
    lead: str
    body: Markup = EMPTY
    table: Table | None = None
    is_open: bool = False
    notes: tuple[str, ...] = ()
    plot: Callable[..., Any] | None = None
