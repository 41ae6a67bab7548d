"""Targets for the causal language models of Hugging Face transformers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, StaticCache
from transformers.cache_utils import StaticLayer

from sktune.core.errors import SktuneError, TargetError, described, first_line, nearest
from sktune.measure.devices import require
from sktune.targets import folder_code
from sktune.targets.base import Inputs, Target
from sktune.targets.presets import FULL
from sktune.targets.spec import ConfigSpec, PresetSpec, TargetSpec

CACHE_GRANULE = 64
"""KV cache lengths are multiples of this number of tokens, so that attention kernels get round shapes."""
DEFAULT_BATCH = 1
DEFAULT_CONTEXT = 32
META = "meta"
"""The device without memory: a model of any size is built in seconds, and a step yields only shapes."""
LONGEST_REPLAY = 16
"""Decode steps that fit into the cache after the context."""


class ScatterLayer(StaticLayer):
    """A static KV cache layer that writes with ``scatter_``, as TorchAir does not convert ``index_copy_``."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002 - transformers' signature
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of shape (batch, heads, new tokens, size), and return the whole cache."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        count = key_states.shape[-2]
        positions = (torch.arange(count, device=self.device) + self.cumulative_length).view(1, 1, count, 1)
        self.cumulative_length.add_(count)
        self.keys.scatter_(2, positions.expand_as(key_states), key_states)
        self.values.scatter_(2, positions.expand_as(value_states), value_states)
        return self.keys, self.values


def from_preset(spec: PresetSpec, *, takes_torchair: bool) -> Target:
    """Build a preset's model at the spec's scale, with random weights unless the spec names a checkpoint."""
    scale, model = spec.scale, spec.preset.model
    values = model.configuration(scale)
    config = _read_config(spec.weights) if spec.weights else AutoConfig.for_model(model.model_type, **values)
    layers = _cut(config, spec).num_hidden_layers
    depth = (
        f"{layers} of {model.published['num_hidden_layers']} layers"
        if scale != FULL or spec.layers
        else f"{layers} layers"
    )
    batch = spec.batch or model.batch.get(scale, DEFAULT_BATCH)
    context = spec.context or model.context.get(scale, DEFAULT_CONTEXT)
    name = f"{spec.source}, {scale}: {depth}"
    return _build(spec, config, model.experts, name, batch, context, takes_torchair=takes_torchair)


def from_folder(spec: ConfigSpec, *, takes_torchair: bool) -> Target:
    """Build the causal language model whose ``config.json`` is in the spec's folder."""
    if spec.trust:
        return _with_own_code(spec, lambda: _from_folder(spec, takes_torchair=takes_torchair))
    folder_code.refuse_untrusted(spec.folder)
    return _from_folder(spec, takes_torchair=takes_torchair)


def _from_folder(spec: ConfigSpec, *, takes_torchair: bool) -> Target:
    config = _cut(_own_config(spec.folder) if spec.trust else _read_config(str(spec.folder)), spec)
    name = f"{spec.name}: {config.num_hidden_layers} layers"
    batch, context = spec.batch or DEFAULT_BATCH, spec.context or DEFAULT_CONTEXT
    return _build(spec, config, "batched_mm", name, batch, context, takes_torchair=takes_torchair)


def _with_own_code(spec: ConfigSpec, build: Callable[[], Target]) -> Target:
    folder_code.forget_code()
    try:
        return build()
    except SktuneError:
        raise
    except Exception as failure:
        raise TargetError(f"the code in {spec.folder} fails: {described(failure)}; fix it") from failure


def _own_config(folder: Path) -> PreTrainedConfig:
    kind = folder_code.own_class(folder, folder_code.CONFIG)
    if kind is None:  # its model has a configuration that transformers knows
        return _read_config(str(folder))
    config: PreTrainedConfig = kind.from_pretrained(str(folder), local_files_only=True)
    return config


def _cut(config: PreTrainedConfig, spec: TargetSpec) -> PreTrainedConfig:
    """Cut ``config`` to the first ``spec.layers`` layers of each kind, and return it.

    Raises:
        TargetError: the configuration mixes layer kinds in a pattern that cannot be cut.
    """
    if spec.layers is None:
        return config
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        raise TargetError("--proxy-layers: dense and MoE layers of this model alternate; leave it out")
    if len(set(getattr(config, "layer_types", None) or ())) > 1:
        raise TargetError("--proxy-layers: this model has several kinds of attention; leave it out")
    dense = min(getattr(config, "first_k_dense_replace", None) or 0, config.num_hidden_layers)
    dense_left = min(spec.layers, dense)
    if dense:
        config.first_k_dense_replace = dense_left
    config.num_hidden_layers = dense_left + min(spec.layers, config.num_hidden_layers - dense)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    return config


def _read_config(folder: str) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as failure:
        raise TargetError(
            f"{Path(folder) / 'config.json'} is not a configuration that transformers knows: {first_line(failure)}"
        ) from failure
    return config


