"""A decoder whose metadata is a dictionary, and whose layers are of two alternating kinds."""

from torch import nn


class Linear(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, forward_metadata):
        if forward_metadata["is_prefill"]:
            hidden_states = hidden_states * 1
        return self.proj(hidden_states)


class MetadataLayer(nn.Module):
    def __init__(self, config, layer_idx, infer_config=None):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.self_attn = Linear(config)
        self.mlp = nn.Linear(config.hidden_size, config.hidden_size)

    def forward_attention(self, hidden_states, forward_metadata=None):
        own = forward_metadata if forward_metadata["is_prefill"] else forward_metadata["decode_metadata"]
        return self.self_attn(hidden_states, own)

    def forward(self, hidden_states, forward_metadata=None):
        hidden_states = self.forward_attention(hidden_states, forward_metadata)
        return self.mlp(hidden_states)


class MetadataModel(nn.Module):
    def __init__(self, config, infer_config=None):
        super().__init__()
        self.layers = nn.ModuleList(
            [MetadataLayer(config, index, infer_config) for index in range(config.num_hidden_layers)]
        )

    def forward(self, hidden_states, forward_metadata=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, forward_metadata)
        return hidden_states
