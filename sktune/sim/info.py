"""Describes the simulated Atlas A3 before it is imported: SuperKernels by GE."""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from sktune.backends.info import META_DEVICE, BackendInfo
from sktune.backends.npu.info import INFO as NPU
from sktune.backends.npu.options import SuperKernelOptions
from sktune.backends.this_machine import package_version
from sktune.core.scope_flavour import ScopeFlavour
from sktune.sim.constants import ATLAS_A3, load_constants
from sktune.targets import TargetSpec

DEVICE = "simulated Atlas A3, one die"
"""In fingerprints; what this machine is does not affect simulated figures."""


def _fingerprint(spec: TargetSpec) -> Mapping[str, str]:
    """Return that of the simulated device; this machine's environment does not affect simulated figures."""
    return {
        "device": DEVICE,
        "torch_npu": package_version("torch_npu"),  # if it is installed, its graph is simulated
        "constants": constants_digest(spec),
    }


def constants_digest(spec: TargetSpec) -> str:
    """Return the digest of the device's constants."""
    return load_constants(Path(spec.constants) if spec.constants else ATLAS_A3).digest


def worker_environment(device: str) -> Mapping[str, str]:  # noqa: ARG001
    """Return one thread for all arithmetic, unless the user has set the variables: nothing is timed."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: os.environ.get(name, "1") for name in names}


def _takes_torchair(device: str) -> bool:
    return device != META_DEVICE and importlib.util.find_spec("torch_npu") is not None


INFO = BackendInfo(
    name="sim",
    backend_class="sktune.sim.backend:SimBackend",
    devices=("cpu", META_DEVICE),
    options=SuperKernelOptions("sim"),
    scope_flavour=ScopeFlavour.SUPERKERNEL,
    is_simulated=True,
    plans_for=NPU,
    settings=("constants", "profile"),
    worker_environment=worker_environment,
    takes_torchair=_takes_torchair,
    fingerprint=_fingerprint,
    examine="sktune.sim.availability:examine",
    rescue=NPU.rescue,
)
