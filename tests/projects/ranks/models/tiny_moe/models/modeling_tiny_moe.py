"""A decoder of a dense and MoE layers, tensor parallel by hand: heads and experts are split over the ranks."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from executor.utils import superkernel_scope

HEADS, HIDDEN, EXPERTS, VOCABULARY, CACHE_TOKENS, LAYERS = 4, 128, 4, 64, 192, 3


def all_reduce(hidden_states):
    if dist.is_initialized():
        dist.all_reduce(hidden_states)
    return hidden_states


class Attention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.heads = HEADS // config["parallel_config"]["attn_tp_size"]
        self.head_dim = HIDDEN // HEADS
        width = self.heads * self.head_dim
        self.qkv_proj = nn.Linear(HIDDEN, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, HIDDEN, bias=False)
        shape = (config["scheduler_config"]["batch_size"], self.heads, CACHE_TOKENS, self.head_dim)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, hidden_states, position, is_prefill=False):
        batch, length, _ = hidden_states.shape
        qkv = self.qkv_proj(hidden_states).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        index = position.view(1, 1, -1, 1).expand(key.shape)
        self.keys.scatter_(2, index, key)
        self.values.scatter_(2, index, value)
        scores = torch.matmul(query, self.keys.transpose(2, 3)) * self.head_dim ** -0.5
        seen = torch.arange(CACHE_TOKENS).view(1, 1, 1, -1) <= position.view(1, 1, -1, 1)
        scores = scores.masked_fill(~seen, -1e4)
        attended = torch.matmul(torch.softmax(scores, dim=-1), self.values)
        return all_reduce(self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1)))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = 2 * HIDDEN // config["parallel_config"]["world_size"]
        self.up_proj = nn.Linear(HIDDEN, width, bias=False)
        self.down_proj = nn.Linear(width, HIDDEN, bias=False)

    def forward(self, hidden_states):
        return all_reduce(self.down_proj(F.silu(self.up_proj(hidden_states))))


class MoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.share = EXPERTS // config["parallel_config"]["world_size"]
        self.first = self.share * int(os.environ.get("RANK_ID", 0))
        self.experts = nn.Parameter(0.1 * torch.randn(self.share, HIDDEN, HIDDEN))

    def forward(self, hidden_states):
        weights = torch.softmax(self.gate(hidden_states), dim=-1)
        weights = weights[..., self.first:self.first + self.share]
        each = torch.einsum("bth,ehk->btek", hidden_states, self.experts)
        return all_reduce((weights.unsqueeze(-1) * each).sum(2))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, hidden_states):
        return self.weight * hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + 1e-6)


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
