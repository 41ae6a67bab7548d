"""Describes the simulated Atlas A3 before it is imported."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from sktune.backends.info import META_DEVICE, BackendInfo
from sktune.backends.installed import package_version
from sktune.backends.npu.info import INFO as NPU
from sktune.backends.npu.options import SuperKernelOptions
from sktune.backends.sim.constants import ATLAS_A3, load_constants
from sktune.core.scope_flavour import ScopeFlavour
from sktune.targets import TargetSpec


def _fingerprint(spec: TargetSpec) -> Mapping[str, str]:
    """Return that of the simulated device; this machine's environment does not affect simulated figures."""
    return {
        "device": "simulated Atlas A3, one die",
        "torch_npu": package_version("torch_npu"),  # if it is installed, its graph is simulated
        "constants": load_constants(Path(spec.constants) if spec.constants else ATLAS_A3).digest,
    }


def _takes_torchair(device: str) -> bool:
    return device != META_DEVICE and importlib.util.find_spec("torch_npu") is not None


INFO = BackendInfo(
    name="sim",
    backend_class="sktune.backends.sim.backend:SimBackend",
    devices=("cpu", META_DEVICE),
    options=SuperKernelOptions("sim"),
    scope_flavour=ScopeFlavour.SUPERKERNEL,
    is_simulated=True,
    plans_for=NPU,
    settings=("constants", "profile"),
    takes_torchair=_takes_torchair,
    fingerprint=_fingerprint,
    rescue=NPU.rescue,
)
