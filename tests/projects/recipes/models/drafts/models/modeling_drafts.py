"""A decoder with draft layers of the same class, a scope written by hand, and metadata instead of a parameter."""

import torch
from torch import nn

from executor.utils import superkernel_scope

from .configuration_drafts import DraftsConfig


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden_states, residual=None):
        residual = hidden_states if residual is None else residual + hidden_states
        return self.weight * torch.tanh(residual), residual


class Attention(nn.Module):
    def __init__(self, config, infer_config, layer_idx, prefix=""):
        super().__init__()
        self.layer_idx = layer_idx
        if layer_idx == config.num_hidden_layers:
            self.layer_idx = 0  # the draft has a cache of one layer
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, forward_metadata=None):
        is_prefill = forward_metadata.is_prefill if forward_metadata else False
        query = self.q_proj(hidden_states)
        if is_prefill:
            query = query * 1
        return self.o_proj(query)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states):
        return self.up_proj(hidden_states)


class MoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states):
        return torch.relu(self.gate(hidden_states))


class DecoderLayer(nn.Module):
    def __init__(self, config: DraftsConfig, infer_config, layer_idx: int, prefix: str = ""):
        super().__init__()
        self.self_attn = Attention(config, infer_config, layer_idx=layer_idx, prefix=f"{prefix}.self_attn")
        self.is_moe = config.n_routed_experts is not None and layer_idx >= config.first_k_dense_replace
        self.mlp = MoE(config) if self.is_moe else MLP(config)
        self.input_layernorm = Norm(config.hidden_size)
        self.post_attention_layernorm = Norm(config.hidden_size)

    def forward(self, hidden_states, past_residual=None, forward_metadata=None):
        hidden_states, residual = self.input_layernorm(hidden_states, past_residual)
        hidden_states = self.self_attn(hidden_states, forward_metadata=forward_metadata)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        if self.is_moe:
            hidden_states = self.mlp(hidden_states)
        else:
            hidden_states = self.mlp(hidden_states)
        return residual, hidden_states


class DraftsModel(nn.Module):
    def __init__(self, config, infer_config):
        super().__init__()
        self.infer_config = infer_config
        self.init_modules(config)

    def init_modules(self, config):
        self.enable_superkernel = self.infer_config.model_config.custom_params.get("enable_superkernel", False)
        self.enable_multi_streams = self.infer_config.model_config.custom_params.get("enable_multi_streams", False)
        self.layers = nn.ModuleList(
            [
                DecoderLayer(config, self.infer_config, layer_idx, prefix=f"model.layers.{layer_idx}")
                for layer_idx in range(config.num_hidden_layers)
            ]
        )
        self.norm = Norm(config.hidden_size)

    def forward(self, hidden_states, forward_metadata=None):
        residual = None

        label = f"decode_layer"
        if self.enable_multi_streams:
            option = "stream-fusion=1"
        else:
            option = "option_xxx2"
        with superkernel_scope(self.enable_superkernel and not forward_metadata.is_prefill, label, option):
            for decoder_layer in self.layers:
                residual, hidden_states = decoder_layer(hidden_states, residual, forward_metadata)
        return self.norm(hidden_states, residual)[0]


class DraftsModelMTPLayer(DraftsModel):
    def __init__(self, config, infer_config):
        super().__init__(config, infer_config)

    def init_modules(self, config):
        self.mtp_start_layer_idx = config.num_hidden_layers
        self.layers = nn.ModuleDict(
            {
                str(self.mtp_start_layer_idx + i): DecoderLayer(config, self.infer_config, self.mtp_start_layer_idx + i)
                for i in range(config.num_nextn_predict_layers)
            }
        )

    def forward(self, hidden_states, forward_metadata=None):
        layer = self.layers[str(self.mtp_start_layer_idx)]
        return layer(hidden_states, None, forward_metadata)[1]


class DraftsForCausalLM(nn.Module):
    def __init__(self, config, infer_config):
        super().__init__()
        self.model = DraftsModel(config, infer_config)

    def forward(self, hidden_states, forward_metadata=None):
        return self.model(hidden_states, forward_metadata)


class DraftsModelMTP(DraftsForCausalLM):
    def __init__(self, config, infer_config):
        super().__init__(config, infer_config)
        self.model = DraftsModelMTPLayer(config, infer_config)
