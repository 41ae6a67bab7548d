"""Stand-ins for torch_npu and TorchAir in a rehearsal, for a Python that has neither.

The device ``npu`` is the CPU, HCCL is Gloo, streams and scopes do nothing (on the CPU, nothing runs at the same time),
and what configures a compiler is accepted, as no step is compiled. Everything else exists, but whoever calls it gets an
error that names it: no operator is imitated that changes a value.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import rename_privateuse1_backend

from .torch_private import DEVICE_FUNCTIONS, resolve

DEVICE = "npu"
MEMORY = 1 << 30
"""Bytes of memory that the device says it has, all free: programs fill what they are told with caches."""
PACKAGES = ("torch_npu", "torchair")
CONFIGURATION = frozenset({"CompilerConfig", "Options", "patch_for_hcom", "patch_for_hcom_allreduce"})
"""Last parts of the names of what only configures; calling it returns an object with any attributes."""

NOTHING_TO_DO = (
    "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "set_compile_mode",
    *DEVICE_FUNCTIONS,
)  # fmt: skip
"""Functions of ``torch.npu`` that return None."""


class NeedsDeviceError(RuntimeError):
    """The program calls what only an NPU can do; it may expect that, so that only its log tells whether it ended."""


class Named:
    """Anything that the stand-ins lack: has any attributes, and raises ``NeedsDeviceError`` when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Named:
        if name.startswith(("__", "_torch")):  # whether it is there means something to Python and to torch
            raise AttributeError(name)
        return Named(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:  # noqa: ARG002
        """Return what configures nothing real; raise ``NeedsDeviceError`` for everything else."""
        path = self._name.split(".")
        if path[-1] in CONFIGURATION:
            return Named(self._name)
        if path[:2] == ["torchair", "scope"]:
            return nullcontext()
        if path[-1] == "get_npu_backend":
            return lambda *captured: self._refuse()
        return self._refuse()

    def _refuse(self) -> Any:
        raise NeedsDeviceError(f"{self._name} needs an NPU, and a rehearsal has no stand-in for it")


class StandIn(ModuleType):
    """A module all of whose attributes are ``Named``, except those that are set."""

    is_stand_in = True

    def __getattr__(self, name: str) -> Named:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(f"{self.__name__}.{name}")


class _Stream:
    """A stream or an event: work is done when its call returns, so that there is nothing to wait for."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ARG002
        self.stream_id = 0

    def wait(self, *arguments: Any) -> None:
        """Do nothing."""

    record = record_event = synchronize = wait_event = wait_stream = wait


class _OnCpu(TorchFunctionMode):
    """Replaces the device ``npu`` by the CPU in every call of torch."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        return function(*map(_on_cpu, args), **keywords)


def _itself(value: Any, *arguments: Any, **keywords: Any) -> Any:  # noqa: ARG001
    """Return what is to be moved to the device, or to another format: it is there."""
    return value


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """Do nothing."""


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == DEVICE else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == DEVICE else value


class _Finder:
    """A finder and loader, the last one: it is asked only for what is not installed."""

    def __init__(self) -> None:
        self._mode: TorchFunctionMode | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        """See ``importlib.abc.MetaPathFinder``: only the packages and what is in their stand-ins are handled."""
        package = name.partition(".")[0]
        if package not in PACKAGES or (name != package and not isinstance(sys.modules.get(package), StandIn)):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See ``importlib.abc.Loader``."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """See ``importlib.abc.Loader``: with torch_npu, torch gets the device."""
        if module.__name__ == "torch_npu":
            npu: Any = StandIn("torch.npu")
            for name in NOTHING_TO_DO:
                setattr(npu, name, _nothing)
            npu.is_available = npu.is_initialized = lambda: True
            npu.current_device = lambda: 0
            npu.mem_get_info = lambda *arguments: (MEMORY, MEMORY)
            npu.stream = lambda *arguments: nullcontext()
            npu.Stream = npu.Event = npu.current_stream = npu.default_stream = _Stream
            rename_privateuse1_backend(DEVICE)
            resolve("_register_device_module")(DEVICE, npu)
            for moved in (torch.Tensor, torch.nn.Module):
                moved.npu = _itself  # type: ignore[union-attr]
            stand_in: Any = module
            stand_in.npu, stand_in.npu_prefetch = npu, _nothing
            stand_in.npu_format_cast = _itself  # the CPU has one format
            _use_gloo()
            self._mode = _OnCpu()
            self._mode.__enter__()  # type: ignore[no-untyped-call]


def _use_gloo() -> None:
    """Make process groups of HCCL ones of Gloo."""
    if not torch.distributed.is_available():
        return

    def with_gloo(make: Any) -> Any:
        def made(*arguments: Any, **keywords: Any) -> Any:
            values = [_gloo(value) for value in arguments]
            named = {name: _gloo(value) for name, value in keywords.items() if name not in ("pg_options", "device_id")}
            return make(*values, **named)

        return made

    for name in ("init_process_group", "new_group"):
        setattr(torch.distributed, name, with_gloo(getattr(torch.distributed, name)))


def _gloo(value: Any) -> Any:
    return "gloo" if isinstance(value, str) and "hccl" in value.lower() else value


def install() -> None:
    """Let this process import the stand-ins of what is not installed."""
    sys.meta_path.append(_Finder())
