"""CUDA-graph capture of one region: its kernels are launched as one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

WARM_UP_CALLS = 2


@dataclass(frozen=True, slots=True)
class _Capture:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class CapturedRegion:
    """Calls a region through a CUDA graph, captured once for each set of weights and state.

    Weights and state keep their addresses from step to step, so they are read and written in place.
    Activations are copied into the addresses of the capture. Outputs are copies, since the next replay
    overwrites the capture's own.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._captures: dict[tuple[int, ...], _Capture] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the region on ``inputs``."""
        static = self._static(inputs)
        key = tuple(inputs[index].data_ptr() for index in static)
        if key not in self._captures:
            self._captures[key] = self._capture(inputs, static)
        capture = self._captures[key]
        for held, given in zip(capture.inputs, inputs, strict=True):
            if isinstance(given, torch.Tensor) and held.data_ptr() != given.data_ptr():
                held.copy_(given)
        capture.graph.replay()
        return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in capture.outputs)

    def _static(self, inputs: tuple[Any, ...]) -> tuple[int, ...]:
        """Return which inputs are weights or state: parameters, and tensors that Dynamo was told not to move."""
        return tuple(
            index
            for index, value in enumerate(inputs)
            if isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None
        )

    def _capture(self, inputs: tuple[Any, ...], static: tuple[int, ...]) -> _Capture:
        held = tuple(
            value if index in static or not isinstance(value, torch.Tensor) else value.clone()
            for index, value in enumerate(inputs)
        )
        saved = [(held[index], held[index].clone()) for index in static if not held[index].requires_grad]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                self._function(*held)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._function(*held)
        for tensor, value in saved:  # warming up wrote to the state
            tensor.copy_(value)
        return _Capture(graph, held, tuple(outputs))
