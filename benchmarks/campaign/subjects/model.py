"""A small model whose process misbehaves once, as ``CAMPAIGN_FAULT`` says: ``KIND:SECONDS`` or ``KIND:CALLS``."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import torch
from torch import nn

import sktune

HIDDEN = 32

library = torch.library.Library("sktune_campaign", "DEF")
library.define("passed_on(Tensor x, str what) -> Tensor")
library.impl("passed_on", lambda x, what: torch.empty_like(x), "Meta")


class Disturbance:
    """What happens to this process, and when."""

    def __init__(self) -> None:
        self.kind, _, when = os.environ.get("CAMPAIGN_FAULT", "").partition(":")
        self.when = float(when or 0)
        self.calls = 0

    def begin(self) -> None:
        """Start the timer, or a child that stays."""
        if self.kind == "child stays":
            sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
            subprocess.Popen(sleep, start_new_session=True)
            if os.fork() == 0:
                os.setsid()
                signal.pause()
        if self.kind in ("segfault", "hang"):
            timer = threading.Timer(self.when, self.strike)
            timer.daemon = True
            timer.start()

    def strike(self) -> None:
        """Read address 0, or hold the interpreter's lock for ever."""
        if self.kind == "segfault":
            ctypes.string_at(0)
        ctypes.PyDLL(None).sleep(600)

    def passed_on(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """Return a copy, with one bit flipped once."""
        out = x.clone()
        if self.kind == f"bit in {what}":
            self.calls += 1
            if self.calls == int(self.when):
                out.view(torch.int32).view(-1)[3] ^= 1
        return out


disturbance = Disturbance()
library.impl("passed_on", disturbance.passed_on, "CPU")


class Layer(nn.Module):
    """Pointwise work, and a matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = Mix(), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        out: torch.Tensor = self.out(self.mix(x))
        return x + out


class Mix(nn.Module):
    """Pointwise work that a scope makes faster."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        for _ in range(6):
            x = (x * 1.5 + 0.25).clamp(-2, 2)
        return x


class Stack(nn.Module):
    """Two layers, and a state that every step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.seen = nn.Buffer(torch.zeros(2, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (2, hidden) to the same shape."""
        for layer in self.layers:
            x = layer(x)
        if disturbance.kind.startswith("bit"):
            self.seen.add_(torch.ops.sktune_campaign.passed_on(x, "state"))
            x = torch.ops.sktune_campaign.passed_on(x, "outputs")
        else:
            self.seen.add_(x)
        return x


def target() -> sktune.Target:
    """Return the target; its process is disturbed from now on."""
    disturbance.begin()
    torch.manual_seed(0)
    model = Stack()

    def prefill(seed: int, steps: int) -> Sequence[tuple[torch.Tensor]]:
        model.seen.zero_()
        tokens = torch.randn(steps, 2, HIDDEN, generator=torch.Generator().manual_seed(seed))
        return [(each,) for each in tokens]

    return sktune.Target(model, model.forward, prefill, {"seen": model.seen}, "a model of the campaign")
