"""A picture of a plan: every unit in execution order as a strip, and a bar above each run of units that is one scope.

Layers that look alike are drawn once, with their number. The picture is one SVG without scripts or fonts; text and bars
follow the reader's light or dark mode.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from string import ascii_uppercase

from sktune.core.language import Sentences
from sktune.core.layout import Layout, Unit
from sktune.core.plan import Options, Plan, options_text
from sktune.reports.plan_names import ENGLISH

WIDTH, MARGIN = 900, 12
CELL_WIDTHS = range(26, 73)
"""The largest width that fits in one row is used; if none fits, the picture has several rows."""
CELL_HEIGHT, BAR_HEIGHT, GAP, LAYER_GAP = 30, 20, 2, 16
HEAD_HEIGHT = 36
ROW_HEIGHT = BAR_HEIGHT + CELL_HEIGHT + 52
LINE, CHARACTER = 22, 6.6
"""Height of a line of the legend, and an upper bound of a character's average width, in pixels."""
DEFAULT = "default options"
LONGEST_PERIOD = 8
"""Most layers in a pattern that repeats."""
IN_LAYERS = (
    "#4c8df6", "#f28e2b", "#2fb8a0", "#e15759", "#9b78d3", "#d9a900", "#d671a9", "#6b9e3f", "#8c7a6b", "#3fa7d6",
)  # fmt: skip
OUTSIDE = ("#8a94a6", "#a9b1bf", "#6f7a8c", "#bcc3ce")
STYLE = """
.sk-plan text { font: 11px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #3d4654; }
.sk-plan .sk-head { font-size: 13px; font-weight: 600; fill: #1b2330; }
.sk-plan .sk-line { stroke: #c3cad5; stroke-width: 1.5; }
.sk-plan .sk-bar { fill: #2b3648; }
.sk-plan .sk-mark { font-weight: 600; fill: #ffffff; text-anchor: middle; }
.sk-plan .sk-out { opacity: 0.3; }
@media (prefers-color-scheme: dark) {
  .sk-plan text { fill: #aab4c3; }
  .sk-plan .sk-head { fill: #e8edf4; }
  .sk-plan .sk-line { stroke: #4a5466; }
  .sk-plan .sk-bar { fill: #d5dce6; }
  .sk-plan .sk-mark { fill: #1b2330; }
}
"""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A unit and its position in its scope; ``scope`` is None outside of scopes."""

    unit: Unit
    scope: int | None = None
    begins: bool = False
    ends: bool = False
    x: int = 0
    row: int = 0
    width: int = 0

    @property
    def right(self) -> int:
        """The right edge, without the gap to the next cell."""
        return self.x + self.width - GAP


@dataclass(frozen=True, slots=True)
class _Span:
    """Units that are drawn together: a layer, a pattern of layers that repeats, or units outside of layers."""

    cells: tuple[_Cell, ...]
    caption: str


def plan_picture(plan: Plan, layout: Layout, say: Sentences = ENGLISH) -> str:
    """Return an SVG of the plan over its layout; equal arguments give equal text.

    Raises:
        PlanError: the plan does not fit the layout.
    """
    layout.check(plan)
    spans = tuple(_placed(tuple(_spans(plan, layout, say))))
    marks = option_letters([plan])
    colours = _colours(layout)
    below = _top(1 + max((span.cells[-1].row for span in spans), default=0))
    legend, height = _legend(plan, marks, colours, below, say)
    head = _head(plan, layout, say)
    name = f"sk-plan-{plan.digest[:12]}"
    labelled = f'role="img" aria-labelledby="{name}-title {name}-description"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="sk-plan" viewBox="0 0 {WIDTH} {height}" {labelled}>',
            f'<title id="{name}-title">{escape(head)}</title>',
            f'<desc id="{name}-description">{escape(_description(plan, layout))}</desc>',
            f"<style>{STYLE}</style>",
            _text(MARGIN, 20, head, "sk-head"),
            *(line for span in spans for line in _drawn_span(span, colours)),
            *_drawn_bars(spans, plan, marks),
            *legend,
            "</svg>",
            "",
        ]
    )


def _spans(plan: Plan, layout: Layout, say: Sentences) -> Iterator[_Span]:
    """Yield the spans to draw: a pattern that repeats stands for all its layers."""
    groups = [tuple(cells) for _, cells in groupby(_cells(plan, layout), key=lambda cell: cell.unit.layer)]
    looks = [_look(group, plan, layout) for group in groups]
    at = 0
    while at < len(groups):
        period, times = pattern_at(looks, at, longest=LONGEST_PERIOD, least=3)
        end = at + period * times
        cells = tuple(cell for group in groups[at : at + period] for cell in group)
        yield _Span(cells, _caption(groups[at][0].unit.layer, groups[end - 1][0].unit.layer, times, layout, say))
        at = end


def _cells(plan: Plan, layout: Layout) -> Iterator[_Cell]:
    first = {scope.first: index for index, scope in enumerate(plan.scopes)}
    last = {scope.last for scope in plan.scopes}
    scope: int | None = None
    for unit in layout.units:
        scope = first.get(unit.name, scope)
        yield _Cell(unit, scope, unit.name in first, unit.name in last)
        if unit.name in last:
            scope = None


def _look(cells: Sequence[_Cell], plan: Plan, layout: Layout) -> object:
    """Return a value that is equal for layers that look alike; for units outside of layers it is unique."""
    layer = cells[0].unit.layer
    if layer is None:
        return cells[0].unit.name
    options = (None if cell.scope is None else plan.scopes[cell.scope].options for cell in cells)
    shapes = ((cell.unit.key, cell.begins, cell.ends) for cell in cells)
    return layout.layers[layer].kind, tuple(shapes), tuple(options)


def pattern_at(values: Sequence[object], at: int, *, longest: int, least: int) -> tuple[int, int]:
    """Return length and repetitions of the pattern at ``at`` that covers most values; (1, 1) without one.

    Args:
        values: in which the pattern repeats.
        at: where it begins.
        longest: most values in it.
        least: fewest repetitions.
    """
    best = (1, 1)
    for period in range(1, min(longest, len(values) - at) + 1):
        times = 1
        while values[at + period * times : at + period * (times + 1)] == values[at : at + period]:
            times += 1
        if times >= least and period * times > best[0] * best[1]:
            best = period, times
    return best


def _caption(first: int | None, last: int | None, times: int, layout: Layout, say: Sentences) -> str:
    if first is None or last is None:
        return ""
    kinds = "/".join(dict.fromkeys(layer.kind for layer in layout.layers[first : last + 1]))
    if times == 1:
        return say("picture.layer", layer=first, kind=kinds)
    period = (last + 1 - first) // times
    pattern = f"{times} \u00d7 {f'{period} ' if period > 1 else ''}{kinds}"
    return say("picture.layers", first=first, last=last, pattern=pattern)


def _placed(spans: Sequence[_Span]) -> Iterator[_Span]:
    """Yield the spans with positions for their cells; one that is wider than a row continues in the next."""
    width = max((width for width in CELL_WIDTHS if _total(spans, width) <= WIDTH - 2 * MARGIN), default=CELL_WIDTHS[0])
    x, row, room = MARGIN, 0, (WIDTH - 2 * MARGIN) // width
    for span in spans:
        if x > MARGIN and x + _wide(span, width) > WIDTH - MARGIN:
            x, row = MARGIN, row + 1
        for begin in range(0, len(span.cells), room):
            if begin:
                x, row = MARGIN, row + 1
            part = span.cells[begin : begin + room]
            cells = (replace(cell, x=x + width * index, row=row, width=width) for index, cell in enumerate(part))
            yield _Span(tuple(cells), "" if begin else span.caption)
        x += max(len(part) * width, 0 if len(span.cells) > room else _wide(span, width)) + LAYER_GAP


def _wide(span: _Span, cell_width: int) -> int:
    return max(len(span.cells) * cell_width, int(len(span.caption) * CHARACTER))


def _total(spans: Sequence[_Span], cell_width: int) -> int:
    return sum(_wide(span, cell_width) + LAYER_GAP for span in spans) - LAYER_GAP


def option_letters(plans: Iterable[Plan]) -> dict[Options, str]:
    """Return a letter for each set of options of a scope."""
    sets = dict.fromkeys(scope.options for plan in plans for scope in plan.scopes)
    return {
        options: ascii_uppercase[index % 26] + (str(index // 26) if index >= 26 else "")
        for index, options in enumerate(sets)
    }


def _colours(layout: Layout) -> dict[tuple[bool, str], str]:
    """Return the colour of each key of units, inside layers and outside."""
    inside = dict.fromkeys(unit.key for unit in layout.units if unit.layer is not None)
    outside = dict.fromkeys(unit.key for unit in layout.units if unit.layer is None)
    colours = {(True, key): IN_LAYERS[index % len(IN_LAYERS)] for index, key in enumerate(inside)}
    return colours | {(False, key): OUTSIDE[index % len(OUTSIDE)] for index, key in enumerate(outside)}


def _head(plan: Plan, layout: Layout, say: Sentences) -> str:
    scopes = say.counted(len(plan.scopes), "scope") if plan.scopes else say("picture.no_scope")
    return say("picture.head", scopes=scopes, layers=say.counted(len(layout.layers), "layer"), units=len(layout.units))


def _description(plan: Plan, layout: Layout) -> str:
    """Return the picture in words: each kind of layer, then each scope."""
    kinds = ". ".join(f"A layer of kind {kind} has the units {', '.join(keys)}" for kind, keys in layout.kinds.items())
    scopes = ". ".join(
        f"Scope {scope.label}" + (f" with {options_text(scope.options)}" if scope.options else "")
        for scope in plan.scopes
    )
    step = f"Whole step: {options_text(plan.options)}" if plan.options else ""
    return ". ".join(filter(None, (kinds, scopes, step))) + "."


def _top(row: int) -> int:
    return HEAD_HEIGHT + ROW_HEIGHT * row


def _drawn_span(span: _Span, colours: dict[tuple[bool, str], str]) -> Iterator[str]:
    for cell in span.cells:
        y = _top(cell.row) + BAR_HEIGHT + 5
        colour = colours[cell.unit.layer is not None, cell.unit.key]
        look = f'fill="{colour}"' + (' class="sk-out"' if cell.scope is None else "")
        yield (
            f'<rect x="{cell.x}" y="{y}" width="{cell.width - GAP}" height="{CELL_HEIGHT}" rx="4" {look}>'
            f"<title>{escape(cell.unit.name)}</title></rect>"
        )
    if span.caption:
        first, last = span.cells[0], span.cells[-1]
        y = _top(first.row) + BAR_HEIGHT + CELL_HEIGHT + 12
        yield f'<line class="sk-line" x1="{first.x}" y1="{y}" x2="{last.right}" y2="{y}"/>'
        yield _text(first.x, y + 16, span.caption)


def _drawn_bars(spans: Sequence[_Span], plan: Plan, marks: dict[Options, str]) -> Iterator[str]:
    """Yield a bar for each scope and row; an end is square and longer if the scope continues in layers not drawn."""
    cells = [cell for span in spans for cell in span.cells]
    edges = {span.cells[0] for span in spans}, {span.cells[-1] for span in spans}
    for (scope, row), run in groupby(cells, key=lambda cell: (cell.scope, cell.row)):
        if scope is None:
            continue
        covered = tuple(run)
        first, last = covered[0], covered[-1]
        left = first.x - (LAYER_GAP // 2 if first in edges[0] and not first.begins else 0)
        right = last.right + (GAP + LAYER_GAP // 2 if last in edges[1] and not last.ends else 0)
        y, mark = _top(row), marks[plan.scopes[scope].options]
        title = f"{plan.scopes[scope].label}: {options_text(plan.scopes[scope].options) or DEFAULT}"
        yield (
            f'<path class="sk-bar" d="{_bar(left, right, y, round_left=first.begins, round_right=last.ends)}">'
            f"<title>{escape(title)}</title></path>"
        )
        yield _text((left + right) / 2, y + 14, mark, "sk-mark")


def _bar(left: int, right: int, y: int, *, round_left: bool, round_right: bool) -> str:
    """Return the path of a bar whose ends are round or square."""
    at_left, at_right = (6 if rounded else 0 for rounded in (round_left, round_right))  # radii
    return (
        f"M{left + at_left} {y}H{right - at_right}q{at_right} 0 {at_right} {at_right}v{BAR_HEIGHT - 2 * at_right}"
        f"q0 {at_right} -{at_right} {at_right}H{left + at_left}q-{at_left} 0 -{at_left} -{at_left}"
        f"v-{BAR_HEIGHT - 2 * at_left}q0 -{at_left} {at_left} -{at_left}z"
    )


def _legend(
    plan: Plan, marks: dict[Options, str], colours: dict[tuple[bool, str], str], y: int, say: Sentences
) -> tuple[list[str], int]:
    """Return the lines that explain colours and letters, and the height of the whole picture."""
    lines: list[str] = []
    x = MARGIN
    for (_, key), colour in colours.items():
        wide = int(len(key) * CHARACTER) + 34
        if x > MARGIN and x + wide > WIDTH - MARGIN:
            x, y = MARGIN, y + LINE
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="3" fill="{colour}"/>')
        lines.append(_text(x + 18, y + 10, key))
        x += wide
    for options, mark in marks.items():
        y += LINE
        count = sum(scope.options == options for scope in plan.scopes)
        lines.append(f'<rect class="sk-bar" x="{MARGIN}" y="{y - 2}" width="24" height="16" rx="5"/>')
        lines.append(_text(MARGIN + 12, y + 10, mark, "sk-mark"))
        named = options_text(options) or say("no_options")
        lines.append(_text(MARGIN + 32, y + 10, f"{say.counted(count, 'scope')}: {named}"))
    if plan.options:
        y += LINE
        lines.append(_text(MARGIN, y + 10, say("picture.step", options=options_text(plan.options))))
    return lines, y + LINE


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"' + (f' class="{look}"' if look else "") + f">{escape(text)}</text>"
