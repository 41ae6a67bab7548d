"""Models with state that their target does not declare: ``--model tests/models/hidden_state.py:NAME``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import sktune

HIDDEN = 64


@dataclass(slots=True)
class Slots:
    """A cache as in recipes: not an attribute of a module, and without a ``__dict__``."""

    keys: torch.Tensor
    steps: int = 0


TOTAL = torch.zeros(HIDDEN)


class Counting(nn.Module):
    """A model with several tensors that a step may write to."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.total = nn.Buffer(torch.zeros(HIDDEN))
        self.plain = torch.zeros(HIDDEN)
        self.weight = nn.Parameter(torch.zeros(HIDDEN), requires_grad=False)
        self.last = torch.zeros(2, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        out: torch.Tensor = torch.tanh(self.mix(x))
        return out


def _target(write: Callable[[Counting, torch.Tensor], Any]) -> sktune.Target:
    torch.manual_seed(0)
    model = Counting().requires_grad_(False)

    def step(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x)
        write(model, out)
        return out

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(2, HIDDEN, generator=generator),) for _ in range(steps)]

    return sktune.Target(model, step, prefill, {}, "hidden state")


def in_a_buffer() -> sktune.Target:
    """A buffer."""
    return _target(lambda model, out: model.total.add_(out[0]))


def in_a_plain_attribute() -> sktune.Target:
    """A tensor that is not a buffer."""
    return _target(lambda model, out: model.plain.add_(out[0]))


def in_a_closure() -> sktune.Target:
    """A tensor in the step's closure."""
    running_sum = torch.zeros(HIDDEN)
    return _target(lambda model, out: running_sum.add_(out[0]))


def in_a_parameter() -> sktune.Target:
    """A weight."""
    return _target(lambda model, out: model.weight.add_(out[0]))


def in_slots() -> sktune.Target:
    """A tensor in an object without a ``__dict__``."""
    cache = Slots(torch.zeros(HIDDEN))
    return _target(lambda model, out: cache.keys.add_(out[0]))


def in_a_global_variable() -> sktune.Target:
    """A global variable of the model's file."""
    TOTAL.zero_()
    return _target(lambda model, out: TOTAL.add_(out[0]))


def replaced_in_slots() -> sktune.Target:
    """Each step replaces a cache by a new tensor, which the next step reads."""
    cache = Slots(torch.zeros(HIDDEN))

    def write(model: Counting, out: torch.Tensor) -> None:
        cache.keys = cache.keys + out[0]

    return _target(write)


def replaced_and_never_read() -> sktune.Target:
    """Each step stores a new tensor in an object that is not a module; no step reads it."""
    cache = Slots(torch.zeros(HIDDEN))

    def write(model: Counting, out: torch.Tensor) -> None:
        cache.keys = out * 2

    return _target(write)


def replaced_in_a_dictionary() -> sktune.Target:
    """Each step stores a new tensor in a container."""
    cache: dict[str, torch.Tensor] = {}

    def write(model: Counting, out: torch.Tensor) -> None:
        cache["hidden"] = out * 2

    return _target(write)


def growing() -> sktune.Target:
    """A cache that grows with each step."""
    cache = Slots(torch.zeros(0, HIDDEN))

    def write(model: Counting, out: torch.Tensor) -> None:
        cache.keys = torch.cat((cache.keys, out))

    return _target(write)


def counting_in_python() -> sktune.Target:
    """A Python number that becomes a constant of the captured step."""
    cache = Slots(torch.zeros(HIDDEN))

    def write(model: Counting, out: torch.Tensor) -> None:
        cache.steps += 1
        cache.keys.add_(cache.steps)

    return _target(write)


def replaced() -> sktune.Target:
    """Each step replaces an attribute of the module by a new tensor."""

    def write(model: Counting, out: torch.Tensor) -> None:
        model.last = out * 2

    return _target(write)


def in_its_input() -> sktune.Target:
    """The step writes to its input."""
    torch.manual_seed(0)
    model = Counting().requires_grad_(False)

    def step(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x)
        x.add_(1.0)
        return out

    return sktune.Target(model, step, _target(lambda model, out: None).prefill, {}, "written inputs")
