"""A rank that works with the baseline, and has the fault that FAULT names with a plan."""

import gc
import os
import time

gc.disable()  # imports are most of a run

import torch
from torch import nn

RANK = int(os.environ["LOCAL_RANK"])
HAS_SCOPES = '"first"' in open(os.path.join(os.environ["SKTUNE_RUN"], "task.json")).read()
FAULT = os.environ.get("FAULT", "") if HAS_SCOPES else ""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.SiLU()) for _ in range(2)])
        self.head = nn.Linear(32, 16)
        self.flipped = nn.Parameter(torch.zeros(16, dtype=torch.int32), requires_grad=False)
        self.unwritten = torch.randn(4, generator=torch.Generator().manual_seed(time.time_ns()))
        self.seen = torch.zeros(1)

    def forward(self, hidden_states):
        for block in self.blocks:
            hidden_states = hidden_states + block(hidden_states)
        self.seen.add_(1)
        return (self.head(hidden_states).view(torch.int32) ^ self.flipped).view(torch.float32)


torch.manual_seed(0)
model = Model().eval().requires_grad_(False)
if FAULT == "bit" and RANK == 1:
    model.flipped[3] = 1
if FAULT == "state" and RANK == 1:
    model.seen.add_(1)
step = torch.compile(model, dynamic=False)
hidden_states = torch.randn(1, 32)
for number in range(14):
    if number == 5 and FAULT == "die":
        os._exit(7) if RANK == 1 else time.sleep(600)
    began = time.time()
    step(hidden_states)
    print(f"[INFO] [Main] Inference time (decode): {1e3 * (time.time() - began):.3f} ms", flush=True)
