"""Decode steps of plans beside the baseline's, bit by bit: the reference's own comparison.

It shares nothing with ``replays`` or ``step_check`` of ``sktune.runners.worker``: what they say is judged against it.
In each context the baseline runs once, and its inputs, outputs and states are kept. Each plan then runs twice: step
after step, as in production, where a difference in the state stays; and, once its state has differed, each further
step alone, from the baseline's own state, which tells how often a step itself makes a difference.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from sktune.backends.base import Step
from sktune.targets.base import Target

Tensors = dict[str, torch.Tensor]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a plan.

    Attributes:
        seed, slots: of the context: the prefill's seed, and the slots of the cache that are filled before its steps.
        step: within the context, from 0.
        tensor: name of an output or of a tensor of the state.
        differing, elements: how many elements differ, of how many.
    """

    seed: int
    slots: int
    step: int
    tensor: str
    differing: int
    elements: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What was compared of one plan, and how much of it differs.

    Attributes:
        contexts, steps: that were compared.
        differing_contexts: contexts with a difference.
        differing_steps: steps whose outputs or state differ, decoding from the context's start.
        own_differing_steps: steps whose outputs or state differ where they begin with the baseline's state.
        state_only_steps: those of the latter whose outputs are equal.
    """

    contexts: int = 0
    steps: int = 0
    differing_contexts: int = 0
    differing_steps: int = 0
    own_differing_steps: int = 0
    state_only_steps: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        names = [field.name for field in fields(self)]
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class Trace:
    """What the baseline did in one context.

    Attributes:
        seed, slots: see ``Difference``.
        inputs: of each step.
        outputs: of each step, by name.
        states: before the first step, and after each.
    """

    seed: int
    slots: int
    inputs: Sequence[tuple[Any, ...]]
    outputs: Sequence[Tensors]
    states: Sequence[Tensors]

    def digest(self, before: str) -> str:
        """Return a digest of all that the trace holds and of the digest ``before`` it."""
        found = hashlib.blake2b(before.encode(), digest_size=16)
        for tensors in (*self.outputs, self.states[0], self.states[-1]):
            for name, tensor in tensors.items():
                found.update(name.encode())
                found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


@torch.no_grad()
def traced(target: Target, baseline: Step, seed: int, slots: int, context: int | None, steps: int) -> Trace:
    """Fill ``slots`` slots of the cache and run ``steps`` decode steps with the baseline.

    ``context``: slots that the target's prefill fills by itself, after which the baseline fills the others; None for a
    target whose prefill is told how many to fill.
    """
    if context is None:
        inputs = list(target.prefill(seed, steps, slots))
    else:
        inputs = list(target.prefill(seed, slots - context + steps))
    baseline.prepare()
    skipped = len(inputs) - steps
    for own in inputs[:skipped]:
        baseline.run(*_copied(own))
    states, outputs = [_kept(target.state)], []
    for own in inputs[skipped:]:
        outputs.append(_kept(_named(baseline.run(*_copied(own)))))
        states.append(_kept(target.state))
    return Trace(seed, slots, inputs[skipped:], outputs, states)


@torch.no_grad()
def compared(target: Target, step: Step, trace: Trace) -> tuple[Counts, Difference | None]:
    """Run ``step`` in the trace's context; return what differs from the baseline, and where first."""
    step.prepare()
    _put(target, trace.states[0])
    differing, alone, state_only, first = 0, [], 0, None
    own_differing, is_astray = 0, False
    for number in range(len(trace.inputs)):
        if is_astray:
            alone.append(number)
        outputs = _named(step.run(*_copied(trace.inputs[number])))
        same_outputs = _same(trace.outputs[number], outputs)
        same_state = _same(trace.states[number + 1], target.state)
        if not (same_outputs and same_state):
            differing += 1
            first = first or _difference(trace, number, {**outputs, **target.state})
            if not is_astray:
                own_differing += 1
                state_only += same_outputs
        is_astray = not same_state
    for number in alone:
        _put(target, trace.states[number])
        outputs = _named(step.run(*_copied(trace.inputs[number])))
        same_outputs = _same(trace.outputs[number], outputs)
        if not (same_outputs and _same(trace.states[number + 1], target.state)):
            own_differing += 1
            state_only += same_outputs
    counts = Counts(1, len(trace.inputs), int(differing > 0), differing, own_differing, state_only)
    return counts, first


def _named(output: Any) -> Tensors:
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    if not leaves:
        raise ValueError("the step returns no tensor: there is nothing to compare")
    return {f"output {index}": leaf for index, leaf in enumerate(leaves)}


def _copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)


def _kept(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _put(target: Target, state: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in target.state.items():
        tensor.copy_(state[name])


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """View the elements as integers of their size, so that signed zeros and patterns of NaN count."""
    return tensor.view(_WORDS[tensor.element_size()])


def _same(expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor]) -> bool:
    if len(expected) != len(got):
        return False
    return all(
        tensor.dtype == got[name].dtype and torch.equal(_words(tensor), _words(got[name]))
        for name, tensor in expected.items()
    )


def _difference(trace: Trace, step: int, got: Mapping[str, torch.Tensor]) -> Difference:
    found = Difference(trace.seed, trace.slots, step, "number, shape or type of the tensors", 0, 0)
    for name, tensor in {**trace.outputs[step], **trace.states[step + 1]}.items():
        own = got.get(name)
        if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
            return replace(found, tensor=f"{name} (shape or type)")
        if differing := int((_words(tensor) != _words(own)).sum()):
            return replace(found, tensor=name, differing=differing, elements=tensor.numel())
    return found
