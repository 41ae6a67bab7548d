"""The answer for several shapes: the best single plan, and the fewest plans within a regret."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sktune.core.errors import StudyError
from sktune.core.plan import Plan, Scope
from sktune.core.shapes import StepShape
from sktune.core.space import StartingPoint
from sktune.study.shapes import (
    MANY_PLANS,
    CrossPlans,
    ShapesRecord,
    ShapeStudy,
    best_single,
    fewest_plans,
    latencies_of,
    read_record,
    with_crossing,
)
from sktune.study.storage import RECORD
from tests.reports.page_studies import study_in

PLANS = [Plan(), *(Plan((Scope(f"unit{number}", f"unit{number}"),)) for number in range(5))]
LATENCY = st.one_of(st.floats(1.0, 2.0), st.just(math.inf))


@st.composite
def tables(draw: st.DrawFn) -> dict[Plan, list[float]]:
    """Latencies of a few plans at a few shapes; the baseline works everywhere."""
    shapes = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(LATENCY, min_size=shapes, max_size=shapes), min_size=1, max_size=5))
    baseline = draw(st.lists(st.floats(1.0, 2.0), min_size=shapes, max_size=shapes))
    return dict(zip(PLANS, [baseline, *rows], strict=False))


@settings(deadline=None)
@given(tables(), st.sampled_from(("sum", "worst")))
def test_no_other_single_plan_is_better(table: dict[Plan, list[float]], objective: str) -> None:
    """By its objective, among those that work at every shape."""
    weights = [1.0 + number for number in range(len(table[Plan()]))]
    best = [min(column) for column in zip(*table.values(), strict=True)]

    def worth(plan: Plan) -> float:
        if objective == "worst":
            return float(max(one / least for one, least in zip(table[plan], best, strict=True)))
        return float(sum(weight * one for weight, one in zip(weights, table[plan], strict=True)))

    chosen = best_single(table, weights, objective)
    assert worth(chosen) == min(map(worth, table))
    assert math.isfinite(worth(chosen))


def test_latencies_have_the_measured_speedups(tmp_path: Path) -> None:
    """On a busy machine the ratio of medians is another one than the median ratio of pairs, which the verdict is of."""
    result = study_in(tmp_path)
    assert result.verdict and result.verdict.winner and result.baseline_ms
    slower = replace(result.verdict.winner.speedup, latency_ms=0.99 * result.baseline_ms)
    winner = replace(result.verdict.winner, speedup=slower)
    busy = replace(result, verdict=replace(result.verdict, winner=winner))
    latencies = latencies_of(busy)
    assert result.baseline_ms / latencies[result.best_plan] == pytest.approx(result.speedup)
    assert min(latencies.values()) == latencies[result.best_plan]


@settings(deadline=None)
@given(tables(), st.sampled_from((0.001, 0.01, 0.2)), st.sampled_from((MANY_PLANS, 0)))
def test_the_plans_hold_the_regret_and_are_the_fewest(table: dict[Plan, list[float]], regret: float, many: int) -> None:
    """As a search of all sets finds it, up to three plans; also where not every set is looked at.

    At any shape there may also be no scope.
    """
    shapes = range(len(table[Plan()]))
    best = [min(column) for column in zip(*table.values(), strict=True)]

    def holds(plans: tuple[Plan, ...]) -> bool:
        return all(
            min(table[plan][shape] for plan in (*plans, Plan())) <= (1 + regret) * best[shape] for shape in shapes
        )

    with patch("sktune.study.shapes.MANY_PLANS", many):
        chosen = fewest_plans(table, [1.0] * len(shapes), regret)
    assert holds(chosen)
    assert not any(holds(few) for count in range(1, min(len(chosen), 4)) for few in combinations(table, count))


def test_more_shapes_than_plans_of_a_set() -> None:
    """Where each of four shapes needs a plan of its own, each gets one."""
    table = {plan: [1.0 if shape == number else 2.0 for shape in range(4)] for number, plan in enumerate(PLANS[1:5])}
    assert set(fewest_plans({Plan(): [2.0] * 4, **table}, [1.0] * 4, 0.01)) == set(PLANS[1:5])


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With what was decided for a shape."""
    crossing = CrossPlans(7, (StartingPoint("of batch=1", {"layers_per_scope": "all", "cpp_wrapper": True}),))
    studies = (ShapeStudy(StepShape(1, weight=2.0), "s.batch-1"), ShapeStudy(StepShape(8), "s.batch-8"))
    record = with_crossing(ShapesRecord("s", studies, 12, "worst", 0.02), "s.batch-8", crossing)
    record.write(tmp_path)
    assert read_record(tmp_path) == record
    assert read_record(tmp_path / "elsewhere") is None


STORED: dict[str, Any] = {"study": "s", "studies": [{"shape": {"batch": 1}, "study": "s.batch-1"}], "trials": 1}
BAD: list[dict[str, Any]] = [
    {"studies": []}, {"studies": 1}, {"regret": -5}, {"regret": math.nan}, {"objective": "foo"}, {"trials": 0},
    {"format": 99},
]  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{}", *(json.dumps(STORED | bad) for bad in BAD)])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    """In one line; also one of a newer sktune, and one with values that no search has."""
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(StudyError, match=r"shapes\.json") as refused:
        read_record(tmp_path)
    assert "pydantic" not in str(refused.value)


def test_a_record_of_a_newer_sktune_is_told_as_such(tmp_path: Path) -> None:
    """Whatever else is in it."""
    (tmp_path / RECORD).write_text('{"format": 99}')
    with pytest.raises(StudyError, match="made by a newer sktune"):
        read_record(tmp_path)


def test_a_record_with_more_keys_is_read(tmp_path: Path) -> None:
    """Those of a later version of the same format."""
    ShapesRecord("s", (ShapeStudy(StepShape(1), "s.batch-1"),), 4).write(tmp_path)
    values = json.loads((tmp_path / RECORD).read_text()) | {"later": 1}
    (tmp_path / RECORD).write_text(json.dumps(values))
    assert read_record(tmp_path) is not None
