"""Backends: what compiles a plan and runs a step, by name."""

from collections.abc import Mapping

BACKENDS: Mapping[str, str] = {
    "inductor": "sktune.backends.inductor:InductorBackend",
    "npu": "sktune.backends.npu:NpuBackend",
    "sim": "sktune.backends.sim:SimBackend",
}
"""Where each backend's class is. A worker imports the one that it needs."""

DEVICES: Mapping[str, tuple[str, ...]] = {"inductor": ("cpu", "cuda"), "npu": ("npu",), "sim": ("cpu", "meta")}
"""Device types of each backend, the default first."""
