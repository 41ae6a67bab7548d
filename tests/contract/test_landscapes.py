"""What holds for every landscape: a benchmark rests on it."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from benchmarks.landscape import FAILURES, Landscape, gain
from benchmarks.landscapes.failing import FailingLandscape
from benchmarks.landscapes.recorded import recorded
from benchmarks.landscapes.simulated import SIMULATED
from benchmarks.landscapes.synthetic import SYNTHETIC
from sktune.core.plan import Plan
from tests.releases import shapes_only

LANDSCAPES: dict[str, Callable[[], Landscape]] = {
    **{name: partial(source, 1) for name, source in SYNTHETIC.items() if not name.endswith("61")},
    "llama-float32": partial(recorded, "llama-float32"),
    "failing-llama-float32": lambda: FailingLandscape(recorded("llama-float32"), seed=1),
    "sim-8": partial(SIMULATED["sim-8"], 1),
}
SLOW = ("sim-8",)

every_landscape = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=(pytest.mark.slow, shapes_only) if name in SLOW else ())
        for name, make in LANDSCAPES.items()
    ],
)


def plans_of(landscape: Landscape) -> list[Plan]:
    """Return the starting points' plans and some by chance."""
    space, rng = landscape.space, np.random.default_rng(0)
    points = [dict(point.values) for point in space.starting_points]
    points += [{name: own[rng.integers(len(own))] for name, own in space.choices.items()} for _ in range(25)]
    return [plan for plan in map(space.plan, points) if not plan.is_baseline]


@every_landscape
def test_the_baseline_is_the_empty_plan(make: Callable[[], Landscape]) -> None:
    """And there is something to gain."""
    landscape = make()
    assert landscape.evaluate(Plan()).latency_ms == pytest.approx(landscape.baseline_ms)
    assert landscape.best_ms < landscape.baseline_ms
    assert gain(landscape, landscape.best_ms) == 1


@every_landscape
def test_no_plan_is_faster_than_the_stated_optimum(make: Callable[[], Landscape]) -> None:
    """Else a share of the achievable gain would mean nothing."""
    landscape = make()
    found = [landscape.evaluate(plan).latency_ms for plan in plans_of(landscape)]
    assert all(latency_ms >= landscape.best_ms * (1 - 1e-9) for latency_ms in found if latency_ms is not None)


@every_landscape
def test_a_failure_has_a_reason_and_blames_the_plans_own_scopes(make: Callable[[], Landscape]) -> None:
    """What does not fail has a latency, and blames nobody."""
    landscape = make()
    for plan in plans_of(landscape):
        truth, labels = landscape.evaluate(plan), {scope.label for scope in plan.scopes}
        assert (truth.latency_ms is None) == (truth.reason is not None)
        assert truth.reason is None or truth.reason in FAILURES
        assert {truth.blamed, *truth.changes_bits} <= (labels if truth.reason else set()) | {""}


@every_landscape
def test_scope_times_are_those_of_the_plans_scopes(make: Callable[[], Landscape]) -> None:
    """If they can be observed, each scope has one, and so has each gap between scopes."""
    landscape = make()
    for plan in plans_of(landscape):
        pieces = landscape.evaluate(plan).scope_times
        inside = [(piece.first, piece.last) for piece in pieces if piece.in_scope]
        assert inside == ([(scope.first, scope.last) for scope in plan.scopes] if pieces else [])
        assert all(piece.latency_ms >= 0 for piece in pieces)


@every_landscape
def test_the_same_seed_is_the_same_landscape(make: Callable[[], Landscape]) -> None:
    """In every process."""
    one, other = make(), make()
    assert one.space.digest == other.space.digest
    assert [one.evaluate(plan) for plan in plans_of(one)] == [other.evaluate(plan) for plan in plans_of(other)]
