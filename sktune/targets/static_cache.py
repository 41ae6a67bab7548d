"""Static KV caches: transformers' own, with every count of positions in a tensor.

A captured decode step is valid for every position only if nothing that changes from step to step is a Python number.
transformers counts the positions of sliding windows in one, and then takes another branch once a window is full. Older
releases, such as 5.0, count no others: they look for the slots whose keys are not zero.
"""

from typing import Any

import torch
from transformers import PreTrainedConfig, StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

from sktune.core.errors import TargetError, described
from sktune.program.sktune_program import torch_private
from sktune.program.sktune_program.object_graph import Walk

COUNTS = hasattr(StaticLayer(1), "cumulative_length")
"""Whether this release of transformers counts positions in a tensor."""


class _Counting:
    """Counts positions in a tensor; for a static layer of a transformers that does not."""

    def lazy_initialization(self: Any, key_states: torch.Tensor, *args: Any) -> None:
        """Allocate the layer's tensors."""
        super().lazy_initialization(key_states, *args)  # type: ignore[misc]
        self.cumulative_length = torch.zeros((), dtype=torch.long, device=key_states.device)
        torch_private.mark_static_address(self.cumulative_length)

    def reset(self: Any) -> None:
        """Empty the layer, in place."""
        if self.is_initialized:
            for held in (self.keys, self.values, self.cumulative_length):
                held.zero_()

    def get_seq_length(self: Any) -> Any:
        """Return how many tokens were written."""
        return self.cumulative_length if self.is_initialized else 0


class _Scattering:
    """Writes with ``scatter_``, as TorchAir does not convert ``index_copy_``; for a ``StaticLayer``."""

    def update(
        self: Any,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002 - transformers' signature
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of shape (batch, heads, new tokens, size), and return the whole cache."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        positions = torch.arange(key_states.shape[-2], device=self.device) + self.cumulative_length
        self.cumulative_length.add_(key_states.shape[-2])
        _scatter(self.keys, positions, key_states)
        _scatter(self.values, positions, value_states)
        return self.keys, self.values


class _WholeWindow:
    """A sliding window that is as long as the cache; for a ``StaticSlidingWindowLayer``."""

    update = StaticLayer.update
    get_mask_sizes = StaticLayer.get_mask_sizes
    if COUNTS:
        get_seq_length = StaticLayer.get_seq_length


class _MovingWindow:
    """A sliding window for which one graph is valid at every position; for a ``StaticSlidingWindowLayer``.

    Keys and values are where transformers has them: from the first slot until the window is full, and then the latest
    ones in order. Each update first moves them by as many slots as the new tokens need beyond the last one.
    """

    def update(
        self: Any,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002 - transformers' signature
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of shape (batch, heads, new tokens, size), and return those to attend to.

        More than one token at once may only be written into an empty cache.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window, count = self.max_cache_len, key_states.shape[-2]
        if count > window:
            self.cumulative_length.add_(count)
            self.keys.copy_(key_states[:, :, -window:])
            self.values.copy_(value_states[:, :, -window:])
            return key_states, value_states
        slots = torch.arange(window, device=self.device)
        by = (self.cumulative_length + count - window).clamp(min=0, max=count)
        source = (slots + by).clamp(max=window - 1)
        target = slots[:count] + self.cumulative_length.clamp(max=window - count)
        self.cumulative_length.add_(count)
        for held, new in (self.keys, key_states), (self.values, value_states):
            moved = held.index_select(2, source)
            _scatter(moved, target, new)
            held.copy_(moved)
        return self.keys, self.values

    def get_mask_sizes(self: Any, query: int | torch.Tensor) -> tuple[int, Any]:
        """Return how many keys are attended to, and the position of the first one.

        Args:
            query: the number of new tokens; older releases of transformers pass their positions.
        """
        query_length = query.shape[0] if isinstance(query, torch.Tensor) else query
        if query_length > self.max_cache_len:
            return query_length, 0
        first = (self.cumulative_length + query_length - self.max_cache_len).clamp(min=0) if self.is_initialized else 0
        return self.max_cache_len, first

    if COUNTS:
        get_seq_length = StaticLayer.get_seq_length


def static_cache(config: PreTrainedConfig, length: int, *, takes_torchair: bool) -> StaticCache:
    """Return an empty cache for ``length`` tokens.

    Args:
        config: of the model.
        length: in tokens.
        takes_torchair: whether TorchAir must be able to convert what updates the cache.

    Raises:
        TargetError: transformers has no static cache for the model's layers.
    """
    try:
        cache = StaticCache(config=config, max_cache_len=length)
    except Exception as failure:
        raise TargetError(
            f"transformers has no static KV cache for {config.model_type}: {described(failure)}; choose another model"
        ) from failure
    cache.layers = [_counting_in_tensors(layer, length, takes_torchair=takes_torchair) for layer in cache.layers]
    return cache


def _counting_in_tensors(layer: Any, length: int, *, takes_torchair: bool) -> Any:
    """Return ``layer`` with other methods where it has those of transformers' static layers."""
    inherited = getattr(type(layer), "update", None)
    if inherited is StaticSlidingWindowLayer.update:
        if layer.max_cache_len < length:
            return _counting(_with_methods(layer, _MovingWindow))
        layer, inherited = _with_methods(layer, _WholeWindow), StaticLayer.update
    if inherited is not StaticLayer.update:
        return layer
    return _counting(_with_methods(layer, _Scattering) if takes_torchair or not COUNTS else layer)


def _counting(layer: Any) -> Any:
    return layer if COUNTS else _with_methods(layer, _Counting)


def _with_methods(layer: Any, methods: type) -> Any:
    """Return a copy of ``layer`` that has ``methods``, and everything else of its class, such as state-space layers."""
    kind = type(layer)
    copy: Any = object.__new__(type(kind.__name__, (methods, kind), {}))
    vars(copy).update(vars(layer))
    return copy


def begin_sequence(cache: StaticCache, *, with_context: bool) -> None:
    """Empty the cache, in place.

    Args:
        cache: which keeps its tensors once it has any.
        with_context: whether a context is prefilled next. Without one, the first decode step continues a state of
            zeros, so that it is captured like all others.
    """
    cache.reset()
    for layer in cache.layers:
        seen = getattr(layer, "has_previous_state", None)
        if isinstance(seen, dict) and not with_context:
            seen.update(dict.fromkeys(seen, True))


def cache_tensors(cache: StaticCache) -> dict[str, torch.Tensor]:
    """Return every tensor of the cache by name: keys, values, states, and each layer's count of positions."""
    walk = Walk()
    return {
        name: leaf
        for index, layer in enumerate(cache.layers)
        for name, leaf in walk.leaves(f"cache.{index}", layer)
        if isinstance(leaf, torch.Tensor)
    }


def _scatter(held: torch.Tensor, positions: torch.Tensor, new: torch.Tensor) -> None:
    held.scatter_(2, positions.view(1, 1, -1, 1).expand_as(new), new)
