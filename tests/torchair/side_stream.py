"""A model whose feed-forward block runs shared experts on a stream of its own; a target function for ``--model``."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchair
from torch import nn

import tests.torchair.frontend  # noqa: F401 - no device is needed any more
from sktune.targets.base import Target

SIZE = 16


class FeedForward(nn.Module):
    """Two linear layers beside two on another stream, added up at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.shared_up, self.shared_down = (nn.Linear(SIZE, SIZE) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, size) to the same shape."""
        with torchair.scope.npu_stream_switch("1"):
            shared = self.shared_down(F.silu(self.shared_up(hidden)))
        output: torch.Tensor = self.down(F.silu(self.up(hidden))) + shared
        return output


class Chain(nn.Module):
    """Two linear layers, the second on another stream."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, size) to the same shape."""
        hidden = self.up(hidden)
        with torchair.scope.npu_stream_switch("1"):
            output: torch.Tensor = self.down(hidden)
        return output


class Step(nn.Module):
    """A block between two linear layers."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.mlp, self.last = nn.Linear(SIZE, SIZE), block(), nn.Linear(SIZE, SIZE)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, size) to the same shape."""
        output: torch.Tensor = self.last(self.mlp(self.first(hidden)))
        return output


def side_by_side() -> Target:
    """Return a model whose block runs two streams side by side."""
    return _target(FeedForward)


def in_turn() -> Target:
    """Return a model whose block's streams wait for each other."""
    return _target(Chain)


def _target(block: Callable[[], nn.Module]) -> Target:
    torch.manual_seed(0)
    model = Step(block)
    model.eval().requires_grad_(False)
    return Target(model, model.forward, lambda seed, steps: [(torch.full((4, SIZE), 0.5),)] * steps)
