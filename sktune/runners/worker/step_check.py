"""Decode steps compared by the thousand: from many contexts, at positions over the whole cache, in constant memory.

Every output and all state of every step is compared, by digests that are computed where the tensors are.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from sktune.backends.base import Step
from sktune.core.errors import TargetError
from sktune.measure.bits import Mismatch, bits_of, difference
from sktune.runners.worker.replays import STEPS, Replay, State, copied, run_once
from sktune.targets.base import Snapshot, Target, decode_inputs

MOST_STEPS_A_CONTEXT = 64
LEAST_CONTEXTS = 32
FIRST_SEED = 2
"""The quick check of every trial has the seeds below."""

_CHUNK = 1 << 20
"""Words that are widened to 64 bits at a time: 8 MiB."""


class Digester:
    """Digests of tensors' bits: multilinear hashes modulo 2^64 of 32-bit words (Carter and Wegman 1979).

    Two tensors that differ have the same digest with a probability below 2^-32, as the keys are random 64-bit numbers
    and two words differ by less than 2^32. The digests stay on the tensors' device.
    """

    def __init__(self) -> None:
        self._keys: dict[torch.device, torch.Tensor] = {}

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one digest for each tensor, shape (tensors,), int64."""
        return torch.stack([self._digest(tensor) for tensor in tensors.values()])

    def _digest(self, tensor: torch.Tensor) -> torch.Tensor:
        key = self._key(tensor.device)
        found = torch.zeros((), dtype=torch.int64, device=tensor.device)
        for index, chunk in enumerate(_words(tensor).split(_CHUNK)):
            found = found + (chunk * key[: chunk.numel()]).sum() * _odd(index)
        return found

    def _key(self, device: torch.device) -> torch.Tensor:
        if device not in self._keys:
            low = torch.iinfo(torch.int64).min
            drawn = torch.randint(low, -low - 1, (_CHUNK,), generator=torch.Generator().manual_seed(0))
            self._keys[device] = drawn.to(device)
        return self._keys[device]


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bits as 32-bit words, or as smaller ones where they do not fill such words."""
    flat = bits_of(tensor).flatten()
    if flat.numel() * flat.element_size() % 4:
        return flat
    if flat.storage_offset() * flat.element_size() % 4:
        flat = flat.clone()
    return flat.view(torch.int32)


def _odd(index: int) -> int:
    return random.Random(index).getrandbits(62) | 1  # noqa: S311 - a key of a hash against chance


@dataclass(frozen=True, slots=True)
class Context:
    """Where steps are compared.

    Attributes:
        seed: of the prefill.
        steps: decode steps that are compared.
        tokens: what the prefill begins with; None for its own choice.
        skipped: decode steps of the baseline before the first that is compared.
    """

    seed: int
    steps: int
    tokens: int | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What the comparison of one step with the baseline has come to.

    Attributes:
        steps, contexts, elements: that were compared and equal.
        mismatch: the first difference; None where there is none.
        place: where that was.
    """

    steps: int = 0
    contexts: int = 0
    elements: int = 0
    mismatch: Mismatch | None = None
    place: Context | None = None


