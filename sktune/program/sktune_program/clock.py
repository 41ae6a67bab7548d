"""The clock of a step, by the device that it runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch


def clock_of(tensors: Iterable[torch.Tensor]) -> Callable[[], float]:
    """Return a function that waits for the accelerator of any of ``tensors``, and returns the time in seconds."""
    types = {tensor.device.type for tensor in tensors}
    device: Any = next((getattr(torch, name) for name in ("cuda", "npu") if name in types), None)
    if device is None:
        return time.perf_counter

    def now_s() -> float:
        device.synchronize()
        return time.perf_counter()

    return now_s
