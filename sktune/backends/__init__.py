"""Backends: what compiles a plan and runs a step, by name."""

import importlib
from collections.abc import Mapping
from typing import Any

BACKENDS: Mapping[str, str] = {
    "inductor": "sktune.backends.inductor.backend:InductorBackend",
    "npu": "sktune.backends.npu.backend:NpuBackend",
    "sim": "sktune.backends.sim.backend:SimBackend",
}
"""Where each backend's class is. A worker imports the one that it needs."""

DEVICES: Mapping[str, tuple[str, ...]] = {"inductor": ("cpu", "cuda"), "npu": ("npu",), "sim": ("cpu", "meta")}
"""Device types of each backend, the default first."""

FRESH_PROCESS = frozenset({"npu"})
"""Backends of which each trial needs a process, a working folder and caches of its own."""


def load_backend(name: str) -> Any:
    """Return the class of the backend ``name``; call it with target, layout and the inputs of one step."""
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
