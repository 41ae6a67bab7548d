"""Thousands of steps over the whole cache are compared, which gives a bound on the share that differs."""

from collections.abc import Callable
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sktune.backends.base import Step
from sktune.core.codec import decoded, encoded
from sktune.core.errors import NotDeterministicError
from sktune.core.verification import RegionCheck, Verification, steps_needed
from sktune.measure.bits import Mismatch
from sktune.targets.base import Target
from sktune.worker import step_check
from tests.models import caches


def compare(
    target: Target, is_wrong: Callable[[int], bool], steps: int = 400
) -> tuple[step_check.StepComparison, set[int]]:
    """Compare a step that has one wrong bit where ``is_wrong(position)``; return the result and all positions."""
    model = target.module
    assert isinstance(model, caches.Cached)
    positions = set()

    def candidate(x: torch.Tensor) -> torch.Tensor:
        position = int(model.position)
        positions.add(position)
        out: torch.Tensor = target.decode_step(x)
        if is_wrong(position):
            out.view(torch.int32)[0, 0, 3] ^= 1
        return out

    baseline = Step(target.decode_step)
    places = step_check.contexts(target, target.state, baseline, steps)
    return step_check.compare_steps(target, target.state, baseline, Step(candidate), places), positions


@pytest.mark.parametrize("make", [caches.with_capacity, caches.without_capacity])
def test_steps_reach_the_last_slot_of_the_cache(make: Callable[[], Target]) -> None:
    """And the first slot, if the target has a capacity."""
    target = make()
    result, positions = compare(target, lambda position: False)
    assert not result.difference
    assert result.steps >= 400
    assert result.contexts >= step_check.MIN_CONTEXTS
    first = 0 if target.capacity else caches.CONTEXT
    assert positions == set(range(first, caches.SLOTS))


