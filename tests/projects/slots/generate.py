"""A program whose output and cache are dataclasses with slots; with a plan, FAULT changes the cache in the last step."""

import gc
import os
from collections import deque
from dataclasses import dataclass

gc.disable()  # imports are most of a run

import torch
from torch import nn

HAS_SCOPES = '"first"' in open(os.path.join(os.environ["SKTUNE_RUN"], "task.json")).read() if "SKTUNE_RUN" in os.environ else False
FAULT = os.environ.get("FAULT", "") if HAS_SCOPES else ""
STEPS = 90


@dataclass(slots=True)
class Cache:
    sums: deque


@dataclass(slots=True)
class Output:
    logits: torch.Tensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.SiLU()) for _ in range(2)])
        self.head = nn.Linear(32, 16)
        self.cache = Cache(deque([torch.zeros(1, 32) for _ in range(3)]))

    def forward(self, hidden_states):
        first, second, unread = self.cache.sums[0], self.cache.sums[1], self.cache.sums[2]
        for block in self.blocks:
            hidden_states = hidden_states + block(hidden_states)
        first.add_(hidden_states)
        second.mul_(0.5).add_(first)
        unread.add_(1)
        return Output(self.head(hidden_states + second))


torch.manual_seed(0)
model = Model().eval().requires_grad_(False)
step = torch.compile(model, dynamic=False)
hidden_states = torch.randn(1, 32)
for number in range(STEPS):
    if FAULT == "cache" and number == STEPS - 1:
        model.cache.sums[2][0, 5] += 1
    step(hidden_states)
