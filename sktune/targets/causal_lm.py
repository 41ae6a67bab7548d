"""Targets for the causal language models of Hugging Face transformers."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sktune.core.errors import SktuneError, TargetError, described, first_line, nearest
from sktune.core.printable import printable
from sktune.measure.devices import ran_out_of_memory, require
from sktune.targets import folder_code
from sktune.targets.base import Inputs, Target
from sktune.targets.configuration import check_memory
from sktune.targets.decode_call import decode_call
from sktune.targets.presets import FULL
from sktune.targets.spec import ConfigSpec, PresetSpec, TargetSpec
from sktune.targets.static_cache import COUNTS, begin_sequence, cache_tensors, static_cache

logger = logging.getLogger(__name__)

CACHE_GRANULE = 64
"""KV cache lengths are multiples of this number of tokens, so that attention kernels get round shapes."""
DEFAULT_BATCH = 1
DEFAULT_CONTEXT = 32
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
META = "meta"
"""The device without memory: a model of any size is built in seconds, and a step yields only shapes."""
LONGEST_REPLAY = 16
"""Decode steps that fit into the cache after the context."""


def from_preset(spec: PresetSpec, *, takes_torchair: bool = False) -> Target:
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
        folder_code.forget_code()
    else:
        folder_code.refuse_untrusted(spec.folder)
    try:
        # None, too, if the folder's model has a configuration that transformers knows.
        kind = folder_code.own_class(spec.folder, folder_code.CONFIG) if spec.trust else None
        folder = str(spec.folder)
        config = kind.from_pretrained(folder, local_files_only=True) if kind else _read_config(folder)
        layers = _cut(config.get_text_config(decoder=True), spec).num_hidden_layers
        batch, context = spec.batch or DEFAULT_BATCH, spec.context or DEFAULT_CONTEXT
        name = f"{spec.name}: {layers} layers"
        return _build(spec, config, "batched_mm", name, batch, context, takes_torchair=takes_torchair)
    except SktuneError:
        raise
    except Exception as failure:
        if not spec.trust or ran_out_of_memory(failure):
            raise
        raise TargetError(f"the code in {spec.folder} fails: {described(failure)}; fix it") from failure


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
    except Exception as failure:  # each configuration class checks its values in its own way
        raise TargetError(
            f"{Path(folder) / 'config.json'} is not a configuration that transformers knows: {first_line(failure)}"
        ) from failure
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        known = nearest(config.model_type, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        raise TargetError(f"transformers has no causal language model {config.model_type!r}{known}")
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
    """Build the model as transformers does; a quantised one that it cannot load and run here, without quantisation."""
    build = partial(_built, experts=experts, name=name, batch=batch, context=context, takes_torchair=takes_torchair)
    quantised = getattr(config, "quantization_config", None) or getattr(config, "compression_config", None)
    if quantised is None:
        return build(spec, config)
    values = quantised if isinstance(quantised, dict) else quantised.to_dict()
    method = printable(str(values.get("quant_method") or "unnamed"))
    reason = "random weights are not quantised"
    if spec.weights and spec.layers is None and spec.device != META:
        try:
            return build(spec, deepcopy(config), method=method)
        except Exception as failure:  # each method of quantisation needs other packages and devices
            if ran_out_of_memory(failure):
                raise
            reason = first_line(failure)
    plain = deepcopy(config)
    for key in ("quantization_config", "compression_config"):
        plain.__dict__.pop(key, None)
    target = build(replace(spec, weights=None), plain)
    description = f"{target.description}; the quantization_config ({method}) is not used: {reason}"
    return replace(target, description=description)


def _built(
    spec: TargetSpec,
    config: PreTrainedConfig,
    *,
    experts: str,
    name: str,
    batch: int,
    context: int,
    takes_torchair: bool,
    method: str = "",
) -> Target:
    require(spec.device)
    dtype = TYPES[spec.dtype]
    if spec.device == META and not COUNTS:
        raise TargetError(
            "shapes alone (device meta) need transformers 5.4 or later, this environment has "
            f"{transformers.__version__}; pip install 'transformers>=5.4', or leave out --scale and --device"
        )
    if spec.device == META and hasattr(config, "num_experts_per_tok"):
        if dtype != torch.bfloat16:
            raise TargetError(
                f"shapes of routed experts are known for bfloat16 only, got {spec.dtype}; leave out --dtype"
            )
        # Without values no experts can be chosen: one grouped matmul over all experts takes their place.
        experts = "grouped_mm"
    # TorchAir converts scaled_dot_product_attention of some devices only. None: as transformers chooses, for some
    # models have no sdpa, such as those with attention sinks.
    config._attn_implementation = "eager" if takes_torchair else None  # noqa: SLF001 - transformers' documented switch
    config._experts_implementation = experts  # noqa: SLF001
    _check_memory(spec, config, dtype)
    torch.manual_seed(spec.seed)
    model = _model(spec, config, dtype).to(spec.device).eval().requires_grad_(False)
    text, built = config.get_text_config(decoder=True), model.config  # a copy of the given one if it has weights
    assert isinstance(built, PreTrainedConfig)
    length = -(-(context + LONGEST_REPLAY) // CACHE_GRANULE) * CACHE_GRANULE
    cache = static_cache(built, length, takes_torchair=takes_torchair)
    decode_step, has_run = decode_call(model, cache, batch, length, spec.device)

    def tokens(generator: torch.Generator, count: int) -> torch.Tensor:
        return torch.randint(0, text.vocab_size, (batch, count), generator=generator).to(spec.device)

    def prefill(seed: int, steps: int, tokens_before: int | None = None) -> list[Inputs]:
        before = context if tokens_before is None else tokens_before
        if steps > length - before:
            raise TargetError(f"{steps} decode steps do not fit into a KV cache of {length} tokens; replay fewer steps")
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + seed)
        begin_sequence(cache, with_context=before > 0)
        if before and spec.device != META:  # shapes do not depend on the context
            with torch.no_grad(), _experts_one_by_one(built):
                decode_step(tokens(generator, before))
        return [(tokens(generator, 1),) for _ in range(steps)]

    try:  # run once, which allocates the cache
        if spec.device != META:
            prefill(0, 1)
        elif not has_run:
            with torch.no_grad():
                decode_step(torch.ones(batch, 1, dtype=torch.long, device=META))
    except Exception as failure:
        if ran_out_of_memory(failure):
            raise
        raise TargetError(
            f"transformers cannot run {config.model_type} with a static KV cache: {described(failure)}; "
            "choose another model, or fix its configuration"
        ) from failure
    weights = f"weights of {Path(spec.weights).name}" if spec.weights and spec.layers is None else "random weights"
    if method:
        held = {tensor.dtype for tensor in chain(model.parameters(), model.buffers())}
        packed = any((each.itemsize == 1 and each != torch.bool) or each == torch.int32 for each in held)
        weights += f" ({method})" if packed else f" ({method}, read as {SHORT[spec.dtype]})"
    origin = "shapes only, no weights" if spec.device == META else f"{weights}, seed {spec.seed}"
    description = f"{name}, hidden {text.hidden_size}, {SHORT[spec.dtype]}, {origin}, batch {batch}, context {context}"
    return Target(model, decode_step, prefill, cache_tensors(cache), description, capacity=length)


@contextmanager
def _experts_one_by_one(config: PreTrainedConfig) -> Iterator[None]:
    """Run routed experts one by one, as ``batched_mm`` copies an expert's weights for every token of the context."""
    implementation = config._experts_implementation  # noqa: SLF001
    config._experts_implementation = "eager"  # noqa: SLF001
    try:
        yield
    finally:
        config._experts_implementation = implementation  # noqa: SLF001


def _check_memory(spec: TargetSpec, config: PreTrainedConfig, dtype: torch.dtype) -> None:
    if not isinstance(spec, ConfigSpec) or spec.device != "cpu" or getattr(config, "quantization_config", None):
        return
    try:
        model = _model(replace(spec, device=META, weights=None), deepcopy(config), dtype)
    except Exception:  # a model that cannot be built without values, or not at all: building it says why
        logger.info("the model's size is not known", exc_info=True)
        return
    check_memory(model, spec.folder / "config.json")


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
            raise TargetError(
                f"--weights {spec.weights} cannot be loaded: {first_line(failure)}; --weights random takes others"
            ) from failure
        return model
    if own is not None:
        with torch.device(spec.device):
            model = own._from_config(config, dtype=dtype)  # noqa: SLF001 - as AutoModelForCausalLM calls it
        return model
    try:
        with torch.device(spec.device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception as failure:  # each model checks its configuration in its own way
        if ran_out_of_memory(failure):
            raise
        raise TargetError(
            f"transformers cannot build {config.model_type} from this configuration: {described(failure)}; "
            "fix its config.json"
        ) from failure
    return model
