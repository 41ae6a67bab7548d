"""A model with many small kernels, which is several times faster in one scope."""

import torch
from torch import nn

import sktune

BATCH, WIDTH, SLOTS = 2, 256, 64
OPERATIONS = 24


class Chain(nn.Module):
    """A chain of elementwise operators."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.full((WIDTH,), 0.25), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape."""
        for _ in range(OPERATIONS):
            hidden = (hidden * 1.2345678).abs() - self.share
        return hidden


class Layer(nn.Module):
    """One chain."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = Chain()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape."""
        output: torch.Tensor = self.chain(hidden)
        return output


class Model(nn.Module):
    """Two layers, and a cache of the inputs."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.cache = nn.Buffer(torch.zeros(SLOTS, batch, WIDTH))
        self.position = nn.Buffer(torch.zeros(1, dtype=torch.long))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (batch, width)."""
        self.cache.index_copy_(0, self.position, hidden[None])
        self.position.add_(1)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def target(batch: int = BATCH) -> sktune.Target:
    """Return the target to tune."""
    model = Model(batch).eval()
    state = dict(model.named_buffers())

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        for tensor in state.values():
            tensor.zero_()
        return [(torch.randn(batch, WIDTH, generator=generator),) for _ in range(steps)]

    return sktune.Target(model, model.forward, prefill, state, "elementwise chains")
