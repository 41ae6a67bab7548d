"""Models with a unit that fails in a compiled scope, and is harmless when run kernel by kernel.

Each function is a target for ``--model tests/models/faulty.py:NAME``. Layers have ``mix`` (without a fault, and faster
in a scope) and ``fault``, whose operator fails when Inductor lowers it.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor import lowering

import sktune
from sktune.backends.inductor import pieces

HIDDEN = 64
STARTS = "FAULTY_STARTS"
"""Environment variable with the path of a file that counts workers."""
TOKENS = torch.Size((2, HIDDEN))
SLOTS = 96

library = torch.library.Library("sktune_faulty", "DEF")
library.define("harmless(Tensor x, str fault) -> Tensor")
library.define("flipped(Tensor x, str fault) -> Tensor")
library.define("harmless_at(Tensor x, Tensor position) -> Tensor")
library.define("flipped_at(Tensor x, Tensor position) -> Tensor")
library.define("deadly_later(Tensor x, str fault) -> Tensor")


def _same(x: torch.Tensor, fault: str) -> torch.Tensor:
    return x.clone()


def _one_bit_off(x: torch.Tensor, fault: str = "") -> torch.Tensor:
    out = x.clone()
    out.view(torch.int32)[0, 7] ^= 1
    return out


def _kills_later_workers(x: torch.Tensor, fault: str) -> torch.Tensor:
    if int(Path(os.environ[STARTS]).read_text()) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x.clone()


operators = (
    ("harmless", _same), ("flipped", _one_bit_off),
    ("deadly_later", _kills_later_workers),
)  # fmt: skip
for name, function in operators:
    library.impl(name, function, "CPU")
    library.impl(name, lambda x, fault: torch.empty_like(x), "Meta")

for name, flips in (("harmless_at", False), ("flipped_at", True)):

    def at_a_position(x: torch.Tensor, position: torch.Tensor, flips: bool = flips) -> torch.Tensor:
        """Return a copy; if it ``flips``, with a wrong bit in the last slot."""
        return _one_bit_off(x) if flips and position.item() == SLOTS - 1 else x.clone()

    library.impl(name, at_a_position, "CPU")
    library.impl(name, lambda x, position: torch.empty_like(x), "Meta")

harmless = torch.ops.sktune_faulty.harmless.default
harmless_at = torch.ops.sktune_faulty.harmless_at.default


class Mix(nn.Module):
    """Pointwise work that a scope makes faster."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        for _ in range(24):
            x = (x * 1.5 + 0.25).clamp(-2, 2)
        return x


class Fault(nn.Module):
    """Calls the operator that fails inside a scope; the name makes its compiled code different from other faults."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        out: torch.Tensor = harmless(x, self.name)
        return out


class Layer(nn.Module):
    """A unit without a fault, and one with a fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.mix = Mix()
        self.fault = Fault(fault)
        self.scale = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        out: torch.Tensor = self.fault(self.mix(x)) * self.scale
        return out


class Stack(nn.Module):
    """Two layers."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(fault) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        for layer in self.layers:
            x = layer(x)
        return x


def _target(fault: str, lower: Callable[[Any, str], Any]) -> sktune.Target:
    lowering.register_lowering(harmless, type_promotion_kind=None)(lower)
    model = Stack(fault).requires_grad_(False)

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(TOKENS, generator=generator),) for _ in range(steps)]

    return sktune.Target(model, model.forward, prefill, {}, "faulty: 2 layers")


def raises() -> sktune.Target:
    """The compiler raises."""

    def lower(x: Any, fault: str) -> Any:
        raise RuntimeError("this operator cannot be fused")

    return _target("raises", lower)


def hangs() -> sktune.Target:
    """The compiler never ends."""

    def lower(x: Any, fault: str) -> Any:
        while True:
            time.sleep(1)

    return _target("hangs", lower)


def segfaults() -> sktune.Target:
    """The compiler reads through a null pointer."""

    def lower(x: Any, fault: str) -> Any:
        ctypes.string_at(0)

    return _target("segfaults", lower)


def killed() -> sktune.Target:
    """The compiler is killed, as by the kernel when the machine's memory runs out."""

    def lower(x: Any, fault: str) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    return _target("killed", lower)


def runs_out_of_memory() -> sktune.Target:
    """The compiler allocates memory until there is none."""

    def lower(x: Any, fault: str) -> Any:
        blocks = []
        while True:
            blocks.append(torch.empty(1 << 30))  # 4 GiB each

    return _target("runs_out_of_memory", lower)


def flips_a_bit() -> sktune.Target:
    """The compiled operator returns one wrong bit."""
    return _target(
        "flips a bit", lowering.fallback_handler(torch.ops.sktune_faulty.flipped.default, add_to_fallback_set=False)
    )


class FaultAt(nn.Module):
    """Calls an operator that fails inside a scope, in one slot of the cache."""

    def __init__(self, position: torch.Tensor) -> None:
        super().__init__()
        self.position = position

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        out: torch.Tensor = harmless_at(x, self.position)
        return out


class Positioned(Stack):
    """The stack, with a counter of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Buffer(torch.zeros(1, dtype=torch.long))
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.fault = FaultAt(self.position)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        out = super().forward(x)
        self.position.add_(1)
        return out


def flips_a_bit_in_the_last_slot() -> sktune.Target:
    """The compiled operator returns one wrong bit at one position, which no trial reaches."""
    flipped = torch.ops.sktune_faulty.flipped_at.default
    lowering.register_lowering(harmless_at, type_promotion_kind=None)(
        lowering.fallback_handler(flipped, add_to_fallback_set=False)
    )
    model = Positioned().requires_grad_(False)

    def prefill(seed: int, steps: int, context: int | None = None) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        model.position.fill_(20 if context is None else context)
        return [(torch.randn(TOKENS, generator=generator),) for _ in range(steps)]

    state = {"position": model.position}
    return sktune.Target(model, model.forward, prefill, state, "faulty: 2 layers", capacity=SLOTS)


def ends_later_workers() -> sktune.Target:
    """The compiled operator runs in the first worker of a search, and kills those of the final comparison."""
    path = Path(os.environ[STARTS])
    path.write_text(str(int(path.read_text()) + 1))
    return _target(
        "ends later workers",
        lowering.fallback_handler(torch.ops.sktune_faulty.deadly_later.default, add_to_fallback_set=False),
    )


def dies_when_observed() -> sktune.Target:
    """The worker is killed when its scopes are timed one by one."""

    def observe(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    pieces.Pieces.observe = observe  # type: ignore[assignment, method-assign]
    return flips_a_bit()


def not_deterministic() -> sktune.Target:
    """The model itself never gives the same output twice."""
    model = Stack().requires_grad_(False)

    def step(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x) + torch.rand_like(x)
        return out

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        return [(torch.ones(TOKENS),) for _ in range(steps)]

    return sktune.Target(model, step, prefill)


def breaks_the_graph() -> sktune.Target:
    """The decode step branches on a value."""
    model = Stack().requires_grad_(False)

    def step(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x)
        return out if out.sum().item() > 0 else -out

    return sktune.Target(model, step, lambda seed, steps: [(torch.ones(TOKENS),)] * steps)
