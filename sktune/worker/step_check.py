"""Compares thousands of decode steps: from many contexts, at positions over the whole cache, in constant memory.

All outputs and all state of every step are compared, by digests that are computed on the tensors' device.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from sktune.backends.base import Step
from sktune.core.errors import NotDeterministicError, TargetError
from sktune.measure.bits import Mismatch, bits_of, difference
from sktune.targets.base import Target, decode_inputs
from sktune.worker.replays import STEPS, Replay, State, copied, replay_from, run_once

MAX_STEPS_PER_CONTEXT = 64
MIN_CONTEXTS = 32
FIRST_SEED = 2
"""The quick check of every trial uses the seeds below this."""

_CHUNK = 1 << 20
"""Words widened to 64 bits at a time: 8 MiB."""


class _TimeIsUpError(Exception):
    pass


class Digester:
    """Digests of tensors' bits: multilinear hashes modulo 2^64 of 32-bit words (Carter and Wegman 1979).

    Two different tensors have the same digest with a probability below 2^-32, as the keys are random 64-bit numbers and
    two words differ by less than 2^32. The digests stay on the first tensor's device.
    """

    def __init__(self) -> None:
        self._keys: dict[torch.device, torch.Tensor] = {}

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one digest for each tensor, shape (tensors,), int64."""
        digests = [self._digest(tensor) for tensor in tensors.values()]
        device = digests[0].device  # a counter may be in the host's memory
        return torch.stack([digest.to(device) for digest in digests])

    def _digest(self, tensor: torch.Tensor) -> torch.Tensor:
        key = self._key(tensor.device)
        digest = torch.zeros((), dtype=torch.int64, device=tensor.device)
        for index, chunk in enumerate(_words(tensor).split(_CHUNK)):
            digest = digest + (chunk * key[: chunk.numel()]).sum() * _odd_factor(index)
        return digest

    def _key(self, device: torch.device) -> torch.Tensor:
        if device not in self._keys:
            low = torch.iinfo(torch.int64).min
            drawn = torch.randint(low, -low - 1, (_CHUNK,), generator=torch.Generator().manual_seed(0))
            self._keys[device] = drawn.to(device)
        return self._keys[device]


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bits as 32-bit words, or as smaller words if its size is no multiple of 4 bytes."""
    flat = bits_of(tensor).flatten()
    if flat.numel() * flat.element_size() % 4:
        return flat
    if flat.storage_offset() * flat.element_size() % 4:
        flat = flat.clone()
    return flat.view(torch.int32)


def _odd_factor(index: int) -> int:
    return random.Random(index).getrandbits(62) | 1  # noqa: S311 - the hash need not resist an attacker


@dataclass(frozen=True, slots=True)
class Context:
    """A position from which steps are compared.

    Attributes:
        seed: of the prefill.
        steps: decode steps to compare.
        tokens: tokens in the context after prefill; None for the target's default.
        skipped: decode steps of the baseline before the first compared step.
    """

    seed: int
    steps: int
    tokens: int | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class StepComparison:
    """The result of comparing a compiled step with the baseline.

    Attributes:
        steps, contexts, elements: how many were compared and equal.
        difference: the first one, or that there is one if the time ended before it was found; empty if there is none.
        context: the context of that difference.
    """

    steps: int = 0
    contexts: int = 0
    elements: int = 0
    difference: Mismatch | str = ""
    context: Context | None = None


def contexts(target: Target, state: State, baseline: Step, steps: int) -> list[Context]:
    """Return contexts for at least ``steps`` steps, from the first to the last slot of the cache, in random order.

    A target without ``capacity`` chooses where decoding begins; how many steps fit after that is inferred from what its
    steps write.
    """
    if target.capacity is not None:
        length = _length(target.capacity, steps)
        count = max(MIN_CONTEXTS, -(-steps // length))
        last = target.capacity - length
        starts = [round(index * last / (count - 1)) for index in range(count)]
        places = [Context(FIRST_SEED + index, length, tokens=start) for index, start in enumerate(starts)]
    else:
        room = _room(target, state, baseline)
        length = _length(room, steps)
        count = max(MIN_CONTEXTS, -(-steps // length))
        starts = [round(index * (room - length) / (count - 1)) for index in range(count)]
        places = [Context(FIRST_SEED + index, length, skipped=start) for index, start in enumerate(starts)]
    random.Random(0).shuffle(places)  # noqa: S311 - so that a comparison which ends early covers the whole cache
    return places


def _length(room: int, steps: int) -> int:
    """Return how many steps to compare in one context: few if few fit, so that contexts differ."""
    return max(1, min(MAX_STEPS_PER_CONTEXT, max(STEPS, room // 4), -(-steps // MIN_CONTEXTS), room))


def _room(target: Target, state: State, baseline: Step) -> int:
    """Return how many decode steps fit into the state after a prefill; ``STEPS`` if that is not visible.

    A tensor in which each step writes one slot, always the next along some dimension, is a cache of that many slots.
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
    candidate: Step,
    places: Iterable[Context],
    may_continue: Callable[[int], bool] = lambda steps: True,
) -> StepComparison:
    """Compare a candidate with the baseline in each context, until it differs.

    Args:
        target: what is decoded.
        state: all tensors that outlive a step.
        baseline: the step that the candidate is compared with.
        candidate: a compiled step.
        places: the contexts; see ``contexts``.
        may_continue: called after each step with the number of steps that were equal in the contexts before; if it
            returns false, the comparison ends with these contexts.

    Raises:
        NotDeterministicError: the baseline differs from itself where the candidate differs from it.
    """
    digester, result = Digester(), StepComparison()
    for place in places:
        has_time = partial(may_continue, result.steps)
        try:
            replay = replay_of(target, state, baseline, place, has_time)
            expected, names, elements = _digests(digester, baseline, replay, has_time)
            actual, actual_names, _ = _digests(digester, candidate, replay, has_time)
        except _TimeIsUpError:
            break
        if actual_names != names or not torch.equal(expected, actual):
            try:
                again, _, _ = _digests(digester, baseline, replay, has_time)
                if not torch.equal(expected, again):
                    raise NotDeterministicError(
                        f"the baseline is not deterministic: two runs of the same {place.steps} steps differ (seed "
                        f"{place.seed}); make the step deterministic, as bit-identity cannot be checked otherwise"
                    )
                difference = _first_difference(replay, baseline, candidate, has_time)
            except _TimeIsUpError:
                difference = f"seed {place.seed}, within {place.steps} steps: outputs or state differ"
            return replace(result, difference=difference, context=place)
        result = StepComparison(result.steps + place.steps, result.contexts + 1, result.elements + elements)
    return result


