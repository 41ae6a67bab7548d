"""A decoder with a dense and an MoE layer, with heads and experts split over the ranks by hand."""

import os

import torch
import torch.distributed as dist
from torch import nn

from executor.utils import superkernel_scope

HEADS, HIDDEN, INTERMEDIATE, EXPERTS, VOCABULARY, CACHE_TOKENS, LAYERS = 4, 128, 512, 4, 64, 192, 2


def all_reduce(hidden_states):
    if dist.is_initialized():
        dist.all_reduce(hidden_states)
    return hidden_states


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, hidden_states):
        return self.weight * hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.heads = HEADS // config["parallel_config"]["attn_tp_size"]
        self.head_dim = HIDDEN // HEADS
        width = self.heads * self.head_dim
        self.qkv_proj = nn.Linear(HIDDEN, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, HIDDEN, bias=False)
        shape = (2, config["scheduler_config"]["batch_size"], self.heads, CACHE_TOKENS, self.head_dim)
        self.register_buffer("kv_cache", torch.zeros(shape))

    def forward(self, hidden_states, position, is_prefill=False):
        batch, length, _ = hidden_states.shape
        qkv = self.qkv_proj(hidden_states).view(batch, length, 3, self.heads, -1)
        heads = qkv.permute(2, 0, 3, 1, 4)
        query, new = heads[0], heads[1:]
        self.kv_cache.scatter_(3, position.view(1, 1, 1, -1, 1).expand(new.shape), new)
        keys, values = self.kv_cache[0], self.kv_cache[1]
        scores = torch.matmul(query, keys.transpose(2, 3)) * self.head_dim ** -0.5
        seen = torch.arange(CACHE_TOKENS).view(1, 1, 1, -1) <= position.view(1, 1, -1, 1)
        scores = scores.masked_fill(~seen, -1e4)
        attended = torch.matmul(torch.softmax(scores, dim=-1), values)
        return all_reduce(self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1)))


def clamped_swiglu(gate, up):
    """The activation of gpt-oss: 1.702 and 7.0 are its published alpha and limit."""
    gate = gate.clamp(max=7.0)
    return (up.clamp(-7.0, 7.0) + 1.0) * (gate * torch.sigmoid(1.702 * gate))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = INTERMEDIATE // config["parallel_config"]["world_size"]
        self.gate_up_proj = nn.Linear(HIDDEN, 2 * width, bias=False)
        self.down_proj = nn.Linear(width, HIDDEN, bias=False)

    def forward(self, hidden_states):
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return all_reduce(self.down_proj(clamped_swiglu(gate, up)))


class MoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        share = EXPERTS // config["parallel_config"]["world_size"]
        first = share * int(os.environ.get("RANK_ID", 0))
        self.experts = slice(first, first + share)
        width = INTERMEDIATE // EXPERTS
        self.gate_up_proj = nn.Parameter(0.1 * torch.randn(share, HIDDEN, 2 * width))
        self.down_proj = nn.Parameter(0.1 * torch.randn(share, width, HIDDEN))

    def forward(self, hidden_states):
        tokens = hidden_states.flatten(0, 1)
        weights = torch.softmax(self.gate(tokens), dim=-1)[:, self.experts]
        gate, up = torch.matmul(tokens, self.gate_up_proj).chunk(2, dim=-1)
        each = torch.matmul(clamped_swiglu(gate, up), self.down_proj).view(-1, *hidden_states.shape)
        return all_reduce((weights.t().reshape(-1, *hidden_states.shape[:2], 1) * each).sum(0))


class DecoderLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.enable_superkernel = config["model_config"]["custom_params"]["enable_superkernel"]
        self.input_layernorm = Norm()
        self.self_attn = Attention(config, layer_idx)
        self.post_attention_layernorm = Norm()
        self.mlp = MoE(config) if layer_idx > 0 else MLP(config)

    def forward(self, hidden_states, position, is_prefill=False):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states, position, is_prefill=is_prefill)
        hidden_states = residual + hidden_states

        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class TinyMoeModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enable_superkernel = config["model_config"]["custom_params"]["enable_superkernel"]
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([DecoderLayer(config, layer_idx) for layer_idx in range(LAYERS)])
        self.norm = Norm()

    def forward(self, input_ids, position, is_prefill=False):
        hidden_states = self.embed_tokens(input_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states, position, is_prefill=is_prefill)
        return self.norm(hidden_states)


class TinyMoeForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = TinyMoeModel(config)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, input_ids, position, is_prefill=False):
        return self.lm_head(self.model(input_ids, position, is_prefill))

    def decode(self, input_ids, position, is_prefill=False):
        return self.forward(input_ids, position, is_prefill)
