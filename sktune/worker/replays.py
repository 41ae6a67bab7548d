"""Short replays of decode steps: outputs and state are compared with the baseline bit by bit, without tolerance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sktune.backends.base import Step
from sktune.core.errors import TargetError
from sktune.measure.bits import Mismatch, difference
from sktune.program.sktune_program.torch_private import tree_leaves
from sktune.targets.base import Inputs, Snapshot, Target, decode_inputs
from sktune.targets.state import held_by

STEPS = 8
"""Consecutive decode steps to compare."""
SEEDS = (0, 1)
"""Input seeds: two contexts with different token sequences."""

State = Mapping[str, torch.Tensor]
"""The tensors that outlive a step, by name."""


@dataclass(frozen=True)
class Replay:
    """One seed's replay.

    Attributes:
        seed: of the prefill.
        inputs: of the steps after it.
        start: the state there.
        state: the tensors that hold it.
    """

    seed: int
    inputs: Sequence[Inputs]
    start: Snapshot
    state: State

    @property
    def elements(self) -> int:
        """Number of elements of the state."""
        return sum(tensor.numel() for tensor in self.state.values())


@dataclass(frozen=True)
class Recording:
    """The baseline's results in one replay: the outputs of each step, and the state after the last."""

    replay: Replay
    outputs: Sequence[Mapping[str, torch.Tensor]]
    state: Mapping[str, torch.Tensor]


def prepare(
    target: Target, state: State | None = None, seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> tuple[Replay, ...]:
    """Run prefill eagerly, once for each seed, and save the state that decoding starts from.

    ``state`` has all tensors that outlive a step; None for those that the target declares.
    """
    state = target.state if state is None else state
    replays = []
    for seed in seeds:
        replays.append(replay_from(state, seed, decode_inputs(target, seed, steps)))
    return tuple(replays)


def replay_from(state: State, seed: int, inputs: Sequence[Inputs]) -> Replay:
    """Return the replay of some steps from the state as it is now; what their inputs hold is part of it."""
    known = {id(tensor) for tensor in state.values()}
    whole = {**state, **{name: tensor for name, tensor in held_by(inputs).items() if id(tensor) not in known}}
    return Replay(seed, inputs, Snapshot(whole), whole)


def record(step: Step, replays: Sequence[Replay]) -> tuple[Recording, ...]:
    """Replay every seed with ``step``; return copies of all outputs and of the final state."""
    recordings = []
    for replay in replays:
        outputs = [_copied(named) for named in _run(step, replay)]
        recordings.append(Recording(replay, outputs, _copied(replay.state)))
    return tuple(recordings)


def compare(step: Step, recordings: Sequence[Recording]) -> Mismatch | None:
    """Replay every seed with ``step``; return the first difference from ``recordings``, or None."""
    for recording in recordings:
        replay = recording.replay
        for number, outputs in enumerate(_run(step, replay)):
            if mismatch := difference(recording.outputs[number], outputs, replay.seed, number):
                return mismatch
        if mismatch := difference(recording.state, replay.state, replay.seed, len(replay.inputs) - 1):
            return mismatch
    return None


def replayed_inputs(replays: Sequence[Replay], most: int | None = None) -> Iterator[Inputs]:
    """Yield copies of the inputs of each replay's first ``most`` steps, after restoring the state after its prefill."""
    for replay in replays:
        replay.start.restore()
        yield from map(copied, replay.inputs[:most])


def _run(step: Step, replay: Replay) -> Any:
    replay.start.restore()
    step.prepare()
    with torch.no_grad():
        for inputs in replay.inputs:
            yield run_once(step, inputs)
        known = {id(tensor) for tensor in replay.state.values()}
        if any(id(tensor) not in known for tensor in held_by(replay.inputs).values()):
            raise TargetError(
                "the decode step puts a new tensor into one of its inputs, a list or a cache, so that what it leaves "
                "there cannot be compared; have it write into tensors that are there"
            )


def run_once(step: Step, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Run ``step`` on copies of ``inputs``, as it may write to them; return its outputs and these copies by name."""
    copies = copied(inputs)
    outputs = named_outputs(step.run(*copies))
    return outputs | {f"input[{index}]": value for index, value in enumerate(copies) if isinstance(value, torch.Tensor)}


def copied(inputs: Inputs) -> Inputs:
    """Return ``inputs`` with every tensor copied."""
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)


def named_outputs(output: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a step's output by name; a single tensor is called ``logits``."""
    leaves = [leaf for leaf in tree_leaves(output) if leaf is not None]
    tensors = [leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf) for leaf in leaves]
    if len(tensors) == 1:
        return {"logits": tensors[0]}
    return {f"output[{index}]": tensor for index, tensor in enumerate(tensors)}


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