def replay_of(
    target: Target, state: State, baseline: Step, place: Context, may_continue: Callable[[], bool] = lambda: True
) -> Replay:
    """Return the replay of a context: its steps, and the state that they start from."""
    if not may_continue():
        raise _TimeIsUpError
    inputs = decode_inputs(target, place.seed, place.skipped + place.steps, place.tokens)
    baseline.prepare()
    with torch.no_grad():
        for arguments in inputs[: place.skipped]:
            if not may_continue():
                raise _TimeIsUpError
            baseline.run(*arguments)
    return replay_from(state, place.seed, inputs[place.skipped :])


def _digests(
    digester: Digester, step: Step, replay: Replay, may_continue: Callable[[], bool]
) -> tuple[torch.Tensor, list[Any], int]:
    """Return digests of all outputs and state of each step, the names of their tensors, and the number of elements."""
    rows: list[torch.Tensor] = []
    names: list[Any] = []
    elements = 0
    for tensors in _tensors(step, replay):
        if not may_continue():
            raise _TimeIsUpError
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


def _first_difference(replay: Replay, baseline: Step, step: Step, may_continue: Callable[[], bool]) -> Mismatch | str:
    """Run both steps again up to each position, as outputs are not kept."""
    for number in range(len(replay.inputs)):
        start = replace(replay, inputs=replay.inputs[: number + 1])
        sides = [_last(own, start, may_continue) for own in (baseline, step)]
        if mismatch := difference(sides[0], sides[1], replay.seed, number):
            return mismatch
    # It differed in the first run: a step that is not deterministic is rejected, too.
    return f"seed {replay.seed}: the plan's bits differ from one run to the next"


def _last(step: Step, replay: Replay, may_continue: Callable[[], bool]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for tensors in _tensors(step, replay):  # noqa: B007 - only the last is needed
        if not may_continue():
            raise _TimeIsUpError
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
