"""Describes the simulated Atlas A3 before it is imported, once for each way to SuperKernels."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sktune.ascend.not_modelled import NOT_MODELLED
from sktune.backends.info import META_DEVICE, BackendInfo
from sktune.backends.installed import package_version
from sktune.backends.npu.info import INFO as NPU
from sktune.backends.npu.options import SuperKernelOptions
from sktune.backends.npugraph_ex.info import INFO as NPUGRAPH_EX
from sktune.backends.npugraph_ex.options import GraphOptions
from sktune.core.events.commands import Finding, State
from sktune.core.scope_flavour import ScopeFlavour
from sktune.sim.constants import ATLAS_A3, load_constants
from sktune.targets import TargetSpec

_DEVICE = "simulated Atlas A3, one die"


def _fingerprint(spec: TargetSpec) -> Mapping[str, str]:
    """Return that of the simulated device; this machine's environment does not affect simulated figures."""
    return {
        "device": _DEVICE,
        "torch_npu": package_version("torch_npu"),  # if it is installed, its graph is simulated
        **_captured_fingerprint(spec),
    }


def _captured_fingerprint(spec: TargetSpec) -> Mapping[str, str]:
    return {"device": _DEVICE, "constants": load_constants(Path(spec.constants or ATLAS_A3)).digest}


def _worker_environment(device: str) -> Mapping[str, str]:  # noqa: ARG001
    """Return one thread for all arithmetic, unless the user has set the variables: nothing is timed."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: os.environ.get(name, "1") for name in names}


def _takes_torchair(device: str) -> bool:
    return device != META_DEVICE and importlib.util.find_spec("torch_npu") is not None


def _examine() -> Sequence[Finding]:
    """Return which of the compiler's rules the simulation does not know."""
    known = f"GE's and graph-autofusion's, but for {len(NOT_MODELLED)} parts that are not modelled"
    return [Finding("sim", "compiler rules", State.OK, known)]


INFO = BackendInfo(
    name="sim",
    backend_class="sktune.sim.backend:SimBackend",
    devices=("cpu", META_DEVICE),
    options=SuperKernelOptions("sim"),
    scope_flavour=ScopeFlavour.SUPERKERNEL,
    is_simulated=True,
    plans_for=NPU,
    settings=("constants", "profile"),
    worker_environment=_worker_environment,
    takes_torchair=_takes_torchair,
    fingerprint=_fingerprint,
    examine=_examine,
    rescue=NPU.rescue,
)
CAPTURED = BackendInfo(
    name="sim-npugraph-ex",
    backend_class="sktune.sim.backend:CapturedSimBackend",
    devices=("cpu", META_DEVICE),
    options=GraphOptions("sim-npugraph-ex", is_simulated=True),
    scope_flavour=ScopeFlavour.CAPTURED,
    is_simulated=True,
    plans_for=NPUGRAPH_EX,
    settings=("constants", "profile"),
    worker_environment=_worker_environment,
    fingerprint=_captured_fingerprint,
)
