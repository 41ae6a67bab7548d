"""A decoder whose layers write keys through one stacked cache, and read them through views that were made outside."""

from collections.abc import Callable

import torch
from torch import nn

from sktune.targets.base import Inputs, Target, decode_inputs

SLOTS, WIDTH = 6, 8


class Attention(nn.Module):
    """Writes keys through the cache, and reads them through a view that was made outside."""

    def forward(
        self, cache: torch.Tensor, keys: torch.Tensor, slot: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        cache[0].scatter_(1, slot.view(1, 1, 1).expand(2, 1, WIDTH), hidden[:, None])
        weights = torch.softmax((keys * hidden[:, None]).sum(-1), -1)
        return hidden + (weights[..., None] * cache[1]).sum(1)


class Decoder(nn.Module):
    """Two layers on one stacked cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(64, WIDTH), Attention(), Attention()
        self.cache = nn.Buffer(torch.zeros(2, 2, 2, SLOTS, WIDTH))

    def forward(self, token: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        caches = [self.cache[0], self.cache[1]]
        keys = [cache[0] for cache in caches]
        hidden = self.first(caches[0], keys[0], slot, self.embed(token))
        hidden = self.second(caches[1], keys[1], slot, hidden)
        result: torch.Tensor = hidden + keys[0].sum(1)  # after both scopes: sees what was written inside of the first
        return result


def target() -> Target:
    """Return a target with the decoder, whose units are ``first`` and ``second``."""
    model = Decoder().requires_grad_(False).eval()

    def prefill(seed: int, steps: int) -> list[Inputs]:
        drawn = torch.Generator().manual_seed(seed)
        model.cache.copy_(torch.randn(model.cache.shape, generator=drawn))
        return [(torch.randint(0, 64, (2,), generator=drawn), torch.tensor([step % SLOTS])) for step in range(steps)]

    return Target(model, model.forward, prefill, {"cache": model.cache})


def run(made: Target, step: Callable[..., torch.Tensor], steps: int = 12) -> list[torch.Tensor]:
    """Run steps of a target from the start, and return copies of each one's output and state."""
    results = []
    for inputs in decode_inputs(made, 1, steps):
        results += [step(*inputs).clone(), *(value.clone() for value in made.state.values())]
    return results
