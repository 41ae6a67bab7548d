"""Sections of the page: a title, a sentence, a picture, and behind it the same figures as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from sktune.reports.page.markup import EMPTY, element, joined

WIDTH = 1000
"""Of every picture, in pixels of its own; the page scales it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text.

    Attributes:
        columns: their headings.
        rows: text or markup, as many values as there are columns.
        trials: for each row the number of its trial, to filter and highlight it; empty if rows are not trials.
        numeric: indices of the columns that are aligned to the right.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    trials: Sequence[int | None] = ()
    numeric: frozenset[int] = frozenset()

    def markup(self, name: str) -> Markup:
        """Return the table in HTML."""
        head = (element("th", title, scope="col") for title in self.columns)
        trials = self.trials or [None] * len(self.rows)
        rows = (
            element("tr", *(element("td", value) for value in row), data_t=trial)
            for row, trial in zip(self.rows, trials, strict=True)
        )
        look = " ".join(f"n{index}" for index in sorted(self.numeric)) or None
        body = element("tbody", *rows)
        return element("table", element("thead", element("tr", *head)), body, class_=look, data_name=name)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        key: the anchor.
        title: a heading.
        lead: what the picture says, in a sentence or two.
        body: the picture, or other markup.
        table: the picture's figures.
        is_open: whether the table is shown at first.
    """

    key: str
    title: str
    lead: str
    body: Markup = EMPTY
    table: Table | None = None
    is_open: bool = False
    notes: tuple[str, ...] = field(default=())


def picture(key: str, title: str, description: str, height: float, *content: object) -> Markup:
    """Return an SVG in a figure that scrolls sideways where it has no room, with a title and a description."""
    labelled = f"{key}-title {key}-description"
    svg = element(
        "svg",
        element("title", title, id=f"{key}-title"),
        element("desc", description, id=f"{key}-description"),
        *content,
        viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_labelledby=labelled, class_="chart",
    )  # fmt: skip
    return element("figure", svg)


def text(x: float, y: float, value: object, class_: str | None = None, anchor: str | None = None) -> Markup:
    """Return SVG text; ``anchor`` is ``middle`` or ``end``."""
    return element("text", value, x=float(x), y=float(y), class_=class_, text_anchor=anchor)


def legend(entries: Sequence[tuple[Markup, str]], x: float, y: float, width: float = WIDTH) -> tuple[Markup, float]:
    """Return marks with their words in rows, each mark drawn around its origin, and the height that they take."""
    drawn, at, row = [], x, y
    for mark, word in entries:
        wide = 30 + 6.9 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in word)
        if at > x and at + wide > width:
            at, row = x, row + 20
        drawn.append(element("g", mark, transform=f"translate({at + 6:.0f} {row:.0f})"))
        drawn.append(text(at + 16, row + 4, word))
        at += wide
    return joined(drawn), row - y + 20
