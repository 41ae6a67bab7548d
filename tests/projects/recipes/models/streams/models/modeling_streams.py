"""A decoder with two attentions in each layer, whose experts run beside them on a stream and cores of their own."""

import torch
from torch import nn

from executor.utils import limit_core_num, npu_stream_switch, superkernel_scope


class Norm(nn.Module):
    def forward(self, hidden_states, residual=None):
        residual = hidden_states if residual is None else residual + hidden_states
        return torch.tanh(residual), residual


class Attention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def absorb(self, hidden_states):
        return self.o_proj(hidden_states)

    def forward(self, hidden_states, is_prefill=False):
        return self.absorb(hidden_states)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, is_prefill=False):
        return self.proj(hidden_states)


class StreamsLayer(nn.Module):
    def __init__(self, config, infer_config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        custom_params = infer_config.model_config.custom_params
        self.enable_multi_streams = custom_params.get("enable_multi_streams", 0)
        self.enable_superkernel = custom_params.get("enable_superkernel", False)
        self.enable_prefetch = custom_params.get("enable_prefetch", False)
        self.mlp = MLP(config)
        self_attn = []
        mlps = []
        norms = []
        for i in range(2):
            self_attn.append(Attention(config, layer_idx=layer_idx * 2 + i))
            mlps.append(MLP(config))
            norms.append(Norm())
        self.self_attn = nn.ModuleList(self_attn)
        self.mlps = nn.ModuleList(mlps)
        self.input_layernorm = nn.ModuleList(norms)

    def forward(self, hidden_states, past_residual=None, is_prefill=False):
        if (self.enable_multi_streams > 0) and not is_prefill:
            return self.multi_stream_forward(hidden_states, past_residual, is_prefill=is_prefill)
        residual = past_residual
        for i in range(2):
            hidden_states, residual = self.input_layernorm[i](hidden_states, residual)
            hidden_states = self.self_attn[i](hidden_states, is_prefill=is_prefill)
            if i == 0:
                shortcut = self.mlp(hidden_states, is_prefill)
            hidden_states = self.mlps[i](hidden_states, is_prefill=is_prefill)
            if i == 1:
                hidden_states = hidden_states + shortcut
        return residual, hidden_states

    def multi_stream_forward(self, hidden_states, past_residual=None, is_prefill=False):
        residual = past_residual
        with superkernel_scope(self.enable_superkernel, f"scope_{self.layer_idx}_part1", ""):
            hidden_states, residual = self.input_layernorm[0](hidden_states, residual)
            hidden_states = self.self_attn[0].absorb(hidden_states)
        with npu_stream_switch(True, "1"):
            with limit_core_num(True, "8", "16"):
                with superkernel_scope(self.enable_superkernel, f"scope_{self.layer_idx}_part2_moe", ""):
                    shortcut = self.mlp(hidden_states, is_prefill)
        with limit_core_num(True, "16", "32"):
            with superkernel_scope(self.enable_superkernel, f"scope_{self.layer_idx}_part2_main", ""):
                if self.enable_prefetch:
                    hidden_states = self.mlps[0].forward(hidden_states, is_prefill=is_prefill)
                else:
                    hidden_states = self.mlps[0](hidden_states, is_prefill=is_prefill)
                hidden_states, residual = self.input_layernorm[1](hidden_states, residual)
                hidden_states = self.self_attn[1].absorb(hidden_states)
                hidden_states = self.mlps[1](hidden_states, is_prefill=is_prefill)
        return residual, hidden_states + shortcut


class StreamsModel(nn.Module):
    def __init__(self, config, infer_config):
        super().__init__()
        self.layers = nn.ModuleList(
            [StreamsLayer(config, infer_config, layer_idx) for layer_idx in range(config.num_hidden_layers)]
        )

    def forward(self, hidden_states, is_prefill=False):
        residual = None
        for decoder_layer in self.layers[: len(self.layers)]:
            residual, hidden_states = decoder_layer(hidden_states, residual, is_prefill=is_prefill)
        return hidden_states
