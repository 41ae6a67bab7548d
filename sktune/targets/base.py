"""The target as sktune sees it: a module, its decode step, its inputs and its state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sktune.core.errors import TargetError, described

Inputs = tuple[Any, ...]
"""Positional arguments of one decode step."""


@dataclass(frozen=True)
class Target:
    """A model, its decode step, its inputs and its state.

    A user's function returns one (``--model file.py:function``).

    Attributes:
        module: the module tree whose submodules are units; paths of units are relative to it.
        decode_step: turns the last tokens into logits; called as ``decode_step(*inputs)`` under ``torch.no_grad()``.
            It may write to ``state`` in place, and to nothing else.
        prefill: ``prefill(seed, steps)`` runs eagerly, brings the state to where decoding starts, and returns the
            inputs of at least ``steps`` consecutive decode steps. The same seed gives the same values.
        state: tensors that outlive a step (KV cache, positions) by name. They remain the same tensor objects as long
            as the target exists, and are only written in place.
        description: what is tuned, in one line.
        capacity: number of tokens that the state can hold. If it is given, ``prefill`` takes a third argument, the
            number of tokens in the context, from 0 to ``capacity``, or None for the default. Steps can then be verified
            from the first slot of the KV cache to the last.
    """

    module: nn.Module
    decode_step: Callable[..., Any]
    prefill: Callable[..., Sequence[Inputs]]
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    description: str = ""
    capacity: int | None = None


def decode_inputs(target: Target, seed: int, steps: int, context: int | None = None) -> list[Inputs]:
    """Run prefill and return contiguous copies of the inputs of ``steps`` steps.

    They are contiguous because a compiled step is valid for one memory layout of its inputs. ``context`` is the number
    of tokens in the context, only for targets with a ``capacity``.

    Raises:
        TargetError: the prefill fails, or returns the inputs of fewer steps.
    """
    try:
        arguments = (seed, steps) if context is None else (seed, steps, context)
        inputs = target.prefill(*arguments)[:steps]
    except Exception as failure:
        raise TargetError(f"the prefill fails: {described(failure)}; fix it, or the model that it runs") from failure
    if len(inputs) < steps:
        raise TargetError(f"the prefill returns the inputs of {len(inputs)} steps; have it return {steps}")
    contiguous = torch.contiguous_format
    return [
        tuple(each.clone(memory_format=contiguous) if isinstance(each, torch.Tensor) else each for each in values)
        for values in inputs
    ]


class Snapshot:
    """A copy of the state, from which decode steps can be replayed."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        # Each element of an expanded tensor once: it cannot be written to through its repetitions.
        held = [
            tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())]
            for tensor in state.values()
        ]
        self._pairs = [(tensor, tensor.detach().clone()) for tensor in held]

    def restore(self) -> None:
        """Restore the value of every tensor in place."""
        for tensor, saved in self._pairs:
            tensor.copy_(saved)
