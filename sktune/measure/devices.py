"""Devices: how a step's time and memory are measured on each."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sktune.core.errors import BackendError, first_line
from sktune.core.scope_options import has_superkernel
from sktune.measure.latency import Device


class Cpu:
    """The host's processor."""

    def now_s(self) -> float:
        """See ``Device.now_s``."""
        return time.perf_counter()

    def time_s(self, run: Callable[[], object]) -> float:
        """See ``Device.time_s``."""
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def moment(self) -> float:
        """Return this moment, for ``between_s``."""
        return time.perf_counter()

    def between_s(self, start: float, end: float) -> float:
        """Return the seconds between two moments."""
        return end - start

    def reset_peak_memory(self) -> None:
        """Do nothing: memory is not tracked."""

    def peak_memory_bytes(self) -> int | None:
        """Return None: memory is not tracked."""
        return None


class Cuda:
    """An NVIDIA GPU: wall time around a synchronised step, so that launching kernels counts too."""

    def now_s(self) -> float:
        """See ``Device.now_s``."""
        torch.cuda.synchronize()
        return time.perf_counter()

    def time_s(self, run: Callable[[], object]) -> float:
        """See ``Device.time_s``."""
        start = self.now_s()
        run()
        return self.now_s() - start

    def moment(self) -> torch.cuda.Event:
        """Record the moment at which the GPU gets here, for ``between_s``, without blocking the host."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the seconds between two moments, both of which have passed."""
        return float(start.elapsed_time(end)) / 1e3

    def reset_peak_memory(self) -> None:
        """See ``Device.reset_peak_memory``."""
        torch.cuda.reset_peak_memory_stats()

    def peak_memory_bytes(self) -> int | None:
        """See ``Device.peak_memory_bytes``."""
        return torch.cuda.max_memory_allocated()


class Npu:
    """An Ascend NPU, timed by its own events: a sunk graph needs no host between its first and last task."""

    def __init__(self) -> None:
        # torch.npu exists once torch_npu is imported.
        self._npu: Any = torch.npu  # type: ignore[attr-defined]

    def now_s(self) -> float:
        """See ``Device.now_s``."""
        self._npu.synchronize()
        return time.perf_counter()

    def time_s(self, run: Callable[[], object]) -> float:
        """See ``Device.time_s``."""
        start, end = self._npu.Event(enable_timing=True), self._npu.Event(enable_timing=True)
        self._npu.synchronize()
        start.record()
        run()
        end.record()
        self._npu.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def reset_peak_memory(self) -> None:
        """See ``Device.reset_peak_memory``."""
        self._npu.reset_peak_memory_stats()

    def peak_memory_bytes(self) -> int | None:
        """See ``Device.peak_memory_bytes``."""
        return int(self._npu.max_memory_allocated())


def make_deterministic(device: str) -> None:
    """Turn off kernels of ``device`` that give other bits for the same inputs.

    cuDNN's attention is the one that is known. On an H100 (torch 2.11, CUDA 13.0) up to 28 of 30 repetitions of a step
    differed (16 sequences, 32 heads, 576 keys), and none without it.
    """
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def require(device: str) -> None:
    """Raise ``BackendError`` unless torch can put tensors on ``device`` (``cpu``, ``cuda``, ``npu``, ``meta``)."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendError("torch sees no CUDA device; check nvidia-smi and that torch is a CUDA build")
    if device == "npu":
        npu = import_torch_npu().npu
        if not npu.is_available():
            raise BackendError("torch_npu sees no NPU; it needs Atlas A3 or A2, driver and CANN, see `sktune doctor`")
        if not has_superkernel(name := npu.get_device_name()):
            raise BackendError(f"SuperKernel needs Atlas A3 or A2, this is {name!r}; plan for one with --backend sim")


def import_torch_npu() -> Any:
    """Return ``torch_npu``, whose import registers the device.

    Raises:
        BackendError: it cannot be imported.
    """
    try:
        import torch_npu
    except (ImportError, OSError) as failure:
        raise BackendError(
            f"torch_npu cannot be imported ({first_line(failure)}); pip install '.[npu]' in sktune's folder, "
            "install CANN and source its set_env.sh, and see `sktune doctor`"
        ) from failure
    return torch_npu


def device_of(tensors: Iterable[torch.Tensor]) -> Device:
    """Return the device of ``tensors``; an accelerator if any of them is on one."""
    types = {tensor.device.type for tensor in tensors}
    if "cuda" in types:
        return Cuda()
    if "npu" in types:
        return Npu()
    return Cpu()


def ran_out_of_memory(failure: BaseException | None) -> bool:
    """Return whether a failure, or one of its causes, is that memory ran out."""
    while failure is not None:
        text = str(failure).lower()
        if isinstance(failure, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
            return True
        failure = failure.__cause__ or failure.__context__
    return False
