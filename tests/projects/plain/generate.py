"""A single-process program without scopes: one compiled model for prefill and decode, and a draft model."""

import sys

import torch
from torch import nn

HIDDEN, VOCABULARY, TOKENS = 64, 32, 48


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.mix = nn.Linear(HIDDEN, HIDDEN)
        self.act = nn.SiLU()

    def forward(self, hidden_states):
        return hidden_states + self.act(self.mix(self.norm(hidden_states)))


class Model(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.head = nn.Linear(HIDDEN, VOCABULARY)
        self.sum = torch.zeros(1, HIDDEN)

    def forward(self, tokens):
        hidden_states = self.embed(tokens)
        for block in self.blocks:
            hidden_states = block(hidden_states)
        self.sum.add_(hidden_states[:, -1])
        return self.head(hidden_states + self.sum.unsqueeze(1))


def main(steps):
    torch.manual_seed(0)
    model, draft = Model(3).eval(), Model(1).eval()
    compiled, drafted = torch.compile(model, dynamic=False), torch.compile(draft, dynamic=False)
    with torch.no_grad():
        token = compiled(torch.arange(8).view(1, 8))[:, -1:].argmax(-1)
        for _ in range(steps):
            drafted(token)
            token = compiled(token)[:, -1:].argmax(-1)
            print("token", int(token))


if __name__ == "__main__":
    main(int(sys.argv[1]))