@pytest.mark.parametrize("position", [0, caches.SLOTS // 2, caches.SLOTS - 1])
def test_a_wrong_bit_at_one_position_is_found(position: int) -> None:
    """With its index and values, as in a trial."""
    result, _ = compare(caches.with_capacity(), lambda current: current == position)
    assert isinstance(result.difference, Mismatch)
    assert (result.difference.tensor, result.difference.index) == ("logits", (0, 0, 3))
    assert result.difference.largest_ulp == 1


def test_state_is_compared_after_every_step() -> None:
    """Including state that a later step overwrites."""
    target = caches.with_capacity()
    state = {**target.state, "scratch": torch.zeros(4)}

    def candidate(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = target.decode_step(x)
        state["scratch"].fill_(float(target.module.position == 50))
        return out

    places = step_check.contexts(target, state, Step(target.decode_step), 400)
    baseline = Step(target.decode_step)
    result = step_check.compare_steps(target, state, baseline, Step(candidate), places)
    assert isinstance(result.difference, Mismatch)
    assert result.difference.tensor == "scratch"


def test_a_comparison_that_is_cut_short_covers_the_whole_cache() -> None:
    """As the contexts are in random order."""
    target = caches.with_capacity()
    places = step_check.contexts(target, target.state, Step(target.decode_step), 400)
    firsts = [place.tokens for place in places[:8]]
    assert min(filter(None, firsts)) < caches.SLOTS / 4
    assert max(filter(None, firsts)) > caches.SLOTS / 2


@pytest.mark.parametrize("checks", [0, 3, 200])
def test_a_comparison_ends_within_a_context(checks: int) -> None:
    """Its time may be up after any step; a context counts for a plan that was compared in all of it."""
    target = caches.with_capacity()
    baseline = Step(target.decode_step)
    places = step_check.contexts(target, target.state, baseline, 400)
    left = iter([True] * checks)
    candidate = Step(target.decode_step)
    result = step_check.compare_steps(
        target, target.state, baseline, candidate, places, lambda steps: next(left, False)
    )
    assert result.steps <= checks
    assert result.steps == sum(place.steps for place in places[: result.contexts])
    assert next(left, None) is None
    assert bool(result.steps) is (checks > 100)


@given(st.integers(1, 10**12))
def test_the_bound_is_never_stronger_than_the_rule_of_three(steps: int) -> None:
    """Nor weaker by more than rounding to two digits."""
    verification = Verification(steps=steps)
    assert verification.one_in <= 1 / verification.differing_share
    assert steps < 100 or verification.one_in >= 0.9 * steps / 3
    assert (1 - verification.differing_share) ** steps == pytest.approx(0.05, rel=1e-3)


def test_an_exact_plan_needs_fewer_steps_for_the_same_bound() -> None:
    """256 instead of the default; if another number is asked for, as many are compared."""
    exact = (RegionCheck("a", "1", 5_000, is_exact=True),)
    assert (steps_needed(2048, is_exact=True), steps_needed(2048, is_exact=False)) == (256, 2048)
    assert [steps_needed(steps, is_exact=True) for steps in (100, 1000, 4000)] == [100, 1000, 4000]
    assert Verification(256, 32, 10**6, exact).one_in == Verification(2048).one_in == 680
    assert Verification(255, 32, 10**6, exact).one_in == Verification(255).one_in
    assert Verification(256, 32, 10**6, exact).suffices(2048)
    assert not Verification(256, 32, 10**6).suffices(2048)
    assert not Verification(256, 32, 10**6, (*exact, RegionCheck("b", "2", 9_000))).suffices(2048)


def test_a_verdict_says_what_was_compared() -> None:
    """Steps, bound, and regions."""
    regions = (RegionCheck("a", "1", 5_000, is_exact=True), RegionCheck("b", "2", 9_000))
    verification = Verification(2048, 128, 10**9, regions)
    assert str(verification) == "identical on 2,048 steps; at 95% fewer than 1 step in 680 differs"
    assert (
        verification.of_regions
        == "1 of its 2 regions are tested against its own kernels, on at least 9,000 elements each"
    )
    assert decoded(Verification, encoded(verification)) == verification
    assert not Verification().is_identical
    assert str(Verification()) == "not verified"
    differing = Verification(2048, 128, 10**9, (RegionCheck("b", "2", difference="one bit"),))
    assert not differing.is_identical
    assert str(differing) == "one bit"


@given(st.lists(st.integers(0, 255), min_size=1, max_size=64), st.data())
def test_a_digest_changes_with_every_bit(values: list[int], data: st.DataObject) -> None:
    """Whatever the size of the tensor; two flipped sign bits do not cancel out."""
    digester = step_check.Digester()
    tensor = torch.tensor(values, dtype=torch.uint8)
    other = tensor.clone()
    for index in data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1, max_size=2)):
        other[index] ^= data.draw(st.sampled_from([1, 2, 64, 128]))
    assert torch.equal(digester({"x": tensor}), digester({"x": tensor.clone()}))
    assert not torch.equal(digester({"x": tensor}), digester({"x": other}))


def test_a_baseline_that_differs_from_itself_blames_no_plan() -> None:
    """Though it does so on a few steps alone, which the search's first look has missed."""
    target, calls = caches.with_capacity(), count()

    def flaky(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = target.decode_step(x)
        return out + (next(calls) % 50 == 7)

    baseline, candidate = Step(flaky), Step(target.decode_step)
    places = step_check.contexts(target, target.state, candidate, 400)
    with pytest.raises(NotDeterministicError, match="two runs of the same"):
        step_check.compare_steps(target, target.state, baseline, candidate, places)


def test_time_is_asked_for_while_steps_are_skipped() -> None:
    """Who waits for the comparison would give up otherwise: a cache has thousands of slots before the last context."""
    target = caches.without_capacity()
    step = Step(target.decode_step)
    asked: list[int] = []
    place = step_check.Context(3, 1, skipped=20)

    def ask(done: int) -> bool:
        asked.append(done)
        return True

    step_check.compare_steps(target, target.state, step, step, [place], ask)
    assert len(asked) > 20
    result = step_check.compare_steps(target, target.state, step, step, [place], lambda done: False)
    assert result.steps == 0 and not result.difference


def test_a_difference_counts_if_no_time_is_left_to_find_where() -> None:
    """What was seen is not forgotten; where it is takes as many runs as there are steps."""
    target, calls = caches.with_capacity(), count()

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = target.decode_step(x)
        return -out

    step = Step(target.decode_step)
    place = step_check.Context(3, 4, tokens=0)
    result = step_check.compare_steps(
        target, target.state, step, Step(wrong), [place], lambda done: next(calls) < 1 + 2 * place.steps
    )
    assert result.context == place
    assert result.difference == "seed 3, within 4 steps: outputs or state differ"
