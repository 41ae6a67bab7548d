"""A program without tensors: two layers, whose outputs are numbers."""

import json
import sys

import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = nn.Parameter(4, factor)
        self.factor = factor

    def forward(self, number):
        return number * self.factor + 1


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Unit(3), Unit(5)

    def forward(self, number):
        return self.mlp(self.attention(number)) % 1000003


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.seen = []

    def forward(self, number):
        self.seen.append(number)
        for layer in self.layers:
            number = layer(number)
        return {"token": number, "text": str(number), "score": number / 7}


model = Model()
step = torch.compile(model.forward, dynamic=False)
number = 1
for _ in range(12):
    number = step(number)["token"]
entered = getattr(sys.modules.get("torchair"), "entered", [])
sktune = sorted(name for name in sys.modules if name.partition(".")[0].startswith("sktune"))
print(json.dumps({"number": number, "entered": entered, "modules": sktune}))
