"""A model of your own: what sktune needs is one function that returns a Target.

    sktune search --model examples/own_model.py:target --trials 12

The model is a small decoder with a static KV cache. Everything that outlives a decode step is a tensor in
`state`, written in place; `prefill` runs once, eagerly, and is never compiled.
"""

import torch
import torch.nn.functional as F
from torch import nn

import sktune

BATCH, HEADS, HIDDEN, LAYERS, VOCABULARY = 2, 4, 128, 3, 512
CONTEXT, CACHE_TOKENS = 16, 64


class Attention(nn.Module):
    """Self-attention over a static cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        shape = (BATCH, HEADS, CACHE_TOKENS, HIDDEN // HEADS)
        self.keys = nn.Buffer(torch.zeros(shape))
        self.values = nn.Buffer(torch.zeros(shape))

    def forward(self, hidden: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Attend from one new token per sequence, hidden (batch, 1, hidden), to all tokens so far."""
        query, key, value = self.qkv(hidden).view(BATCH, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        visible = (torch.arange(CACHE_TOKENS, device=hidden.device) <= position)[None, :]
        attended = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=visible)
        output: torch.Tensor = self.out(attended.transpose(1, 2).reshape(BATCH, 1, HIDDEN))
        return output


class FeedForward(nn.Module):
    """A gated feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, 1, hidden) to the same shape."""
        output: torch.Tensor = self.down(F.silu(self.gate(hidden)) * self.up(hidden))
        return output


class Block(nn.Module):
    """A decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.feed_forward_norm = nn.RMSNorm(HIDDEN)
        self.feed_forward = FeedForward()

    def forward(self, hidden: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Add attention and feed-forward to the residual stream."""
        hidden = hidden + self.attention(self.attention_norm(hidden), position)
        output: torch.Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return output


class Decoder(nn.Module):
    """Embedding, layers, head; it counts its own position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.position = nn.Buffer(torch.zeros(1, dtype=torch.long))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, 1, vocabulary) of the next token, for tokens (batch, 1)."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, self.position)
        self.position.add_(1)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


def target() -> sktune.Target:
    """Return what sktune tunes."""
    torch.manual_seed(0)
    model = Decoder().to(torch.bfloat16).eval().requires_grad_(False)
    state = dict(model.named_buffers())

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        for tensor in state.values():
            tensor.zero_()
        tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT + steps), generator=generator)
        with torch.no_grad():
            for index in range(CONTEXT):
                model(tokens[:, index : index + 1])
        return [(tokens[:, CONTEXT + step : CONTEXT + step + 1],) for step in range(steps)]

    return sktune.Target(model, model.forward, prefill, state, "own model: 3 layers, hidden 128, bf16")
