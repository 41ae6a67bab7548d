"""CUDA-graph capture of a region, which launches its kernels together.

A captured graph reads and writes fixed addresses. Inputs at other addresses are copied to those of the capture before a
replay, and inputs that the region has written are copied back after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ..torch_private import is_static

logger = logging.getLogger(__name__)

WARM_UP_CALLS = 2
MAX_CAPTURES = 256
"""Limit for one region; each layer that shares it needs one. It bounds captures of state that keeps moving."""

Run = Callable[..., Any]


def capture(
    function: Run, inputs: tuple[Any, ...], written: Sequence[int]
) -> tuple[Callable[[], None], tuple[Any, ...]]:
    """Capture ``function`` as a CUDA graph on ``inputs``, whose values are unchanged afterwards.

    Returns a function that replays it, and the outputs.

    All captures share the memory of their intermediate results: they are replayed one after another, and what a replay
    returns is copied before the next.
    """
    saved = [(inputs[index], inputs[index].clone()) for index in written]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool()):
        outputs = function(*inputs)
    for tensor, value in saved:
        _dense(tensor).copy_(_dense(value))
    return graph.replay, tuple(outputs)


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()


@dataclass(frozen=True)
class _Captured:
    replay: Callable[[], None]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class CapturedRegion:
    """Calls a region through a CUDA graph, captured once for each set of weights and state.

    Weights and state have the same addresses in every step, so they are read and written in place, and another address
    needs another capture. State is every tensor marked with a static address for Dynamo, and each input of the whole
    step that the region writes, whether the model stores it in a buffer, an attribute or a closure. Other inputs are
    copied to the addresses of the capture, and copied back if the region writes them. Outputs are copies, since the
    next replay overwrites those of the capture.

    Args:
        function: the compiled region.
        written: which inputs it writes.
        outlasting: which inputs are inputs of the whole step, and may outlive it.
    """

    def __init__(self, function: Run, written: Sequence[int], outlasting: Sequence[int]) -> None:
        self._function, self._written = function, tuple(written)
        self._state = frozenset(written) & frozenset(outlasting)
        self._captured: dict[tuple[int, ...], _Captured | None] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the region on ``inputs``."""
        # Weights and state, whose addresses do not change.
        in_place = tuple(
            index
            for index, value in enumerate(inputs)
            if isinstance(value, torch.nn.Parameter) or index in self._state or is_static(value)
        )
        key = tuple(inputs[index].data_ptr() for index in in_place)
        if key not in self._captured:
            if len(self._captured) >= MAX_CAPTURES:
                return tuple(self._function(*inputs))
            self._captured[key] = self._capture(inputs, in_place)
        captured = self._captured[key]
        if captured is None:
            return tuple(self._function(*inputs))
        for held, current in zip(captured.inputs, inputs):
            if isinstance(current, torch.Tensor) and held.data_ptr() != current.data_ptr():
                _dense(held).copy_(_dense(current))
        captured.replay()
        for index in self._written:
            if captured.inputs[index].data_ptr() != inputs[index].data_ptr():
                _dense(inputs[index]).copy_(_dense(captured.inputs[index]))
        return tuple(_returned(output, captured.inputs, inputs) for output in captured.outputs)

    def _capture(self, inputs: tuple[Any, ...], in_place: Sequence[int]) -> _Captured | None:
        """Return a capture, or None if copies of the inputs would behave differently."""
        if self._writes_to_shared_memory(inputs, in_place):
            logger.warning("a scope is not captured as a CUDA graph: it writes memory that two of its inputs share")
            return None
        held = tuple(
            value if index in in_place or not isinstance(value, torch.Tensor) else _copied(value)
            for index, value in enumerate(inputs)
        )
        replay, outputs = capture(self._function, held, self._written)
        return _Captured(replay, held, outputs)

    def _writes_to_shared_memory(self, inputs: tuple[Any, ...], in_place: Sequence[int]) -> bool:
        storages = {
            index: value.untyped_storage().data_ptr()
            for index, value in enumerate(inputs)
            if isinstance(value, torch.Tensor) and value.numel()
        }
        copied = [index for index in storages if index not in in_place]
        return any(
            storages[index] == storages[other]
            for index in self._written
            for other in (copied if index in in_place else storages)
            if other != index
        )


def _copied(value: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, as compiled code requires."""
    copy = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    _dense(copy).copy_(_dense(value))
    return copy


def _dense(value: torch.Tensor) -> torch.Tensor:
    """Return ``value`` without repeated elements: an expanded dimension cannot be written as a whole."""
    if 0 not in value.stride():
        return value.detach()
    sizes = [1 if stride == 0 and size else size for size, stride in zip(value.size(), value.stride())]
    return value.detach().as_strided(sizes, value.stride())


def _returned(output: Any, held: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
    """Return a copy of an output, or the same view of a given input if it is a view of a held one."""
    if not isinstance(output, torch.Tensor):
        return output
    address = output.untyped_storage().data_ptr()
    for captured, current in zip(held, given):
        if address and isinstance(captured, torch.Tensor) and captured.untyped_storage().data_ptr() == address:
            offset = output.storage_offset() - captured.storage_offset() + current.storage_offset()
            return current.detach().as_strided(output.size(), output.stride(), offset)
    return output.clone()
