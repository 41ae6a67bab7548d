"""Module trees as users build them: without layers, with two stacks, with shared and repeated modules.

Each function returns a target of a few small modules in float32, without state.
"""

from collections.abc import Callable

import torch
from torch import nn

import sktune

WIDTH = 16


class Mix(nn.Module):
    """A module with one child, which stands for an attention or a feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (.., WIDTH) to the same shape."""
        out: torch.Tensor = torch.tanh(self.linear(x))
        return out


class Gate(Mix):
    """Another class of the same structure."""


class Block(nn.Module):
    """A layer: a residual block of three children."""

    def __init__(self, attention: nn.Module | None = None, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Mix() if attention is None else attention
        self.mlp = Gate() if mlp is None else mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (.., WIDTH) to the same shape."""
        x = x + self.attention(self.norm(x))
        out: torch.Tensor = x + self.mlp(x)
        return out


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.LayerNorm(WIDTH), Mix(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.third(self.second(self.first(x)))
        return out


class Flat(nn.Module):
    """Three modules, none like another, in a module around them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out


class Contained(nn.Module):
    """No layers, and modules in containers that do not run themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"up": nn.Linear(WIDTH, WIDTH), "down": Mix()})
        self.heads = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.parts["down"](self.parts["up"](x))
        return torch.cat([head(x) for head in self.heads], -1)


class Draft(nn.Module):
    """A main stack of three layers, and a draft stack of two that continues it in the same step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.drafted = nn.ModuleList(Block() for _ in range(2))
        self.draft = nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "layers": self.drafted})
        self.head = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        drafted = self.draft["norm"](self.norm(x))
        for layer in self.drafted:
            drafted = layer(drafted)
        out: torch.Tensor = self.head(torch.cat([x, drafted]))
        return out


class _Stack(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(count))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.norm(x)
        return out


class EncoderDecoder(nn.Module):
    """An encoder and a decoder, each a module with its own stack."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = _Stack(2), _Stack(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decoder(self.encoder(x))
        return out


class Shared(nn.Module):
    """One layer that is called four times, as in ALBERT and universal transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Linear(WIDTH, WIDTH), Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for _ in range(4):
            x = self.layer(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


class PartlyShared(nn.Module):
    """Three layers with attentions of their own, and one feed-forward block for all."""

    def __init__(self) -> None:
        super().__init__()
        mlp = Gate()
        self.layers = nn.ModuleList(Block(mlp=mlp) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Pairs(nn.Module):
    """Layers that are lists of an attention and a feed-forward block, which the model itself calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Mix(), Gate()]) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            attention, mlp = layer.children()
            x = x + mlp(x + attention(x))
        return x


class TwoPasses(nn.Module):
    """All attentions run first, then all feed-forward blocks: layers by name, but not in time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer.get_submodule("attention")(x)
        for layer in self.layers:
            x = x + layer.get_submodule("mlp")(x)
        return x


class Whole(nn.Module):
    """A whole model, which is an element of a ``Sequential`` below."""

    def __init__(self) -> None:
        super().__init__()
        self.stack, self.last = _Stack(3), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.stack(x))
        return out


class _Calling(nn.Module):
    """A block that is given a module which is registered elsewhere, and calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        out: torch.Tensor = x + self.linear(norm(x))
        return out


class _CallingLast(_Calling):
    pass


class CalledElsewhere(nn.Module):
    """Norms that are registered beside the layers, and called inside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = Mix()
        self.before, self.after = _Calling(), _CallingLast()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(self.before(x, self.first_norm))
        out: torch.Tensor = self.after(x, self.last_norm)
        return out


class Wrapper(nn.Module):
    """Registers the layers of a model a second time, before the model."""

    def __init__(self) -> None:
        super().__init__()
        model = _Stack(3)
        self.layers = model.layers
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x)
        return out


class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(nn.functional.linear(x, self.linear.weight))


class Functional(nn.Module):
    """Layers that run no module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Functional() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Idle(nn.Module):
    """Layers with dropout, which does nothing while decoding."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()
        self.layers = nn.ModuleList(Block(mlp=nn.Sequential(Mix(), nn.Dropout())) for _ in range(2))
        for layer in self.layers:
            layer.add_module("attention", nn.Sequential(Mix(), nn.Identity()))
            layer.add_module("mlp_dropout", nn.Dropout())
        self.last = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(x)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.last(x)
        return out


def tree(make: Callable[[], nn.Module]) -> sktune.Target:
    """Return a target over a module that maps (2, WIDTH)."""
    torch.manual_seed(0)
    module = make().eval().requires_grad_(False)

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(2, WIDTH, generator=generator),) for _ in range(steps)]

    return sktune.Target(module, module.forward, prefill, {}, "a tree")


def sequence() -> nn.Module:
    """Return a model that is nothing but a ``Sequential``."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(), Block(), nn.Linear(WIDTH, WIDTH))


def model_in_sequence() -> nn.Module:
    """Return a model between two other modules."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Whole(), nn.Linear(WIDTH, WIDTH))


TREES: dict[str, Callable[[], nn.Module]] = {
    "flat": Flat, "contained": Contained, "draft": Draft, "encoder_decoder": EncoderDecoder, "shared": Shared,
    "partly_shared": PartlyShared, "pairs": Pairs, "two_passes": TwoPasses, "sequence": sequence,
    "model_in_sequence": model_in_sequence, "called_elsewhere": CalledElsewhere, "wrapper": Wrapper,
    "functional": Functional, "idle": Idle,
}  # fmt: skip


def __getattr__(name: str) -> Callable[[], sktune.Target]:
    """Return each tree's function, for ``--model tests/models/trees.py:NAME``."""
    if name in TREES:
        return lambda: tree(TREES[name])
    raise AttributeError(name)
