"""Any causal language model of transformers: each kind of KV cache and state can be captured once and replayed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, StaticCache

from sktune.backends.inductor.backend import InductorBackend
from sktune.core.errors import TargetError
from sktune.core.space import SpaceSpec
from sktune.targets import describe
from sktune.targets.base import Target, decode_inputs
from sktune.targets.loading import load
from sktune.targets.static_cache import COUNTS
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import RANDOM, Request
from sktune.worker.evaluator import PlanEvaluator
from tests.builders import one_line_error
from tests.releases import as_recorded

SIZES = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16,
         "num_key_value_heads": 1, "intermediate_size": 64, "max_position_embeddings": 128}  # fmt: skip
WINDOW = 16
"""Shorter than the default context, so that the first decode step already moves the window."""
LAYERS = ["sliding_attention", "full_attention"]
STATE_SPACE = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
SMALL_OPT = {"vocab_size": 128, "hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2,
             "num_attention_heads": 2, "ffn_dim": 64, "max_position_embeddings": 128}  # fmt: skip
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "sliding windows": {"model_type": "mistral", **SIZES, "sliding_window": WINDOW},
    "a hybrid cache": {"model_type": "gemma3_text", **SIZES, "sliding_window": WINDOW, "layer_types": LAYERS},
    "attention sinks": {"model_type": "gpt_oss", **SIZES, "sliding_window": WINDOW, "layer_types": LAYERS,
                        "num_local_experts": 4, "num_experts_per_tok": 2},
    "a state space": {"model_type": "falcon_h1", **SIZES, **STATE_SPACE},
    "learned positions": {"model_type": "opt", **SMALL_OPT},
    "a table of positions inside": {"model_type": "trocr", "vocab_size": 128, "d_model": 32, "decoder_layers": 2,
                                    "decoder_attention_heads": 2, "decoder_ffn_dim": 64,
                                    "max_position_embeddings": 128},
    "a table that may grow": {"model_type": "xglm", "vocab_size": 128, "d_model": 32, "num_layers": 2,
                              "attention_heads": 2, "ffn_dim": 64, "max_position_embeddings": 128},
}  # fmt: skip

WITHOUT_STATIC_CACHE = {"falcon_h1", "mpt", "trocr", "xglm"}
"""In transformers 5.0."""


@pytest.fixture(autouse=True)
def small_and_without_gradients() -> Iterator[None]:
    """As in a worker."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def folder_of(configuration: dict[str, Any], folder: Path) -> Path:
    """Write a folder with a ``config.json`` and return it."""
    (folder / "config.json").write_text(json.dumps(configuration))
    return folder


def target_of(configuration: dict[str, Any], folder: Path, **values: Any) -> Target:
    """Return the target of a configuration; skip what is refused because an older transformers cannot run it."""
    try:
        return load(describe(str(folder_of(configuration, folder)), **values)[0])
    except TargetError as failure:
        if COUNTS or configuration["model_type"] not in WITHOUT_STATIC_CACHE:
            raise
        pytest.skip(str(failure))


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_step_is_captured_once_for_all_positions(kind: str, tmp_path: Path) -> None:
    """Its baseline then equals itself from the first slot of the cache to the last, and the uncompiled model."""
    target = target_of(CONFIGURATIONS[kind], tmp_path)
    layout = trace_layout(target, SpaceSpec())
    judge = PlanEvaluator(target, InductorBackend(target, layout, decode_inputs(target, 0, 1)[0]))
    assert judge.model_difference == ""


@pytest.mark.parametrize("kind", ["sliding windows", "a hybrid cache", "a state space"])
@pytest.mark.parametrize("before", [WINDOW - 3, 2 * WINDOW])
def test_a_step_is_that_of_transformers(kind: str, before: int, tmp_path: Path) -> None:
    """To the bit, until and after a window is full."""
    target = target_of(CONFIGURATIONS[kind], tmp_path, dtype="float32")
    inputs = decode_inputs(target, 0, 6, before)
    ours = [target.decode_step(*tokens).clone() for tokens in inputs]
    model = target.module
    assert isinstance(model, PreTrainedModel)
    cache = StaticCache(config=model.config, max_cache_len=target.capacity or 0)
    generator = torch.Generator().manual_seed(0)
    context = torch.randint(0, SIZES["vocab_size"], (1, before), generator=generator)
    model(input_ids=context, past_key_values=cache, use_cache=True)
    theirs = [model(input_ids=tokens, past_key_values=cache, use_cache=True).logits for (tokens,) in inputs]
    assert all(map(torch.equal, ours, theirs))


def test_a_new_sequence_starts_without_the_old_state(tmp_path: Path) -> None:
    """The state of a state space is part of the target's state, and the same seed gives the same step."""
    target = target_of(CONFIGURATIONS["a state space"], tmp_path)
    assert {"cache.0.conv_states[0]", "cache.0.recurrent_states[0]", "cache.0.keys"} <= target.state.keys()
    (tokens,) = decode_inputs(target, 0, 1)[0]
    first = target.decode_step(tokens).clone()
    decode_inputs(target, 1, 1)
    target.decode_step(tokens)
    (tokens,) = decode_inputs(target, 0, 1)[0]
    assert torch.equal(target.decode_step(tokens), first)


