"""Replays are compared bit by bit, without tolerance."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sktune.backends.base import Step
from sktune.core.errors import TargetError
from sktune.measure.bits import Mismatch
from sktune.targets.base import Target
from sktune.worker import replays


def target_with(output: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Target, Step]:
    """Return a target whose state counts its steps, and a step that returns ``output`` of its input."""
    counter = torch.zeros(1)

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        counter.zero_()
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(2, 3, generator=generator),) for _ in range(steps)]

    def step(value: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return output(value)

    return Target(nn.Identity(), step, prefill, {"counter": counter}), Step(step)


def difference(
    base: Callable[[torch.Tensor], torch.Tensor], other: Callable[[torch.Tensor], torch.Tensor]
) -> Mismatch | None:
    """Compare two output functions on the same target."""
    target, step = target_with(base)
    recordings = replays.record(step, replays.prepare(target))
    counter = target.state["counter"]

    def candidate(value: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return other(value)

    return replays.compare(Step(candidate), recordings)


def test_equal_bits_pass_for_all_seeds_and_steps() -> None:
    """A function does not differ from itself."""
    assert difference(torch.exp, torch.exp) is None


def test_one_flipped_bit_is_found_and_described() -> None:
    """With step, tensor, index, both values, ULP distance and share."""

    def flipped(value: torch.Tensor) -> torch.Tensor:
        out = value.clone()
        out.view(torch.int32)[1, 2] ^= 1
        return out

    mismatch = difference(torch.clone, flipped)
    assert mismatch is not None
    assert (mismatch.seed, mismatch.step, mismatch.tensor, mismatch.index, mismatch.largest_ulp) == (
        0,
        0,
        "logits",
        (1, 2),
        1,
    )
    assert mismatch.share == pytest.approx(1 / 6)
    assert "1 ulp" in str(mismatch)


def test_signed_zeros_differ() -> None:
    """0.0 == -0.0, but their bits differ."""
    mismatch = difference(torch.zeros_like, lambda value: -torch.zeros_like(value))
    assert mismatch is not None
    assert mismatch.largest_ulp == 0


def test_nan_equals_itself_and_not_another_nan() -> None:
    """NaNs are compared as bits."""

    def nan(pattern: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda value: torch.full(value.shape, pattern, dtype=torch.int32).view(torch.float32)

    assert difference(nan(0x7FC00000), nan(0x7FC00000)) is None
    assert difference(nan(0x7FC00000), nan(0x7FC00001)) is not None


def test_a_difference_in_the_state_alone_is_found() -> None:
    """Although the outputs are equal."""
    target, step = target_with(torch.clone)
    recordings = replays.record(step, replays.prepare(target))
    counter = target.state["counter"]

    def miscounting(value: torch.Tensor) -> torch.Tensor:
        counter.add_(2)
        return value.clone()

    mismatch = replays.compare(Step(miscounting), recordings)
    assert mismatch is not None
    assert mismatch.tensor == "counter"
    assert mismatch.step == replays.STEPS - 1


def test_another_shape_or_dtype_is_a_mismatch() -> None:
    """Although the values are equal."""
    assert difference(torch.clone, lambda value: value.double()) is not None
    assert difference(torch.clone, lambda value: value.reshape(3, 2)) is not None


def test_ulps_are_counted_across_zero() -> None:
    """The smallest positive and negative numbers are two ULPs apart."""
    tiny = torch.tensor([1, -32767], dtype=torch.int16).view(torch.bfloat16)  # smallest positive and negative
    mismatch = difference(lambda value: tiny[:1].clone(), lambda value: tiny[1:].clone())
    assert mismatch is not None
    assert mismatch.largest_ulp == 2


def nested(write: Callable[[list[torch.Tensor], torch.Tensor], object]) -> tuple[Target, Step]:
    """Return a target whose prefill makes a cache anew and passes it to each step, which writes to it."""

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        generator = torch.Generator().manual_seed(seed)
        kept = [torch.zeros(2, 3)]
        return [(torch.randn(2, 3, generator=generator), kept) for _ in range(steps)]

    def step(value: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        write(kept, value)
        return value + 1

    return Target(nn.Identity(), step, prefill), Step(step)


def test_a_cache_that_only_the_inputs_hold_is_compared() -> None:
    """It outlives a step, and each side begins with what the prefill has left in it."""
    target, step = nested(lambda kept, value: kept[0].mul_(0.5).add_(value))
    recordings = replays.record(step, replays.prepare(target))
    assert replays.compare(step, recordings) is None
    _, other = nested(lambda kept, value: kept[0].mul_(0.25).sub_(value))
    mismatch = replays.compare(other, recordings)
    assert mismatch is not None and mismatch.tensor == "input[1][0]"


@pytest.mark.parametrize("slot", [slice(0, 1), slice(1, 1)])
def test_a_new_tensor_inside_an_input_is_refused(slot: slice) -> None:
    """In place of another one, or beside it: it would not be compared."""
    target, step = nested(lambda kept, value: kept.__setitem__(slot, [value.clone()]))
    with pytest.raises(TargetError, match="puts a new tensor into one of its inputs"):
        replays.record(step, replays.prepare(target))
