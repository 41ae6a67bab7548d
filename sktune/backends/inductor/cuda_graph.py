"""CUDA-graph capture of one region: its kernels are launched as one.

A captured graph reads and writes fixed addresses. What a region is given at other addresses is copied to those of the
capture before a replay, and what the region has written there is copied back after it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

logger = logging.getLogger(__name__)

WARM_UP_CALLS = 2
MOST_CAPTURES = 256
"""Of one region; layers that share a region need one each. Beyond it, a state that keeps moving is not captured."""

Run = Callable[..., Any]
Capture = Callable[[Run, tuple[Any, ...], Sequence[int]], tuple[Callable[[], None], tuple[Any, ...]]]
"""Takes a function, its inputs and which of them it writes to. Returns what replays it, and the outputs it writes."""


def written_inputs(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return which inputs the graph writes to, by the version counters of tensors without values."""
    with torch.inference_mode(False), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        given = [_like(value) if isinstance(value, torch.Tensor) else value for value in inputs]
        before = [_version(value) for value in given]
        fx.Interpreter(graph_module).run(*given)
        return tuple(index for index, value in enumerate(given) if _version(value) != before[index])


def _like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


def _version(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) else 0  # noqa: SLF001 - PyTorch's name for it


def capture(
    function: Run, inputs: tuple[Any, ...], written: Sequence[int]
) -> tuple[Callable[[], None], tuple[Any, ...]]:
    """Capture ``function`` as a CUDA graph that works on ``inputs``, and leave their values as they are."""
    saved = [(inputs[index], inputs[index].clone()) for index in written]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*inputs)
    for tensor, value in saved:
        _dense(tensor).copy_(_dense(value))
    return graph.replay, tuple(outputs)


@dataclass(frozen=True, slots=True)
class _Captured:
    replay: Callable[[], None]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class CapturedRegion:
    """Calls a region through a CUDA graph, captured once for each set of weights and state.

    Weights and state keep their addresses from step to step, so they are read and written in place, and another
    address is another capture. State is what Dynamo was told not to move, and each input of the whole step that the
    region writes to, wherever the model keeps it: in a buffer, an attribute or a closure. Everything else is copied
    into the addresses of the capture; where the region writes to it, it is copied back. Outputs are copies, since the
    next replay overwrites the capture's own.

    Args:
        function: the compiled region.
        written: which inputs it writes to.
        outlasting: which inputs come from outside of the step, and may outlast it.
    """

    def __init__(self, function: Run, written: Sequence[int], outlasting: Sequence[int]) -> None:
        self._function, self._written = function, tuple(written)
        self._state = frozenset(written) & frozenset(outlasting)
        self._captured: dict[tuple[int, ...], _Captured | None] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the region on ``inputs``."""
        in_place = self._in_place(inputs)
        key = tuple(inputs[index].data_ptr() for index in in_place)
        if key not in self._captured:
            if len(self._captured) >= MOST_CAPTURES:
                return tuple(self._function(*inputs))
            self._captured[key] = self._capture(inputs, in_place)
        captured = self._captured[key]
        if captured is None:
            return tuple(self._function(*inputs))
        for held, given in zip(captured.inputs, inputs, strict=True):
            if isinstance(given, torch.Tensor) and held.data_ptr() != given.data_ptr():
                _dense(held).copy_(_dense(given))
        captured.replay()
        for index in self._written:
            if captured.inputs[index].data_ptr() != inputs[index].data_ptr():
                _dense(inputs[index]).copy_(_dense(captured.inputs[index]))
        return tuple(_handed_out(output, captured.inputs, inputs) for output in captured.outputs)

    def _in_place(self, inputs: tuple[Any, ...]) -> tuple[int, ...]:
        """Return which inputs are weights or state: those that keep their addresses."""
        return tuple(
            index
            for index, value in enumerate(inputs)
            if isinstance(value, torch.nn.Parameter)
            or index in self._state
            or getattr(value, "_dynamo_static_input_type", None) is not None
        )

    def _capture(self, inputs: tuple[Any, ...], in_place: Sequence[int]) -> _Captured | None:
        """Return a capture; None where copies of the inputs would not behave as the inputs do."""
        if self._writes_to_shared_memory(inputs, in_place):
            logger.warning("a scope is not captured as a CUDA graph: it writes to memory that two of its inputs share")
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
    """Return a copy with the same strides, which compiled code relies on."""
    copy = _like(value)
    _dense(copy).copy_(_dense(value))
    return copy


def _dense(value: torch.Tensor) -> torch.Tensor:
    """Return ``value`` with each element once: an expanded dimension cannot be written to as a whole."""
    if 0 not in value.stride():
        return value.detach()
    sizes = [1 if stride == 0 and size else size for size, stride in zip(value.size(), value.stride(), strict=True)]
    return value.detach().as_strided(sizes, value.stride())


def _handed_out(output: Any, held: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
    """Return a copy of an output, or the part of a given input that it is a view of."""
    if not isinstance(output, torch.Tensor):
        return output
    for own, theirs in zip(held, given, strict=True):
        if isinstance(own, torch.Tensor) and _shares_memory(own, output):
            offset = output.storage_offset() - own.storage_offset() + theirs.storage_offset()
            return theirs.detach().as_strided(output.size(), output.stride(), offset)
    return output.clone()


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    address = one.untyped_storage().data_ptr()
    return address != 0 and address == other.untyped_storage().data_ptr()
