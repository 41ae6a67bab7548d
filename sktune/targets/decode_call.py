"""Decode calls: how a causal language model of transformers is called, so that one captured graph serves every step."""

import inspect
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import StaticCache

from sktune.core.errors import TargetError
from sktune.measure.devices import ran_out_of_memory
from sktune.program.sktune_program.torch_private import TorchDispatchMode
from sktune.targets.static_cache import begin_sequence

logger = logging.getLogger(__name__)

DecodeStep = Callable[[torch.Tensor], torch.Tensor]
"""Takes tokens of shape (batch, new tokens), and returns the logits."""

_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
"""Names of the KV cache among the arguments of a model, from the newest."""
_WAYS: tuple[tuple[str, ...], ...] = (
    *((), ("position_ids",), ("position_ids", "attention_mask"), ("attention_mask",)),
    *(("cache_position",), ("position_ids", "cache_position"), ("position_ids", "cache_position", "attention_mask")),
)
"""Arguments to pass besides tokens and cache, in the order in which they are tried."""


def decode_call(model: nn.Module, cache: StaticCache, batch: int, length: int, device: str) -> tuple[DecodeStep, bool]:
    """Return the function that runs ``model`` on its next tokens, and whether it has run.

    Without positions and a mask, some models read the number of tokens seen from the cache, to slice a table of
    positions or to make a mask. Such a step is another graph at each position, so they get what ``generate()`` passes.

    Args:
        model, cache: the cache may be empty; it has been written to afterwards.
        batch: sequences decoded together.
        length: of the cache, in tokens.
        device: of the tokens.

    Raises:
        TargetError: the model takes no KV cache.
    """
    accepted = inspect.signature(model.forward).parameters
    cache_argument = next((name for name in _CACHE_ARGUMENTS if name in accepted), None)
    if cache_argument is None:
        raise TargetError(f"{type(model).__name__} takes no KV cache, so it has no decode step; choose another model")
    mask = torch.ones(batch, length, dtype=torch.long, device=device)

    def calling(names: tuple[str, ...]) -> DecodeStep:
        def decode_step(input_ids: torch.Tensor) -> torch.Tensor:
            more: dict[str, Any] = {cache_argument: cache}
            if names:
                positions = torch.arange(input_ids.shape[1], device=input_ids.device) + cache.get_seq_length()
            if "position_ids" in names:
                more["position_ids"] = positions.unsqueeze(0)
            if "cache_position" in names:
                more["cache_position"] = positions
            if "attention_mask" in names:  # the causal mask hides the slots that are still empty
                more["attention_mask"] = mask
            logits: torch.Tensor = model(input_ids=input_ids, use_cache=True, **more).logits
            return logits

        return decode_step

    tokens = torch.ones(batch, 1, dtype=torch.long, device=device)
    ways = [calling(names) for names in _WAYS if set(names) <= accepted.keys()]
    fewest, best = math.inf, ways[0]  # what reads the fewest values may read none when it is captured
    given: tuple[list[nn.Embedding], ...] = ([], _tables(model))
    for tables in given:
        handles = [_give_positions(table) for table in tables]
        for way in ways:
            reads = _value_reads(way, tokens, cache)
            if reads == 0:
                return way, True
            if reads < fewest and not tables:
                fewest, best = reads, way
        for handle in handles:
            handle.remove()
    return best, fewest < math.inf


def _tables(model: nn.Module) -> list[nn.Embedding]:
    """Return the tables that are sliced at the number of tokens seen, unless they get positions."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return [table for table in tables if {"cache_length", "position_ids"} <= _parameters(table)]


def _give_positions(table: nn.Embedding) -> Any:
    """Give positions to a table whenever it runs; return the handle of the hook."""

    def with_positions(
        _module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if len(arguments) > 2 or options.get("position_ids") is not None:
            return None
        shape = arguments[0].shape if isinstance(arguments[0], torch.Tensor) else arguments[0]
        seen = arguments[1] if len(arguments) == 2 else options.get("cache_length", 0)
        return arguments[:1], {"position_ids": torch.arange(shape[1], device=table.weight.device) + seen}

    return table.register_forward_pre_hook(with_positions, with_kwargs=True)


def _parameters(module: nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


class _ValueReads(TorchDispatchMode):
    """Counts how often Python reads a tensor's value, for an index, a size or a branch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Run the operator."""
        self.count += function is torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operator of item()
        return function(*arguments, **(options or {}))


def _value_reads(step: DecodeStep, tokens: torch.Tensor, cache: StaticCache) -> float:
    """Return how many values a second token, the first that has a past, reads; infinity if the step fails this way."""
    begin_sequence(cache, with_context=True)
    reads = _ValueReads()
    try:
        with torch.no_grad():
            step(tokens)
            with reads:
                step(tokens)
    except Exception as failure:  # the model then fails in its prefill, or this way of calling it is not chosen
        if ran_out_of_memory(failure):
            raise
        logger.info("a way of calling the model fails", exc_info=True)
        return math.inf
    return reads.count
