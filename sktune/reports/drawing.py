"""Drawings in SVG: scales with round ticks, pictures, legends, and rows of intervals beneath each other."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sktune.core.printable import shortened
from sktune.reports.markup import element, joined

WIDTH = 1000
"""Of every picture, in pixels of its own; the page scales it."""
NAMES, ROW = 400.0, 24.0
"""Width of the names, and height of a row, in pixels."""
VALUES = 70.0
MAX_NAME = 56
FAR = 8.0
"""Median absolute deviations from which a value lies far from most."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from the values ``low`` to ``high`` to the pixels ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float, margin: float = 0.06) -> "Scale":
        """Return a scale that shows all finite ``values`` with a margin, as a share of their range."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        room = (high - low) * margin or max(abs(low), 1e-9) * margin
        return cls(low - room, high + room, start, end)

    @classmethod
    def around_most(cls, values: Iterable[float], start: float, end: float) -> "Scale":
        """Return a scale like ``around`` without the values that lie far from most others; these move to its ends."""
        finite = sorted(value for value in values if math.isfinite(value))
        if len(finite) < 4:
            return cls.around(finite, start, end)
        middle = statistics.median(finite)
        room = FAR * statistics.median(abs(value - middle) for value in finite)
        near = [value for value in finite if abs(value - middle) <= room]
        return cls.around(near if room else finite, start, end)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; one outside is moved to the nearer end."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[tuple[float, str]]:
        """Return about ``wanted`` round values in the range, with labels that tell them apart.

        They are multiples of 1, 2 or 5 times a power of ten.
        """
        step = self.step(wanted)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(index * step, self.label(index * step, wanted)) for index in range(first, last + 1)]

    def step(self, wanted: int = 5) -> float:
        """Return the distance of the ticks."""
        rough = (self.high - self.low) / max(1, wanted)
        power = 10.0 ** math.floor(math.log10(rough))
        return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)

    def label(self, value: float, wanted: int = 5) -> str:
        """Return a tick's label, with as many decimals as its distance to the next one needs."""
        decimals = max(0, -math.floor(math.log10(self.step(wanted)) + 1e-9))
        return f"{value + 0.0:,.{decimals}f}"


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


def rows_grid(up: Scale, left: float, right: float, unit: str = "", wanted: int = 5) -> list[Markup]:
    """Return a line for each tick of a vertical scale, with its label on the left."""
    return [
        joined((element("line", x1=left, x2=right, y1=up(tick), y2=up(tick), class_="grid"),
                text(left - 8, up(tick) + 4, f"{label}{unit}", "small", "end")))
        for tick, label in up.ticks(wanted)
    ]  # fmt: skip


def columns_grid(across: Scale, bottom: float) -> list[Markup]:
    """Return a line for each tick of a horizontal scale, with its label at the bottom."""
    return [
        joined((element("line", x1=across(tick), x2=across(tick), y1=0.0, y2=bottom, class_="grid"),
                text(across(tick), bottom + 14, label, "small", "middle")))
        for tick, label in across.ticks()
    ]  # fmt: skip


def trials_axis(across: Scale, bottom: float, label: str) -> list[Markup]:
    """Return the numbers of trials below a horizontal scale, and its label."""
    ticks = [tick for tick, _ in across.ticks(10) if tick == int(tick)]
    numbers = [text(across(tick), bottom + 16, int(tick), "small", "middle") for tick in ticks]
    return [*numbers, text((across.start + across.end) / 2, bottom + 32, label, "small", "middle")]


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
    points = [neutral - band, neutral + band, *(value for row in rows for value in (row.value, *row.dots))]
    # Ends of intervals that lie far from most are marked by an arrow.
    lows = Scale.around_most([row.low for row in rows if row.low is not None] or points, 0, 1)
    highs = Scale.around_most([row.high for row in rows if row.high is not None] or points, 0, 1)
    scale = Scale.around([*points, lows.low, highs.high], NAMES, WIDTH - VALUES)
    bottom = 6 + ROW * len(rows)
    drawn = []
    if band:
        left, right = scale(neutral - band), scale(neutral + band)
        drawn.append(element("rect", x=left, y=0.0, width=right - left, height=bottom, class_="band"))
    drawn += columns_grid(scale, bottom)
    drawn.append(element("line", x1=scale(neutral), x2=scale(neutral), y1=0.0, y2=bottom, class_="neutral"))
    drawn += [_row(row, scale, 6 + ROW * index + ROW / 2, decimals, unit) for index, row in enumerate(rows)]
    drawn.append(text((NAMES + WIDTH - VALUES) / 2, bottom + 32, label, "small", "middle"))
    return joined(drawn), bottom + 40


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
