"""Tiny configurations: of any causal language model of transformers, made from its configuration class.

Sizes are cut by the names of fields; whatever a class derives from other fields, it derives anew. Only what the rules
cannot know is in ``SPECIAL``.
"""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 512
MAX_PATTERN = 8
"""Layers of a model whose kinds alternate; a longer pattern is replaced by one layer of each kind."""

SIZES: Mapping[int, tuple[str, ...]] = {
    VOCABULARY: ("vocab_size", "n_words", "vocab_size_per_layer_input"),
    256: ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "context_length"),
    128: (
        "intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "ffn_hidden_size", "d_ff",
        "mamba_d_ssm", "lru_width", "ffn_hidden_dim", "dense_intermediate_size", "intermediate_size_mlp", "dff",
        "attention_hidden_size", "mamba_intermediate_size", "dim_ff",
    ),
    64: (
        "hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "embed_dim", "emb_dim", "d_embed", "embedding_size",
        "dim", "encoder_hidden_size", "text_hidden_size", "out_hidden_size", "backbone_hidden_size",
        "cross_attention_hidden_size", "input_embedding_size", "output_embedding_size",
    ),
    32: (
        "q_lora_rank", "kv_lora_rank", "moe_intermediate_size", "shared_expert_intermediate_size", "index_head_dim",
        "shared_intermediate_size", "expert_ffn_hidden_size", "moe_shared_expert_intermediate_size", "projection_dim",
        "hidden_size_per_layer_input", "mamba_dt_rank", "time_step_rank",
    ),
    28: ("image_size",),
    16: (
        "head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "sliding_window", "sliding_window_size",
        "attention_chunk_size", "mamba_d_state", "mamba_d_head", "mamba_head_dim", "state_size", "ssm_state_size",
        "mamba_chunk_size", "chunk_size", "linear_key_head_dim", "linear_value_head_dim", "index_topk",
        "attention_window_size", "swa_head_dim", "global_head_dim", "d_kv", "window_size", "dim_head",
    ),
    14: ("patch_size",),
    8: ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "rotary_dim"),
    4: (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "encoder_attention_heads",
        "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "linear_num_value_heads",
        "swa_num_attention_heads", "attention_heads",
    ),
    2: (
        "num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers", "depth",
        "num_experts_per_tok", "index_n_heads", "moe_topk", "linear_num_key_heads", "moe_k", "top_k_experts",
        "num_decoder_layers", "num_blocks",
    ),
    1: (
        "n_group", "topk_group", "n_shared_experts", "num_shared_experts", "mamba_n_groups", "n_groups",
        "mamba_ngroups", "moe_num_shared_experts", "first_k_dense_replace", "num_kv_shared_layers",
    ),
}  # fmt: skip
"""Fields that are set to each size, if the class has them and their default is a larger number."""
GROUPED_HEADS = ("num_key_value_heads", "swa_num_key_value_heads", "num_global_key_value_heads", "num_kv_heads")

SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma3n_text": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": None,
    },
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
}  # fmt: skip
"""By model type: fields that the rules do not get right."""

_BY_NAME = {name: size for size, names in SIZES.items() for name in names}


def families() -> list[str]:
    """Return the model types of all causal language models, each once."""
    return sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(CONFIG_MAPPING))


def tiny_config(family: str) -> PreTrainedConfig:
    """Return a configuration of ``family`` with a few thousand parameters, in which each kind of layer is present."""
    config = _tiny(CONFIG_MAPPING[family])
    if hasattr(config, "is_decoder") and not config.is_decoder:
        config.is_decoder = True  # encoders become causal
    return config


def _tiny(kind: type[PreTrainedConfig]) -> PreTrainedConfig:
    default = kind()
    values = dict(_cut_fields(kind))
    for name in kind.sub_configs:
        inner = getattr(default, name, None)
        if isinstance(inner, PreTrainedConfig):
            values[name] = _tiny(type(inner))
    values |= _layers(default, kind, values)
    values |= SPECIAL.get(kind.model_type, {})
    return kind(**values)


def _cut_fields(kind: type[PreTrainedConfig]) -> Iterator[tuple[str, Any]]:
    tokens = 3
    heads = 1
    for name, default in _defaults(kind):
        if not isinstance(default, int) or isinstance(default, bool):
            continue
        if name.endswith(("_token_id", "_token_index")):
            if default >= VOCABULARY:
                tokens += 1
                yield name, tokens
        elif name in GROUPED_HEADS:
            yield name, min(default, 4 if default == heads else 2)
        elif name in _BY_NAME and default > _BY_NAME[name]:
            yield name, _BY_NAME[name]
        if name in ("num_attention_heads", "n_head"):
            heads = default


def _defaults(kind: type[PreTrainedConfig]) -> list[tuple[str, Any]]:
    """Return the fields of a configuration class, each with its declared default."""
    if dataclasses.is_dataclass(kind):
        return [(field.name, field.default) for field in dataclasses.fields(kind)]
    return [(name, each.default) for name, each in inspect.signature(kind.__init__).parameters.items()]


def _layers(default: PreTrainedConfig, kind: type[PreTrainedConfig], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that give a model whose layers are of several kinds one layer of each kind at least."""
    kinds = list(getattr(default, "layer_types", None) or ())
    present = list(dict.fromkeys(kinds))
    count = next((name for name in _BY_NAME if _BY_NAME[name] == 2 and name in values and "layer" in name), None)
    if len(present) < 2 or count is None:
        return {}
    shortest = max(kinds.index(each) for each in present) + 1
    if shortest <= MAX_PATTERN:
        return {count: max(2, shortest)}
    names = {name for name, _ in _defaults(kind)}
    name = next((each for each in ("layer_types", "layers_block_type") if each in names), None)
    return {count: len(present), name: present} if name else {count: MAX_PATTERN}
