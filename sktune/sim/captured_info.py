"""Describes the simulated Atlas A3 before it is imported: SuperKernels by npugraph_ex, of captured graphs."""

from collections.abc import Mapping

from sktune.backends.info import META_DEVICE, BackendInfo
from sktune.backends.npugraph_ex.info import INFO as NPUGRAPH_EX
from sktune.backends.npugraph_ex.options import GraphOptions
from sktune.core.scope_flavour import ScopeFlavour
from sktune.sim.info import DEVICE, constants_digest, worker_environment
from sktune.targets import TargetSpec


def _fingerprint(spec: TargetSpec) -> Mapping[str, str]:
    return {"device": DEVICE, "constants": constants_digest(spec)}


INFO = BackendInfo(
    name="sim-npugraph-ex",
    backend_class="sktune.sim.captured:CapturedSimBackend",
    devices=("cpu", META_DEVICE),
    options=GraphOptions("sim-npugraph-ex", is_simulated=True),
    scope_flavour=ScopeFlavour.CAPTURED,
    is_simulated=True,
    plans_for=NPUGRAPH_EX,
    settings=("constants", "profile"),
    worker_environment=worker_environment,
    fingerprint=_fingerprint,
)
