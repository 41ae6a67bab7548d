"""Small decoders whose KV caches show at which positions steps were compared.

``--model tests/models/caches.py:NAME``.
"""

from collections.abc import Callable

import torch
from torch import nn

import sktune

SLOTS, HIDDEN, CONTEXT = 96, 16, 20


class Cached(nn.Module):
    """Writes one slot of its cache in each step, and adds up all written slots."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Buffer(torch.zeros(2, SLOTS, HIDDEN))
        self.position = nn.Buffer(torch.zeros(1, dtype=torch.long))
        self.mix = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, 1, hidden) to the same shape."""
        mixed = self.mix(x)
        self.slots.index_copy_(1, self.position, mixed)
        self.position.add_(1)
        out: torch.Tensor = mixed + self.slots.sum(1, keepdim=True)
        return out


def _target(
    prefill_of: Callable[[Cached], Callable[..., list[tuple[torch.Tensor]]]], capacity: int | None
) -> sktune.Target:
    torch.manual_seed(0)
    model = Cached().requires_grad_(False)
    return sktune.Target(
        model, model.forward, prefill_of(model), dict(model.named_buffers()), "a cache", capacity=capacity
    )


def _prefill(model: Cached) -> Callable[..., list[tuple[torch.Tensor]]]:
    def prefill(seed: int, steps: int, context: int | None = None) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        model.slots.zero_()
        model.position.zero_()
        tokens = CONTEXT if context is None else context
        inputs = [(torch.randn(2, 1, HIDDEN, generator=generator),) for _ in range(tokens + steps)]
        with torch.no_grad():
            for arguments in inputs[:tokens]:
                model(*arguments)
        return inputs[tokens:]

    return prefill


def with_capacity() -> sktune.Target:
    """Its prefill takes the number of tokens in the context."""
    return _target(_prefill, SLOTS)


def without_capacity() -> sktune.Target:
    """Its context is always ``CONTEXT`` tokens, and its steps fail once the cache is full."""
    return _target(_prefill, None)
