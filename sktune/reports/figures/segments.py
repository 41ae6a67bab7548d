"""First unit by last unit: what one scope saves, with doubt and what was never tried told apart."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from sktune.core.printable import shortened
from sktune.reports.drawing import WIDTH, picture, text
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element, joined
from sktune.reports.plots import empty_plot, plain
from sktune.reports.shown import Shown
from sktune.reports.why import SegmentSavings

LEFT, TOP = 260.0, 96.0
MAX_CELL, MIN_TEXT = 92.0, 44.0
"""Width of a cell, and from which width it has room for its figure, in pixels."""


def segments(shown: Shown) -> Figure | None:
    """Return a matrix for each layer kind."""
    why, say = shown.why, shown.say
    if why is None or not why.segments:
        return None
    largest = max((abs(value) for kind in why.segments for value in kind.saving_ms.flat if value == value), default=0.0)
    drawn = [joined((element("h3", kind.kind), _matrix(shown, kind, largest, index)))
             for index, kind in enumerate(why.segments)]  # fmt: skip
    head = (say("kind"), say("first_unit"), say("last_unit"), say("effects.saves", unit=shown.ms), "95%", say("trials"))
    rows = [
        (kind.kind, kind.units[row], kind.units[column], f"{kind.saving_ms[row, column]:.4f}",
         f"± {1.96 * kind.sd_ms[row, column]:.4f}", int(kind.tried[row, column]) or say("segments.never"))
        for kind in why.segments
        for row in range(len(kind.units))
        for column in range(row, len(kind.units))
        if kind.saving_ms[row, column] == kind.saving_ms[row, column]
    ]  # fmt: skip
    table = Table(head, rows, numeric=frozenset({3, 4, 5}))
    lead = say("segments.lead", unit=shown.ms)
    return Figure(say("segments.title"), lead, joined(drawn), table, plot=partial(_plot, shown, why.segments))


def _plot(shown: Shown, kinds: Sequence[SegmentSavings], kind: str | None = None) -> Any:
    """Return the matrix of a layer kind, by default the first, with plotly."""
    chosen = next((each for each in kinds if kind in (None, each.kind)), None)
    plot = empty_plot(shown, shown.say("segments.title"), shown.say("last_unit"), shown.say("first_unit"))
    if chosen:
        units = [plain(unit) for unit in chosen.units]
        plot.add_heatmap(
            z=chosen.saving_ms, x=units, y=units, customdata=1.96 * chosen.sd_ms, colorscale="RdBu", zmid=0,
            hovertemplate="%{y} to %{x}: %{z:.4f} ± %{customdata:.4f}<extra></extra>",
        )  # fmt: skip
        plot.update_layout(title=plain(f"{chosen.kind}: {shown.say('segments.title')}, {shown.ms}"))
        plot.update_yaxes(autorange="reversed")
    return plot


def _matrix(shown: Shown, kind: SegmentSavings, largest: float, index: int) -> Markup:
    """Return one kind's matrix: the colour is the saving, its strength how certain the sign is, hatched if untried."""
    count, say = len(kind.units), shown.say
    cell = min(MAX_CELL, (WIDTH - LEFT - 20) / count)
    high = min(cell, 34.0)
    drawn: list[Markup | None] = []
    for row, unit in enumerate(kind.units):
        y = TOP + high * row
        scope = kind.in_scope[row]
        label = say("segments.in_scope", unit=shortened(unit, 26), scope=scope) if scope else shortened(unit, 32)
        drawn.append(text(LEFT - 10, y + high / 2 + 4, label, None, "end"))
        x = LEFT + cell * row + cell / 2
        drawn.append(
            element("text", shortened(unit, 22), x=x, y=TOP - 8, transform=f"rotate(-28 {x:.0f} {TOP - 8:.0f})")
        )
        drawn += [_cell(shown, kind, row, column, cell, high, largest) for column in range(row, count)]
    described = say("segments.described", kind=kind.kind)
    hatch = element(
        "defs",
        element(
            "pattern", element("path", d="M0 6L6 0", class_="hatch"), id=f"untried-{index}", width=6, height=6,
            patternUnits="userSpaceOnUse",
        ),
    )  # fmt: skip
    covers = [
        element("rect", x=LEFT + cell * column + 1, y=TOP + high * row + 1, width=cell - 2, height=high - 2,
                fill=f"url(#untried-{index})", pointer_events="none")
        for row in range(count)
        for column in range(row, count)
        if not kind.tried[row, column] and kind.saving_ms[row, column] == kind.saving_ms[row, column]
    ]  # fmt: skip
    return picture(f"segments-{index}", kind.kind, described, TOP + high * count + 8, hatch, *drawn, *covers)


def _cell(
    shown: Shown, kind: SegmentSavings, row: int, column: int, cell: float, high: float, largest: float
) -> Markup | None:
    saving, sd = float(kind.saving_ms[row, column]), float(kind.sd_ms[row, column])
    if saving != saving:
        return None
    certain = min(1.0, abs(saving) / (1.96 * sd)) if sd else 1.0
    strength = round(0.12 + 0.78 * (abs(saving) / largest if largest else 0.0) * (0.35 + 0.65 * certain), 3)
    x, y = LEFT + cell * column + 1, TOP + high * row + 1
    tried = int(kind.tried[row, column])
    title = shown.say(
        "segments.cell", first=kind.units[row], last=kind.units[column], saving=f"{saving:.4f}",
        doubt=f"{1.96 * sd:.4f}", tried=tried or shown.say("segments.never"),
    )  # fmt: skip
    box = element(
        "rect", element("title", title), x=x, y=y, width=cell - 2, height=high - 2, rx=3,
        class_="saves" if saving >= 0 else "costs", fill_opacity=f"{strength}",
    )  # fmt: skip
    if cell < MIN_TEXT:
        return box
    doubt = "" if sd * 1.96 < abs(saving) else "?"
    look = "on" if strength > 0.6 else None
    return joined((box, text(x + cell / 2 - 1, y + high / 2 + 3, f"{saving:.3f}{doubt}", look, "middle")))
