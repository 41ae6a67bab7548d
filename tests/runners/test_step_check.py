"""Thousands of steps are compared, over the whole cache, and a bound follows."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sktune.backends.base import Step
from sktune.core.verification import RegionCheck, Verification
from sktune.runners.worker import step_check
from sktune.targets.base import Target
from tests.models import caches

Wrong = Callable[[int], bool]


def compared(target: Target, wrong: Wrong, steps: int = 400) -> tuple[step_check.Found, set[int]]:
    """Compare a step that is off by one bit at positions that are ``wrong``; return what was found, and positions."""
    model = target.module
    assert isinstance(model, caches.Cached)
    seen = set()

    def candidate(x: torch.Tensor) -> torch.Tensor:
        position = int(model.position)
        seen.add(position)
        out: torch.Tensor = target.decode_step(x)
        if wrong(position):
            out.view(torch.int32)[0, 0, 3] ^= 1
        return out

    baseline = Step(target.decode_step)
    places = step_check.contexts(target, target.state, baseline, steps)
    found = step_check.compare_steps(target, target.state, baseline, {"plan": Step(candidate)}, places)
    return found["plan"], seen


@pytest.mark.parametrize("make", [caches.with_capacity, caches.without_capacity])
def test_steps_reach_the_last_slot_of_the_cache(make: Callable[[], Target]) -> None:
    """And, where the prefill begins where it is asked to, the first."""
    target = make()
    found, seen = compared(target, lambda position: False)
    assert found.mismatch is None
    assert found.steps >= 400
    assert found.contexts >= step_check.LEAST_CONTEXTS
    first = 0 if target.capacity else caches.CONTEXT
    assert seen == set(range(first, caches.SLOTS))


@pytest.mark.parametrize("position", [0, caches.SLOTS // 2, caches.SLOTS - 1])
def test_a_bit_that_is_off_at_one_position_is_found(position: int) -> None:
    """With its place and its values, as in a trial."""
    found, _ = compared(caches.with_capacity(), lambda own: own == position)
    assert found.mismatch is not None
    assert (found.mismatch.tensor, found.mismatch.index) == ("logits", (0, 0, 3))
    assert found.mismatch.largest_ulp == 1


def test_state_is_compared_after_every_step() -> None:
    """Also what a later step writes over."""
    target = caches.with_capacity()
    state = {**target.state, "scratch": torch.zeros(4)}

    def candidate(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = target.decode_step(x)
        state["scratch"].fill_(float(target.module.position == 50))
        return out

    places = step_check.contexts(target, state, Step(target.decode_step), 400)
    found = step_check.compare_steps(target, state, Step(target.decode_step), {"plan": Step(candidate)}, places)["plan"]
    assert found.mismatch is not None
    assert found.mismatch.tensor == "scratch"


def test_a_comparison_that_is_cut_short_has_been_everywhere() -> None:
    """The order of the contexts is drawn."""
    target = caches.with_capacity()
    places = step_check.contexts(target, target.state, Step(target.decode_step), 400)
    firsts = [place.tokens for place in places[:8]]
    assert min(filter(None, firsts)) < caches.SLOTS / 4
    assert max(filter(None, firsts)) > caches.SLOTS / 2


@given(st.integers(1, 10**12))
def test_the_bound_is_never_stronger_than_the_rule_of_three(steps: int) -> None:
    """Nor weaker by more than its two digits."""
    found = Verification(steps=steps)
    assert found.one_in <= 1 / found.differing_share
    assert steps < 100 or found.one_in >= 0.9 * steps / 3
    assert (1 - found.differing_share) ** steps == pytest.approx(0.05, rel=1e-3)


def test_a_verdict_says_what_was_seen() -> None:
    """Steps, bound, and what is known of the regions."""
    regions = (RegionCheck("a", "1", 5_000, is_exact=True), RegionCheck("b", "2", 9_000))
    found = Verification(2048, 128, 10**9, regions)
    assert str(found) == "identical on 2,048 steps; at 95% fewer than 1 step in 680 differs"
    assert found.of_regions == "1 of its 2 regions are tested against its own kernels, on at least 9,000 elements each"
    assert Verification.from_dict(found.to_dict()) == found
    assert not Verification().is_identical
    assert str(Verification()) == "not verified"
    differing = Verification(2048, 128, 10**9, (RegionCheck("b", "2", difference="one bit"),))
    assert not differing.is_identical
    assert str(differing) == "one bit"


@given(st.lists(st.integers(0, 255), min_size=1, max_size=64), st.data())
def test_a_digest_changes_with_every_bit(values: list[int], data: st.DataObject) -> None:
    """Whatever the size of the tensor; two flipped sign bits do not make up for one another."""
    digester = step_check.Digester()
    tensor = torch.tensor(values, dtype=torch.uint8)
    other = tensor.clone()
    for index in data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1, max_size=2)):
        other[index] ^= data.draw(st.sampled_from([1, 2, 64, 128]))
    assert torch.equal(digester({"x": tensor}), digester({"x": tensor.clone()}))
    assert not torch.equal(digester({"x": tensor}), digester({"x": other}))
