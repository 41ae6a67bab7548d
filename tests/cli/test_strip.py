"""Pictures of one line fit the width that they are given, and show every scope."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sktune.cli.views.strip import BLOCKS, GLYPHS, IN_PART, OUTSIDE, plan_strip, sparkline


@given(st.integers(1, 300), st.integers(1, 200), st.data())
def test_a_strip_fits_and_shows_where_scopes_are(units: int, width: int, data: st.DataObject) -> None:
    """At least one cell, however narrow; marked cells if and only if there is a scope."""
    first, last = sorted((data.draw(st.integers(0, units - 1)), data.draw(st.integers(0, units - 1))))
    shown = plan_strip([(first, last, 0)], units, width).plain
    assert 1 <= len(shown) <= width
    assert set(shown) <= {*GLYPHS, IN_PART, OUTSIDE}
    assert set(shown) != {OUTSIDE}
    assert set(plan_strip([], units, width).plain) == {OUTSIDE}


def test_neighbouring_scopes_differ_without_colours() -> None:
    """And with them; scopes with other options have another hue."""
    strip = plan_strip([(0, 1, 0), (2, 3, 0), (4, 4, 1)], 6, 24)
    assert [(glyph, len(list(run))) for glyph, run in groupby(strip.plain)] == [
        (GLYPHS[0], 8), (GLYPHS[1], 8), (GLYPHS[0], 4), (OUTSIDE, 4),
    ]  # fmt: skip
    first, second, other, _ = dict.fromkeys(str(span.style) for span in strip.spans)
    assert len({first, second, other}) == 3


def test_a_narrow_strip_marks_cells_that_are_in_part_inside_a_scope() -> None:
    """One unit of every four."""
    assert plan_strip([(1, 1, 0), (5, 5, 0)], 8, 2).plain == IN_PART * 2


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ([], 5, ""),
        ([1.0], 5, "▁"),
        ([1.0, 1.0], 5, "▁▁"),
        ([1.0, 1.1, 1.2], 5, "▁▅█"),
        (range(100), 4, "▁▃▆█"),
        ([1.0, 2.0], 0, "▁"),
    ],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values: list[float], width: int, shown: str) -> None:
    """Thinned out evenly where it does not fit."""
    seen = sparkline(values, width)
    assert len(seen) == len(shown)
    assert set(seen) <= set(BLOCKS)
    assert width == 0 or seen == shown
