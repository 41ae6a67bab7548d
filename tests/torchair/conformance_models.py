"""The models of both conformance suites."""

import json
from pathlib import Path

from sktune.core.space import SpaceSpec
from sktune.targets import TargetSpec, describe
from sktune.targets.presets import load_preset

SMALL = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
CONFIGURATIONS = {
    "qwen2": SMALL | {"model_type": "qwen2"},
    "mixtral": SMALL | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "glm4_moe": SMALL | {
        "model_type": "glm4_moe", "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "head_dim": 16,
    },
    "deepseek_v3": SMALL | {
        "model_type": "deepseek_v3", "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 8,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
        "kv_lora_rank": 16, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    },
}  # fmt: skip
MODELS = ("deepseek-v3", "llama", "qwen3", "qwen3-moe", "qwen2", "mixtral", "glm4_moe")


def spec_of(model: str, folder: Path, backend: str = "npu") -> tuple[TargetSpec, SpaceSpec]:
    """Return the spec of a preset, or of a configuration that is written into ``folder``."""
    if model not in CONFIGURATIONS:
        spec, preset = describe(model, backend=backend, device="cpu")
        assert preset is not None
        return spec, preset.space
    path = folder / model
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIGURATIONS[model]))
    return describe(str(path), backend=backend, device="cpu")[0], load_preset("deepseek-v3").space