def test_learned_positions_are_those_of_the_context(tmp_path: Path) -> None:
    """The decoded token has the position after the context, as without a cache."""
    target = target_of(CONFIGURATIONS["learned positions"], tmp_path, dtype="float32")
    (tokens,) = decode_inputs(target, 0, 1)[0]
    decoded = target.decode_step(tokens)[:, -1]
    context = torch.randint(0, 128, (1, 32), generator=torch.Generator().manual_seed(0))
    whole = target.module(input_ids=torch.cat((context, tokens), 1), use_cache=False).logits[:, -1]
    torch.testing.assert_close(decoded, whole)


def test_attention_is_the_fastest_that_the_model_has(tmp_path: Path) -> None:
    """Scaled dot products, except where the model has only its own attention."""
    for kind, expected in ("sliding windows", "sdpa"), ("attention sinks", "eager"):
        module = target_of(CONFIGURATIONS[kind], tmp_path).module
        assert isinstance(module, PreTrainedModel)
        assert module.config._attn_implementation == expected


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"model_type": "vit"}, "transformers has no causal language model 'vit'"),
        ({"model_type": "lama"}, "config.json is not a configuration that transformers knows"),
        ({"model_type": "llama", "hidden_size": "wide"}, "config.json is not a configuration that transformers knows"),
        ({"model_type": "llama", **SIZES, "hidden_act": "none"}, "cannot build llama .* KeyError: .none.; fix"),
        ({"model_type": "rwkv", "vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2},
         "RwkvForCausalLM takes no KV cache, so it has no decode step"),
        ({"model_type": "deepseek_v4", **SIZES},
         "transformers has no static KV cache for deepseek_v4" if COUNTS else "is not a configuration"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_model_that_cannot_be_tuned_is_refused_with_the_reason(
    configuration: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """In one line."""
    with one_line_error(TargetError, message):
        target_of(configuration, tmp_path, dtype="float32")  # older releases cannot build each of them in 16 bits


def test_shapes_alone_are_refused_where_transformers_cannot_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases before 5.4 ask for the autocast of a device that has none."""
    monkeypatch.setattr("sktune.targets.causal_lm.COUNTS", False)
    spec, _ = Request("deepseek-v3", scale="full", backend="sim").target()
    with one_line_error(TargetError, r"need transformers 5\.4 or later.*pip install"):
        load(spec)


def test_a_step_that_depends_on_values_is_refused_with_its_place(tmp_path: Path) -> None:
    """The reason is the one in the model's code."""
    sizes = {"vocab_size": 128, "hidden_size": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 128}
    target = target_of({"model_type": "mpt", **sizes}, tmp_path)
    layout = trace_layout(target, SpaceSpec())
    with one_line_error(TargetError, r"cannot be captured as one graph: .*; remove data-dependent") as failure:
        InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])
    assert failure.value.exit_code == 2


LLAMA = {"model_type": "llama", **SIZES}
QUANTISED: dict[str, dict[str, Any]] = {
    "fp8": {"activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "gptq": {"bits": 4, "group_size": 128, "desc_act": False},
    "awq": {"bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "compressed-tensors": {"config_groups": {}, "format": "pack-quantized"},
    "mxfp4": {"modules_to_not_convert": ["lm_head"]},
    "gguf": {},
    "of-the-future": {},
}


@pytest.mark.parametrize("method", QUANTISED)
def test_a_quantisation_that_is_not_used_is_said(method: str, tmp_path: Path) -> None:
    """Random weights are not; a checkpoint that cannot be loaded here is replaced by them, with the reason."""
    configuration = {**LLAMA, "quantization_config": {"quant_method": method, **QUANTISED[method]}}
    target = target_of(configuration, tmp_path)
    assert "bf16, random weights" in target.description
    assert f"the quantization_config ({method}) is not used: random weights are not quantised" in target.description
    (tmp_path / "model.safetensors").write_bytes(b"")
    target = target_of(configuration, tmp_path, weights=tmp_path)
    assert "bf16, random weights" in target.description
    assert f"the quantization_config ({method}) is not used: " in target.description
    assert "\n" not in target.description


def test_a_folder_with_weights_is_searched_with_them(tmp_path: Path) -> None:
    """Unless random ones are asked for, or it is only simulated; without them they are random."""
    folder = folder_of(LLAMA, tmp_path)
    assert Request(str(folder)).target()[0].weights is None
    model = load(describe(str(folder))[0]).module
    assert isinstance(model, PreTrainedModel)
    model.save_pretrained(folder)
    spec = Request(str(folder)).target()[0]
    assert spec.weights == str(folder)
    target = load(spec)
    assert f"weights of {folder.name}" in target.description
    saved = model.state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in target.module.state_dict().items())
    assert Request(str(folder), weights=RANDOM).target()[0].weights is None
    assert Request(str(folder), backend="sim").target()[0].weights is None
    assert "random weights" in load(Request(str(folder), weights=RANDOM, seed=1).target()[0]).description


@as_recorded
def test_a_rejected_value_keeps_its_reason(tmp_path: Path) -> None:
    """transformers' validation names the field in one line, and what is wrong with it in the next."""
    with pytest.raises(TargetError, match=r"'attention_bias': TypeError: .* expected bool, got NoneType"):
        target_of({**LLAMA, "attention_bias": None}, tmp_path)
