"""Pictures of one line: a plan as a strip of coloured cells, and the course of a figure as blocks of rising height."""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from sktune.core.events.values import Span

MAX_CELL_WIDTH = 4
HUES = (("cyan", "blue"), ("yellow", "bright_yellow"), ("magenta", "bright_magenta"), ("green", "bright_green"))
"""Colours of neighbouring scopes, by the number of their options."""
GLYPHS = ("█", "▓")
"""Of neighbouring scopes: they can also be told apart without colours."""
IN_PART, OUTSIDE = "▄", "·"
BLOCKS = "▁▂▃▄▅▆▇█"


def plan_strip(spans: Sequence[Span], units: int, width: int) -> Text:
    """Return a step of ``units`` units in at most ``width`` cells; spans as in the event ``trial_started``."""
    scope_of: dict[int, int] = {
        position: number for number, (first, last, _) in enumerate(spans) for position in range(first, last + 1)
    }
    cell_width = max(1, min(MAX_CELL_WIDTH, width // max(units, 1)))
    cells = min(units, max(width, 1))
    strip = Text(no_wrap=True, overflow="crop")
    for cell in range(cells):
        inside = range(cell * units // cells, (cell + 1) * units // cells)
        scopes = Counter(scope_of[position] for position in inside if position in scope_of)
        if not scopes:
            strip.append(OUTSIDE * cell_width, "dim")
            continue
        ((scope, _),) = scopes.most_common(1)
        glyph = GLYPHS[scope % 2] if scopes.total() == len(inside) else IN_PART
        strip.append(glyph * cell_width, HUES[spans[scope][2] % len(HUES)][scope % 2])
    return strip


def sparkline(values: Sequence[float], width: int) -> str:
    """Return ``values``, the last one included, as at most ``width`` blocks from the lowest to the highest."""
    count = min(len(values), max(width, 1))
    shown = [values[(index + 1) * len(values) // count - 1] for index in range(count)]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    steps = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * steps)] for value in shown)
