"""Emulates CUDA graphs without a GPU: the effect of a capture on addresses, on the CPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from sktune.program.sktune_program.inductor import cuda_graph
from sktune.program.sktune_program.inductor.options import INDUCTOR

REAL = cuda_graph.capture


def emulated(
    function: Callable[..., Any], inputs: tuple[Any, ...], written: Sequence[int]
) -> tuple[Callable[[], None], tuple[Any, ...]]:
    """Capture like a GPU: a replay always reads and writes the captured addresses."""
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
    """Within the context, ``cuda_graph: true`` is also an option on CPU, and captures are emulated."""
    option = replace(INDUCTOR["cuda_graph"], devices=("cpu", "cuda"))
    with patch.dict(INDUCTOR, cuda_graph=option), patch.object(cuda_graph, "capture", emulated):
        yield
