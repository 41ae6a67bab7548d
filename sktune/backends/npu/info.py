"""What is known of TorchAir on Ascend before it is imported."""

from collections.abc import Mapping

from sktune.backends.environment import numerics_environment
from sktune.backends.info import BackendInfo
from sktune.backends.installed import package_version
from sktune.backends.npu.availability import cann_version, examine
from sktune.backends.npu.options import OPTIONS
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Option, Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.targets import TargetSpec

FEED_SYNC_ALL = "feed-sync-all"


def rescue(outcome: Outcome, plan: Plan) -> tuple[str, Option] | None:
    """Return the option that frees a SyncAll which waits for cores that do not run, where that may be the trouble."""
    has_it = any(FEED_SYNC_ALL in dict(scope.options) for scope in plan.scopes)
    hangs = outcome.reason is Reason.TIMEOUT and outcome.stage is not Stage.COMPILE
    return (FEED_SYNC_ALL, 1) if hangs and not has_it else None


def _fingerprint(spec: TargetSpec) -> Mapping[str, str]:
    versions = {"torch_npu": package_version("torch_npu"), "cann": cann_version()}
    return versions | numerics_environment(spec.device)


INFO = BackendInfo(
    name="npu",
    backend_class="sktune.backends.npu.backend:NpuBackend",
    devices=("npu",),
    options=OPTIONS,
    scope_flavour=ScopeFlavour.SUPERKERNEL,
    # In TorchAir's documentation since 26.0.0.
    hot_type_options=("dcci-before-kernel-start", "dcci-disable-on-kernel"),
    # Kernels that GE has compiled for one plan must not meet another's, and are found again by names.
    needs_fresh_process=True,
    worker_folders={"ASCEND_CACHE_PATH": "cache", "ASCEND_WORK_PATH": "work", "ASCEND_PROCESS_LOG_PATH": "log"},
    takes_torchair=lambda device: True,
    fingerprint=_fingerprint,
    examine=examine,
    rescue=rescue,
)
