"""State that is written through one view and read through another, on both sides of a SuperKernel scope's border."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sktune.backends.npu.backend import NpuBackend
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.targets.base import Inputs, Target, decode_inputs
from sktune.targets.tracing import trace_layout
from tests.torchair import frontend

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
        return hidden + keys[0].sum(1)  # after both scopes: sees what was written inside of the first


def decoder() -> Target:
    """Return a target with the decoder."""
    model = Decoder().requires_grad_(False).eval()

    def prefill(seed: int, steps: int) -> list[Inputs]:
        drawn = torch.Generator().manual_seed(seed)
        model.cache.copy_(torch.randn(model.cache.shape, generator=drawn))
        return [(torch.randint(0, 64, (2,), generator=drawn), torch.tensor([step % SLOTS])) for step in range(steps)]

    return Target(model, model.forward, prefill, {"cache": model.cache})


@pytest.mark.parametrize("scopes", [(), ("first",), ("second",), ("first", "second")])
def test_views_of_one_state_keep_its_bits_across_scopes(scopes: tuple[str, ...], tmp_path: Path) -> None:
    """TorchAir marks operators of one graph, which is functional: scopes are no borders for memory."""
    assert frontend  # the engine is left out
    target = decoder()
    with torch.no_grad():
        backend = NpuBackend(target, trace_layout(target, SpaceSpec()), decode_inputs(target, 0, 1)[0])
        compiled = backend.compile(Plan(tuple(Scope(name, name) for name in scopes))).step
        expected = [results(target, target.decode_step(*inputs)) for inputs in decode_inputs(target, 1, 12)]
        inputs = decode_inputs(target, 1, 12)
        compiled.prepare()
        got = [results(target, compiled.run(*each)) for each in inputs]
    assert all(torch.equal(*pair) for steps in zip(expected, got, strict=True) for pair in zip(*steps, strict=True))


def results(target: Target, output: Any) -> list[torch.Tensor]:
    """Return copies of the output and the state."""
    return [output.clone(), *(value.clone() for value in target.state.values())]