def contexts(target: Target, state: State, baseline: Step, steps: int) -> list[Context]:
    """Return where at least ``steps`` steps are compared: first, last and middle slots of the cache, in random order.

    A target without ``capacity`` chooses itself where decoding begins; how far it can go on from there is read off
    what its steps write.
    """
    if target.capacity is not None:
        length = _length(target.capacity, steps)
        count = max(LEAST_CONTEXTS, -(-steps // length))
        last = target.capacity - length
        starts = [round(index * last / (count - 1)) for index in range(count)]
        found = [Context(FIRST_SEED + index, length, tokens=start) for index, start in enumerate(starts)]
    else:
        room = _room(target, state, baseline)
        length = _length(room, steps)
        count = max(LEAST_CONTEXTS, -(-steps // length))
        starts = [round(index * (room - length) / (count - 1)) for index in range(count)]
        found = [Context(FIRST_SEED + index, length, skipped=start) for index, start in enumerate(starts)]
    random.Random(0).shuffle(found)  # noqa: S311 - so that a comparison which ends early has been everywhere
    return found


def _length(room: int, steps: int) -> int:
    """Return how many steps to compare in one context: few where there is little room, so that contexts differ."""
    return max(1, min(MOST_STEPS_A_CONTEXT, max(STEPS, room // 4), -(-steps // LEAST_CONTEXTS), room))


def _room(target: Target, state: State, baseline: Step) -> int:
    """Return how many decode steps fit into the state after a prefill: ``STEPS`` where that cannot be seen.

    A tensor of which each step writes one slot, the next one along a dimension, is a cache of that many slots.
    """
    rooms = []
    inputs = decode_inputs(target, FIRST_SEED, STEPS)
    written: dict[str, list[list[set[int]]]] = {name: [] for name in state}
    with torch.no_grad():
        for number in range(3):
            before = {name: tensor.detach().clone() for name, tensor in state.items()}
            baseline.prepare()
            baseline.run(*copied(inputs[number]))
            for name, tensor in state.items():
                changed = (bits_of(before[name]) != bits_of(tensor)).reshape(*tensor.shape, -1).any(-1).nonzero()
                written[name].append([set(column) for column in changed.T.tolist()])
    for name, slots in written.items():
        for size, *positions in zip(state[name].shape, *slots, strict=False):
            is_next = all(len(now) == len(then) == 1 and min(then) == min(now) + 1 for now, then in pairwise(positions))
            if size > STEPS and len(positions) == 3 and is_next:
                rooms.append(size - min(positions[0]))
    wanted = min(rooms, default=STEPS)
    try:
        decode_inputs(target, FIRST_SEED, wanted)
    except TargetError:
        return STEPS
    return max(STEPS, wanted)


def compare_steps(
    target: Target,
    state: State,
    baseline: Step,
    candidates: Mapping[str, Step],
    places: Iterator[Context] | list[Context],
    goes_on: Callable[[], bool] = lambda: True,
) -> dict[str, Found]:
    """Run every candidate beside the baseline in each context, until it differs.

    Args:
        target, state: what is decoded, and all tensors that outlive a step.
        baseline: what the candidates are compared with.
        candidates: by name.
        places: where; see ``contexts``.
        goes_on: asked after each context; once it says no, what was compared so far is the answer.
    """
    digester, found = Digester(), {name: Found() for name in candidates}
    for place in places:
        left = {name: candidates[name] for name, own in found.items() if own.mismatch is None}
        if not left:
            break
        replay = replay_of(target, state, baseline, place)
        expected, names, elements = _digests(digester, baseline, replay)
        for name, step in left.items():
            own = found[name]
            got, got_names, _ = _digests(digester, step, replay)
            if got_names == names and torch.equal(expected, got):
                found[name] = Found(own.steps + place.steps, own.contexts + 1, own.elements + elements)
            else:
                mismatch = _first_difference(replay, baseline, step)
                found[name] = Found(own.steps, own.contexts, own.elements, mismatch, place)
        if not goes_on():
            break
    return found


def replay_of(target: Target, state: State, baseline: Step, place: Context) -> Replay:
    """Return the steps of a context, and the state that they start from."""
    inputs = decode_inputs(target, place.seed, place.skipped + place.steps, place.tokens)
    baseline.prepare()
    with torch.no_grad():
        for own in inputs[: place.skipped]:
            baseline.run(*own)
    return Replay(place.seed, inputs[place.skipped :], Snapshot(state), state)


def _digests(digester: Digester, step: Step, replay: Replay) -> tuple[torch.Tensor, list[Any], int]:
    """Return digests of all outputs and all state of each step, what they are of, and how many elements that is."""
    rows: list[torch.Tensor] = []
    names: list[Any] = []
    elements = 0
    for tensors in _tensors(step, replay):
        rows.append(digester(tensors))
        names.append(tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()))
        elements += sum(tensor.numel() for tensor in tensors.values())
    return torch.cat(rows), names, elements


def _tensors(step: Step, replay: Replay) -> Iterator[dict[str, torch.Tensor]]:
    replay.start.restore()
    step.prepare()
    with torch.no_grad():
        for inputs in replay.inputs:
            yield {**run_once(step, inputs), **replay.state}


def _first_difference(replay: Replay, baseline: Step, step: Step) -> Mismatch:
    """Run both again up to each step, as a step's outputs are not kept."""
    for number in range(len(replay.inputs)):
        start = Replay(replay.seed, replay.inputs[: number + 1], replay.start, replay.state)
        sides = [_last(own, start) for own in (baseline, step)]
        if mismatch := difference(sides[0], sides[1], replay.seed, number):
            return mismatch
    # It was different a moment ago: such a step is not what anybody wants, either.
    return Mismatch(replay.seed, 0, "a step that differs from one run to the next", (), 0, 0, None, 1.0)


def _last(step: Step, replay: Replay) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for tensors in _tensors(step, replay):  # noqa: B007 - the last is what is asked for
        pass
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
