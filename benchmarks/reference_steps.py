"""Bitwise comparison of decode steps of plans with the baseline's, for the reference.

It shares no code with ``replays`` and ``step_check`` of ``sktune.worker``, which are checked against it. In
each context the baseline runs once, and its inputs, outputs and states are stored. Each plan then runs twice: step
after step, as in production, where a difference in the state persists; and, once its state has differed, each further
step separately from the baseline's state, which shows how often a step itself makes a difference.
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

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a plan.

    Attributes:
        seed, slots: of the context: the prefill's seed, and the number of cache slots filled before its steps.
        step: within the context, from 0.
        tensor: name of an output or of a tensor of the state.
        differing, elements: number of differing elements and of all elements.
    """

    seed: int
    slots: int
    step: int
    tensor: str
    differing: int
    elements: int


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of one plan was compared, and how much of it differs.

    Attributes:
        contexts, steps: number of contexts and steps compared.
        differing_contexts: number of contexts with a difference.
        differing_steps: number of steps whose outputs or state differ when decoding from the context's start.
        own_differing_steps: number of steps whose outputs or state differ when they begin with the baseline's state.
        state_only_steps: number of the latter whose outputs are equal.
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
    """The baseline's run in one context.

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
        """Return a digest of the whole trace and of the digest ``before`` it."""
        digest = hashlib.blake2b(before.encode(), digest_size=16)
        for tensors in (*self.outputs, self.states[0], self.states[-1]):
            for name, tensor in tensors.items():
                digest.update(name.encode())
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@torch.no_grad()
def traced(target: Target, baseline: Step, seed: int, slots: int, context: int | None, steps: int) -> Trace:
    """Fill ``slots`` slots of the cache and run ``steps`` decode steps with the baseline.

    ``context`` is the number of slots that the target's prefill fills, after which the baseline fills the others; None
    for a target whose prefill fills any number of slots.
    """
    if context is None:
        inputs = list(target.prefill(seed, steps, slots))
    else:
        inputs = list(target.prefill(seed, slots - context + steps))
    baseline.prepare()
    skipped = len(inputs) - steps
    for of_step in inputs[:skipped]:
        baseline.run(*_copied(of_step))
    states, outputs = [_cloned(target.state)], []
    for of_step in inputs[skipped:]:
        outputs.append(_cloned(_named(baseline.run(*_copied(of_step)))))
        states.append(_cloned(target.state))
    return Trace(seed, slots, inputs[skipped:], outputs, states)


@torch.no_grad()
def compared(target: Target, step: Step, trace: Trace) -> tuple[Counts, Difference | None]:
    """Run ``step`` in the trace's context; return its counts and the first difference from the baseline."""
    step.prepare()
    _restore(target, trace.states[0])
    differing, alone, state_only, first = 0, [], 0, None
    own_differing, state_differs = 0, False
    for number in range(len(trace.inputs)):
        if state_differs:
            alone.append(number)
        outputs = _named(step.run(*_copied(trace.inputs[number])))
        same_outputs = _same(trace.outputs[number], outputs)
        same_state = _same(trace.states[number + 1], target.state)
        if not (same_outputs and same_state):
            differing += 1
            first = first or _difference(trace, number, {**outputs, **target.state})
            if not state_differs:
                own_differing += 1
                state_only += same_outputs
        state_differs = not same_state
    for number in alone:
        _restore(target, trace.states[number])
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


def _cloned(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _restore(target: Target, state: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in target.state.items():
        tensor.copy_(state[name])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """View the elements as integers of their size, so that signed zeros and NaN patterns count."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def _same(expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor]) -> bool:
    if len(expected) != len(got):
        return False
    return all(
        tensor.dtype == got[name].dtype and torch.equal(_bits(tensor), _bits(got[name]))
        for name, tensor in expected.items()
    )


def _difference(trace: Trace, step: int, got: Mapping[str, torch.Tensor]) -> Difference:
    difference = Difference(trace.seed, trace.slots, step, "number, shape or type of the tensors", 0, 0)
    for name, tensor in {**trace.outputs[step], **trace.states[step + 1]}.items():
        other = got.get(name)
        if other is None or other.shape != tensor.shape or other.dtype != tensor.dtype:
            return replace(difference, tensor=f"{name} (shape or type)")
        if differing := int((_bits(tensor) != _bits(other)).sum()):
            return replace(difference, tensor=name, differing=differing, elements=tensor.numel())
    return difference
