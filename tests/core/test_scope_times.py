"""Scope times: every unit in exactly one piece, no time lost, and a short record."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sktune.core.codec import decoded, encoded
from sktune.core.layout import Layout, Unit
from sktune.core.outcome import Outcome, ScopeTime
from sktune.core.plan import Scope
from sktune.core.scope_times import Part, scope_times
from tests.builders import decoder_layout

LAYOUT = Layout(tuple(Unit(name, name) for name in "abcdef"), ())


@st.composite
def parts_of_a_step(draw: st.DrawFn) -> list[Part]:
    """Return scopes in order, with any number of parts, or none, between them."""
    edges = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
    parts: list[Part] = []
    reached = 0
    times = st.floats(0, 5)
    for first, last in sorted(edges):
        gaps = [Part(None, draw(times), draw(times)) for _ in range(draw(st.integers(0, 2)))]
        if reached <= first <= last:
            parts += [*gaps, Part(Scope("abcdef"[first], "abcdef"[last]), draw(times), draw(times))]
            reached = last + 1
    return [*parts, Part(None, draw(times), draw(times))]


@given(parts_of_a_step())
def test_every_unit_is_in_one_piece_and_no_time_is_lost(parts: list[Part]) -> None:
    """Pieces are consecutive, in execution order, and add up; no two gaps are adjacent."""
    pieces = scope_times(LAYOUT, parts)
    covered = "".join("abcdef"["abcdef".index(p.first) : "abcdef".index(p.last) + 1] for p in pieces)
    assert covered == "abcdef"
    assert [(p.first, p.last) for p in pieces if p.in_scope] == [
        (p.scope.first, p.scope.last) for p in parts if p.scope
    ]
    assert all(left.in_scope or right.in_scope for left, right in pairwise(pieces))
    assert sum(p.baseline_ms for p in pieces) == pytest.approx(sum(p.baseline_ms for p in parts), abs=1e-5)
    assert sum(p.latency_ms for p in pieces) == pytest.approx(sum(p.latency_ms for p in parts), abs=1e-5)


def test_time_outside_of_any_unit_is_added_to_its_neighbour() -> None:
    """To the piece before it, and at the start to the one after."""
    scopes = Part(Scope("a", "c"), 3.0, 2.0), Part(Scope("d", "f"), 4.0, 1.0)
    glue = Part(None, 0.5, 0.25)
    pieces = scope_times(LAYOUT, [glue, scopes[0], glue, scopes[1], glue])
    assert pieces == (ScopeTime("a", "c", True, 4.0, 2.5), ScopeTime("d", "f", True, 4.5, 1.25))


def test_the_record_of_the_largest_plan_stays_short() -> None:
    """61 layers with a scope for every unit: under 30 KB of JSON, and equal after reading it back."""
    layout = decoder_layout(("moe",) * 61)
    parts = [Part(Scope(unit.name, unit.name), 0.123456789, 0.0987654321) for unit in layout.units]
    outcome = Outcome(scope_times=scope_times(layout, parts))
    text = json.dumps(encoded(outcome))
    assert len(outcome.scope_times) == 61 * 4 + 3
    assert len(text) < 30_000
    assert decoded(Outcome, json.loads(text)) == outcome
