"""Verification: every bit of the outputs and of the state, against the baseline. There is no tolerance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from sktune.backends.base import Step
from sktune.targets.base import Inputs, Snapshot, Target, decode_inputs

STEPS = 8
"""Consecutive decode steps that are compared."""
SEEDS = (0, 1)
"""Input seeds: two different contexts and token sequences."""

State = Mapping[str, torch.Tensor]
"""The tensors that outlive a step, by name."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference that was found.

    Attributes:
        seed, step: where in the replay; for the state ``step`` is the last one.
        tensor: ``logits``, ``output[1]``, or the name of a state tensor.
        index: of the first differing element.
        expected, got: its values.
        largest_ulp: largest distance in units in the last place over the tensor; None for other than floats.
        share: differing elements over all elements of the tensor.
    """

    seed: int
    step: int
    tensor: str
    index: tuple[int, ...]
    expected: float | int | bool
    got: float | int | bool
    largest_ulp: int | None
    share: float

    def __str__(self) -> str:
        return f"seed {self.seed}, step {self.step}: {self.where}"

    @property
    def where(self) -> str:
        """Where in the tensors the difference is, and how large."""
        ulp = "" if self.largest_ulp is None else f", at most {self.largest_ulp} ulp apart"
        return (
            f"{self.tensor}{list(self.index)} is {self.got!r} "
            f"instead of {self.expected!r}{ulp}, {self.share:.2%} of its elements differ"
        )


@dataclass(frozen=True)
class Replay:
    """One seed's start: the inputs of the steps after its prefill, the state there, and the tensors that hold it."""

    seed: int
    inputs: Sequence[Inputs]
    start: Snapshot
    state: State

    @property
    def elements(self) -> int:
        """Elements of the state."""
        return sum(tensor.numel() for tensor in self.state.values())


@dataclass(frozen=True)
class Recording:
    """What the baseline gave in one replay: outputs of each step, and the state after the last."""

    replay: Replay
    outputs: Sequence[Mapping[str, torch.Tensor]]
    state: Mapping[str, torch.Tensor]


def prepare(
    target: Target, state: State | None = None, seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> tuple[Replay, ...]:
    """Run prefill once for each seed, eagerly, and keep what decoding starts from.

    ``state`` is all that outlives a step; None for what the target declares.
    """
    state = target.state if state is None else state
    replays = []
    for seed in seeds:
        inputs = decode_inputs(target, seed, steps)
        replays.append(Replay(seed, inputs, Snapshot(state), state))
    return tuple(replays)


def record(step: Step, replays: Sequence[Replay]) -> tuple[Recording, ...]:
    """Replay every seed with ``step`` and keep copies of all outputs and of the final state."""
    recordings = []
    for replay in replays:
        outputs = [_copied(named) for named in _run(step, replay)]
        recordings.append(Recording(replay, outputs, _copied(replay.state)))
    return tuple(recordings)


def compare(step: Step, recordings: Sequence[Recording]) -> Mismatch | None:
    """Replay every seed with ``step``; return the first difference to ``recordings``, None where there is none."""
    for recording in recordings:
        replay = recording.replay
        for number, outputs in enumerate(_run(step, replay)):
            if found := difference(recording.outputs[number], outputs, replay.seed, number):
                return found
        if found := difference(recording.state, replay.state, replay.seed, len(replay.inputs) - 1):
            return found
    return None


def steps(replays: Sequence[Replay], most: int | None = None) -> Iterator[Inputs]:
    """Yield copies of the inputs of each replay's first ``most`` steps; it starts with the state after its prefill."""
    for replay in replays:
        replay.start.restore()
        yield from map(copied, replay.inputs[:most])


def _run(step: Step, replay: Replay) -> Any:
    replay.start.restore()
    step.prepare()
    with torch.no_grad():
        for inputs in replay.inputs:
            yield run_once(step, inputs)


def run_once(step: Step, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Run ``step`` on copies of ``inputs``, as it may write to them; return its outputs, and what the copies hold."""
    own = copied(inputs)
    outputs = named_outputs(step.run(*own))
    return outputs | {f"input[{index}]": value for index, value in enumerate(own) if isinstance(value, torch.Tensor)}


def copied(inputs: Inputs) -> Inputs:
    """Return ``inputs`` with every tensor copied."""
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)


def named_outputs(output: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a step's output by name; a lone tensor is called logits."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if leaf is not None]
    tensors = [leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf) for leaf in leaves]
    if len(tensors) == 1:
        return {"logits": tensors[0]}
    return {f"output[{index}]": tensor for index, tensor in enumerate(tensors)}


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def difference(
    expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor], seed: int, step: int
) -> Mismatch | None:
    """Return the first tensor of ``got`` whose bits are not those of ``expected``, None where all are equal."""
    if expected.keys() != got.keys():
        return Mismatch(seed, step, "number of outputs", (), len(expected), len(got), None, 1.0)
    for name, reference in expected.items():
        if found := first_difference(name, reference, got[name], seed, step):
            return found
    return None


def same_bits(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, type and bits."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    return torch.equal(bits_of(expected), bits_of(got))


def first_difference(name: str, expected: torch.Tensor, got: torch.Tensor, seed: int, step: int) -> Mismatch | None:
    """Return where two tensors first differ, None where they have the same bits."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return Mismatch(seed, step, f"{name} (shape or dtype)", (), expected.numel(), got.numel(), None, 1.0)
    if same_bits(expected, got):
        return None
    wrong = (bits_of(expected) != bits_of(got)).reshape(*expected.shape, -1).any(-1)
    index = tuple(int(position) for position in wrong.nonzero()[0])
    return Mismatch(
        seed,
        step,
        name,
        index,
        expected[index].item(),
        got[index].item(),
        _largest_ulp(expected, got),
        float(wrong.sum()) / wrong.numel(),
    )


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """View the tensor as integers, so that NaN patterns and signed zeros count."""
    contiguous = tensor.detach().contiguous()
    if contiguous.is_complex():
        contiguous = torch.view_as_real(contiguous)
    return contiguous.view(_INTEGERS[contiguous.element_size()])


def _largest_ulp(expected: torch.Tensor, got: torch.Tensor) -> int | None:
    if not expected.is_floating_point():
        return None
    both = ~(expected.isnan() | got.isnan())
    if not both.any():
        return None
    distance = _ordered(expected)[both] - _ordered(got)[both]
    return int(distance.abs().max())


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Map floats to integers so that neighbours differ by one; both zeros map to 0."""
    bits = bits_of(tensor)
    sign = torch.iinfo(bits.dtype).min
    magnitude = (bits & ~torch.tensor(sign, dtype=bits.dtype, device=bits.device)).to(torch.int64)
    return torch.where(bits < 0, -magnitude, magnitude)
