"""A decoder of one dense and several MoE layers, which are like those in the skill's attention-only template."""

import torch
import torch.nn.functional as F
from torch import nn

from executor.utils import superkernel_scope

HEADS, HIDDEN, EXPERTS, VOCABULARY, CACHE_TOKENS = 2, 32, 4, 64, 16


class Attention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.qkv_proj = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        shape = (config.batch_size, HEADS, CACHE_TOKENS, HIDDEN // HEADS)
        self.keys = nn.Buffer(torch.zeros(shape))
        self.values = nn.Buffer(torch.zeros(shape))

    def forward(self, hidden_states, position, is_prefill=False):
        batch = hidden_states.shape[0]
        query, key, value = self.qkv_proj(hidden_states).view(batch, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        index = position.view(1, 1, 1, 1).expand(key.shape)
        self.keys.scatter_(2, index, key)
        self.values.scatter_(2, index, value)
        scores = torch.matmul(query, self.keys.transpose(2, 3))
        attended = torch.matmul(torch.softmax(scores, dim=-1), self.values)
        return self.o_proj(attended.transpose(1, 2).reshape(batch, 1, HIDDEN))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down_proj = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, hidden_states):
        return self.down_proj(F.silu(self.up_proj(hidden_states)))


class MoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.Parameter(0.1 * torch.randn(EXPERTS, HIDDEN, HIDDEN))

    def forward(self, hidden_states):
        weights = torch.softmax(self.gate(hidden_states), dim=-1)
        each = torch.matmul(hidden_states.unsqueeze(1), self.experts)
        return (weights.transpose(1, 2).unsqueeze(-1) * each).sum(1)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, hidden_states):
        return self.weight * hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + 1e-6)


class DecoderLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.enable_superkernel = config.enable_superkernel
        self.input_layernorm = Norm()
        self.self_attn = Attention(config, layer_idx)
        self.post_attention_layernorm = Norm()
        self.mlp = MoE(config) if layer_idx > 0 else MLP(config)

    def forward(
        self,
        hidden_states,
        position,
        is_prefill=False,
        **kwargs
    ):
        residual = hidden_states

        # Self-Attention
        hidden_states = self.input_layernorm(hidden_states)
        attn_output = self.self_attn(
            hidden_states,
            position=position,  # one for the batch
            is_prefill=is_prefill
        )

        # Add & Norm
        hidden_states = residual + attn_output
        hidden_states = self.post_attention_layernorm(hidden_states)

        # MLP
        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states

        return hidden_states


class TinyModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enable_superkernel = config.enable_superkernel
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(
            [DecoderLayer(config, layer_idx) for layer_idx in range(config.num_hidden_layers)]
        )
        self.norm = Norm()

    def forward(self, input_ids, position, is_prefill=False):
        hidden_states = self.embed_tokens(input_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states, position, is_prefill=is_prefill)
        hidden_states = self.norm(hidden_states)
        return hidden_states


class TinyForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enable_superkernel = config.enable_superkernel
        self.model = TinyModel(config)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.position = nn.Buffer(torch.zeros(1, dtype=torch.long))

    def forward(self, input_ids, is_prefill=False):
        # The last token of each sequence.
        hidden_states = self.model(input_ids, self.position, is_prefill)
        logits = self.lm_head(hidden_states)
        self.position.add_(1)
        return logits
