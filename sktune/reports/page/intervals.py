"""Rows of intervals beneath each other on one scale: forest plots and effects."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sktune.core.printable import shortened
from sktune.reports.page.markup import element, joined
from sktune.reports.page.scale import Scale
from sktune.reports.page.section import WIDTH, text

NAMES, ROW = 400.0, 24.0
"""Width of the names, and height of a row, in pixels."""
VALUES = 70.0
MAX_NAME = 56


@dataclass(frozen=True, slots=True)
class Interval:
    """A row.

    Attributes:
        name: shown beside it.
        value, low, high: the point and its interval; ``low`` and ``high`` are None without one.
        dots: single measurements behind it.
        trial: number of its trial, if it has one.
        look: CSS class of the point.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    dots: Sequence[float] = ()
    trial: int | None = None
    look: str = "point"


def intervals(
    rows: Sequence[Interval], label: str, decimals: int, neutral: float, band: float = 0.0, unit: str = ""
) -> tuple[Markup, float]:
    """Return the rows with their axis, and the height.

    Args:
        rows: from top to bottom.
        label: of the axis.
        decimals: of the values beside the rows.
        neutral: value of no effect, drawn as a line.
        band: half width of the range around it that counts as no effect.
        unit: after each value.
    """
    scale = _scale(rows, neutral, band)
    bottom = 6 + ROW * len(rows)
    drawn = []
    if band:
        left, right = scale(neutral - band), scale(neutral + band)
        drawn.append(element("rect", x=left, y=0.0, width=right - left, height=bottom, class_="band"))
    drawn += [
        joined((element("line", x1=scale(tick), x2=scale(tick), y1=0.0, y2=bottom, class_="grid"),
                text(scale(tick), bottom + 14, label, "small", "middle")))
        for tick, label in scale.ticks()
    ]  # fmt: skip
    drawn.append(element("line", x1=scale(neutral), x2=scale(neutral), y1=0.0, y2=bottom, class_="neutral"))
    drawn += [_row(row, scale, 6 + ROW * index + ROW / 2, decimals, unit) for index, row in enumerate(rows)]
    drawn.append(text((NAMES + WIDTH - VALUES) / 2, bottom + 32, label, "small", "middle"))
    return joined(drawn), bottom + 40


def _scale(rows: Sequence[Interval], neutral: float, band: float) -> Scale:
    """Return a scale of all points, and of most ends of intervals; the others are marked by an arrow."""
    points = [neutral - band, neutral + band, *(value for row in rows for value in (row.value, *row.dots))]
    lows = Scale.around_most([row.low for row in rows if row.low is not None] or points, 0, 1)
    highs = Scale.around_most([row.high for row in rows if row.high is not None] or points, 0, 1)
    return Scale.around([*points, lows.low, highs.high], NAMES, WIDTH - VALUES)


def _row(row: Interval, scale: Scale, y: float, decimals: int, unit: str) -> Markup:
    drawn = [text(NAMES - 14, y + 4, shortened(row.name, MAX_NAME), None, "end")]
    if row.low is not None and row.high is not None:
        low, high = scale(row.low), scale(row.high)
        drawn.append(element("line", x1=low, x2=high, y1=y, y2=y, class_="whisker"))
        beyond = [(low, 6.0)] * (row.low < scale.low) + [(high, -6.0)] * (row.high > scale.high)
        drawn += [element("path", d=f"M{x + into:.1f} {y - 4:.1f}L{x:.1f} {y:.1f}L{x + into:.1f} {y + 4:.1f}",
                          class_="beyond") for x, into in beyond]  # fmt: skip
    drawn += [element("circle", cx=scale(dot), cy=y, r=3, class_="dot") for dot in row.dots]
    drawn.append(element("circle", cx=scale(row.value), cy=y, r=5, class_=row.look))
    drawn.append(text(WIDTH - VALUES + 10, y + 4, f"{row.value:.{decimals}f}{unit}"))
    return element("g", *drawn, data_t=row.trial)
