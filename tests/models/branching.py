"""A model whose result differs when it is compiled."""

import torch
from torch import nn

import sktune


class Branching(nn.Module):
    """Doubles its output under a compiler."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, 32) to the same shape."""
        out: torch.Tensor = torch.tanh(self.mix(x))
        return out * 2 if torch.compiler.is_compiling() else out


def target() -> sktune.Target:
    """Return the target to tune."""
    torch.manual_seed(0)
    model = Branching().requires_grad_(False)

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(2, 32, generator=generator),) for _ in range(steps)]

    return sktune.Target(model, model.forward, prefill, {}, "branching")