def _build(
    spec: TargetSpec,
    config: PreTrainedConfig,
    experts: str,
    name: str,
    batch: int,
    context: int,
    *,
    takes_torchair: bool,
) -> Target:
    require(spec.device)
    dtype = getattr(torch, spec.dtype)
    if spec.device == META and hasattr(config, "num_experts_per_tok"):
        if dtype != torch.bfloat16:
            raise TargetError(
                f"shapes of routed experts are known for bfloat16 only, got {spec.dtype}; leave out --dtype"
            )
        # Without values no experts can be chosen: one grouped matmul over all experts takes their place.
        experts = "grouped_mm"
    # TorchAir converts neither scaled_dot_product_attention of every device nor index_copy.
    config._attn_implementation = "eager" if takes_torchair else "sdpa"  # noqa: SLF001 - transformers' documented switch
    config._experts_implementation = experts  # noqa: SLF001
    torch.manual_seed(spec.seed)
    model = _model(spec, config, dtype).to(spec.device).eval().requires_grad_(False)
    length = -(-(context + LONGEST_REPLAY) // CACHE_GRANULE) * CACHE_GRANULE
    cache = StaticCache(config=config, max_cache_len=length)
    if takes_torchair:
        cache.layers = [ScatterLayer(length) for _ in cache.layers]
    vocabulary = config.vocab_size

    def tokens(generator: torch.Generator, count: int) -> torch.Tensor:
        return torch.randint(0, vocabulary, (batch, count), generator=generator).to(spec.device)

    def decode_step(input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=input_ids, past_key_values=cache, use_cache=True).logits
        return logits

    def prefill(seed: int, steps: int, tokens_before: int | None = None) -> list[Inputs]:
        before = context if tokens_before is None else tokens_before
        if steps > length - before:
            raise TargetError(f"{steps} decode steps do not fit into a KV cache of {length} tokens; replay fewer steps")
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + seed)
        for tensor in _tensors(cache).values():
            tensor.zero_()
        if spec.device == META:  # shapes do not depend on the context: one token is enough to allocate the cache
            decode_step(tokens(generator, 1))
        else:
            with torch.no_grad(), _experts_one_by_one(config):
                if before:
                    decode_step(tokens(generator, before))
        return [(tokens(generator, 1),) for _ in range(steps)]

    prefill(0, 1)  # allocates the cache
    weights = f"weights of {Path(spec.weights).name}" if spec.weights and spec.layers is None else "random weights"
    origin = "shapes only, no weights" if spec.device == META else f"{weights}, seed {spec.seed}"
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[spec.dtype]
    description = f"{name}, hidden {config.hidden_size}, {short}, {origin}, batch {batch}, context {context}"
    return Target(model, decode_step, prefill, _tensors(cache), description, capacity=length)


@contextmanager
def _experts_one_by_one(config: PreTrainedConfig) -> Iterator[None]:
    """Run routed experts one by one, as ``batched_mm`` copies an expert's weights for every token of the context."""
    implementation = config._experts_implementation  # noqa: SLF001
    config._experts_implementation = "eager"  # noqa: SLF001
    try:
        yield
    finally:
        config._experts_implementation = implementation  # noqa: SLF001


def _model(spec: TargetSpec, config: PreTrainedConfig, dtype: torch.dtype) -> nn.Module:
    model: nn.Module
    weights = (
        spec.weights if spec.layers is None else None
    )  # in a cut model, layers have other numbers than in the checkpoint
    if weights and spec.device == META:
        raise TargetError(f"--weights {spec.weights}: a model of shapes only has no weights; leave out --weights")
    own = folder_code.own_class(spec.folder, folder_code.MODEL) if isinstance(spec, ConfigSpec) and spec.trust else None
    if weights:
        try:
            # Safetensors only: loading a pickled checkpoint can run code.
            model = (own or AutoModelForCausalLM).from_pretrained(
                weights, config=config, dtype=dtype, local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError, RuntimeError) as failure:
            raise TargetError(f"--weights {spec.weights} cannot be loaded: {first_line(failure)}") from failure
        return model
    try:
        with torch.device(spec.device):
            if own is not None:
                model = own._from_config(config, dtype=dtype)  # noqa: SLF001 - as AutoModelForCausalLM calls it
                return model
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except ValueError as failure:
        known = nearest(config.model_type, ("llama", "qwen3", "qwen3_moe", "deepseek_v3", "mixtral"))
        raise TargetError(f"transformers has no causal language model {config.model_type!r}{known}") from failure
    return model


def _tensors(cache: StaticCache) -> Mapping[str, torch.Tensor]:
    """Return every tensor of the cache by name: keys, values, and each layer's count of positions."""
    tensors: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(cache.layers):
        attributes: dict[str, Any] = vars(layer)
        for key, value in attributes.items():
            if isinstance(value, torch.Tensor):
                tensors[f"cache.{index}.{key}"] = value
    return tensors
