"""CUDA graphs without a GPU: what a capture does to addresses, done on the CPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from sktune.backends.inductor import cuda_graph
from sktune.backends.inductor.options import INDUCTOR

REAL = cuda_graph.capture


def emulated(
    function: Callable[..., Any], inputs: tuple[Any, ...], written: Sequence[int]
) -> tuple[Callable[[], None], tuple[Any, ...]]:
    """Capture as a GPU does: a replay reads and writes the captured addresses, whatever else is given later."""
    saved = [(inputs[index], inputs[index].clone()) for index in written]
    outputs = tuple(function(*inputs))
    for tensor, value in saved:
        tensor.copy_(value)

    def replay() -> None:
        for held, value in zip(outputs, function(*inputs), strict=True):
            if isinstance(held, torch.Tensor) and held.data_ptr() != value.data_ptr():
                held.copy_(value)

    return replay, outputs


@contextmanager
def on_cpu() -> Iterator[None]:
    """Within the context, ``cuda_graph: true`` is an option on CPU, too, and captures are emulated."""
    option = replace(INDUCTOR["cuda_graph"], devices=("cpu", "cuda"))
    with patch.dict(INDUCTOR, cuda_graph=option), patch.object(cuda_graph, "capture", emulated):
        yield
