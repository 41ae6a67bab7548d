"""A rank of a program whose Python has torch and what torch needs, and nothing else; it notes what was imported."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

RANK = int(os.environ["RANK"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, hidden_states):
        return hidden_states + self.out(torch.tanh(self.mix(hidden_states)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(16, 8)
        self.cache = torch.zeros(1, 16)

    def decode(self, hidden_states):
        for block in self.blocks:
            hidden_states = block(hidden_states)
        self.cache.add_(hidden_states)
        return self.head(hidden_states + self.cache)


dist.init_process_group("gloo")
torch.manual_seed(RANK)
model = Model().eval().requires_grad_(False)
step = torch.compile(model.decode, backend="eager", dynamic=False, fullgraph=True)
hidden_states = torch.randn(1, 16)
for _ in range(16):
    hidden_states = step(hidden_states).repeat(1, 2)
    dist.all_reduce(hidden_states)
dist.destroy_process_group()
noted = {
    "rank": RANK,
    "python": sys.prefix,
    "bits": hidden_states.tolist(),
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "entered": getattr(sys.modules.get("torchair"), "entered", []),
    "compiled": "sktune_program.inductor.compiled_regions" in sys.modules,
}
folder = Path(os.environ["NOTES"])
(folder / f"{os.getpid()}.json").write_text(json.dumps(noted))
