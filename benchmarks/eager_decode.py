"""Whether a family's decode step works: in transformers itself, and as sktune opens it."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, StaticCache
from transformers.utils import logging as transformers_logging

from benchmarks.tiny_configs import tiny_config
from sktune.backends.inductor.backend import InductorBackend
from sktune.core.errors import SktuneError, described
from sktune.core.space import SpaceSpec
from sktune.targets import describe
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.static_cache import cache_tensors
from sktune.targets.tracing import trace_layout
from sktune.worker.evaluator import PlanEvaluator

CONTEXT, STEPS, LENGTH = 24, 3, 64
"""Tokens before the first decode step, decode steps, and slots of the static cache."""


@dataclass(frozen=True, slots=True)
class Opened:
    """How far a family gets.

    Attributes:
        parameters: of the tiny model; 0 if it cannot be built.
        transformers: why transformers' own step does not run; empty if it does.
        refused: sktune's message; empty if it opens the model.
        exit_code: of sktune's error; 0 without one.
        units: units of the layout.
    """

    parameters: int = 0
    transformers: str = ""
    refused: str = ""
    exit_code: int = 0
    units: int = 0


def write_config(family: str, folder: Path) -> PreTrainedConfig:
    """Write a tiny configuration of ``family`` into ``folder``, as a checkpoint has it."""
    config = tiny_config(family)
    folder.mkdir(parents=True, exist_ok=True)
    values = json.loads(config.to_json_string(use_diff=False))
    (folder / "config.json").write_text(json.dumps({**values, "model_type": family}), encoding="utf-8")
    return config


def open_family(family: str, folder: Path) -> Opened:
    """Run a tiny model's decode step eagerly in transformers, then open the model as a search does."""
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    try:
        parameters = run_in_transformers(write_config(family, folder))
    except Exception as failure:  # noqa: BLE001 - whatever transformers raises is the finding
        return Opened(transformers=described(failure))
    try:
        units = open_as_search(folder)
    except SktuneError as failure:
        return Opened(parameters, refused=str(failure), exit_code=failure.exit_code)
    except Exception as failure:  # noqa: BLE001 - a traceback is the finding
        return Opened(parameters, refused=described(failure), exit_code=1)
    return Opened(parameters, units=units)


def run_in_transformers(config: PreTrainedConfig) -> int:
    """Decode with a static KV cache, eagerly, without sktune; return the number of parameters."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    vocabulary = config.get_text_config(decoder=True).vocab_size
    cache = StaticCache(config=model.config, max_cache_len=LENGTH)
    accepted = inspect.signature(model.forward).parameters
    argument = next((name for name in ("cache", "past_key_values", "cache_params") if name in accepted), None)
    if argument is None:
        raise ValueError(f"{type(model).__name__} takes no KV cache")
    for count in (CONTEXT, *[1] * STEPS):
        tokens = torch.randint(0, vocabulary, (1, count))
        logits = model(input_ids=tokens, use_cache=True, **{argument: cache}).logits
        if logits.shape[-1] < 2 or not logits.isfinite().all():
            raise ValueError(f"logits of shape {tuple(logits.shape)} are not finite")
    if not any(tensor.any() for tensor in cache_tensors(cache).values()):
        raise ValueError(f"{type(model).__name__} leaves the static cache empty")
    return sum(parameter.numel() for parameter in model.parameters())


def open_as_search(folder: Path) -> int:
    """Load, trace and capture the model in ``folder`` and check that its baseline is deterministic.

    Returns:
        the number of units.

    Raises:
        SktuneError: as a search on it would.
    """
    target = load(describe(str(folder))[0])
    layout = trace_layout(target, SpaceSpec())
    backend = InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])
    PlanEvaluator(target, backend)
    return len(layout.units)


def summary(opened: Opened) -> Mapping[str, object]:
    """Return the values to store."""
    return {name: getattr(opened, name) for name in Opened.__slots__}
