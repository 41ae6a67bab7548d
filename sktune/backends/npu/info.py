"""Describes TorchAir on Ascend before it is imported."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sktune.backends.info import BackendInfo
from sktune.backends.npu.options import OPTIONS, keeps_order
from sktune.backends.this_machine import cann_version, package_version
from sktune.core.fused_scopes import SeenTypes
from sktune.core.layout import Layout
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Option, Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.targets import TargetSpec

if TYPE_CHECKING:
    from sktune.ascend.scope_check import CheckedScope

FEED_SYNC_ALL = "feed-sync-all"


def rescue(outcome: Outcome, plan: Plan) -> tuple[str, Option] | None:
    """Return the option that releases a SyncAll waiting for idle cores, if the plan hung and does not have it yet."""
    has_it = any(FEED_SYNC_ALL in dict(scope.options) for scope in plan.scopes)
    hangs = outcome.reason is Reason.TIMEOUT and outcome.stage is not Stage.COMPILE
    return (FEED_SYNC_ALL, 1) if hangs and not has_it else None


def foresee(plan: Plan, layout: Layout, seen: SeenTypes) -> "CheckedScope | None":
    """Return a scope for which the compiler is certain to refuse the plan; None if there is none that is known."""
    from sktune.ascend.scope_check import certainly_refused, check_scopes, operators_of_layout

    operators = operators_of_layout(layout, plan)
    labels = [scope.label for scope in plan.scopes]
    return certainly_refused(check_scopes(operators, labels, seen, keeps_order=keeps_order(plan)))


def fingerprint(spec: TargetSpec) -> Mapping[str, str]:  # noqa: ARG001 - the same for all
    """Return what figures on an NPU depend on; see ``BackendInfo``."""
    return {"torch_npu": package_version("torch_npu"), "cann": cann_version()}


INFO = BackendInfo(
    name="npu",
    backend_class="sktune.backends.npu.backend:NpuBackend",
    devices=("npu",),
    options=OPTIONS,
    scope_flavour=ScopeFlavour.SUPERKERNEL,
    # Documented by TorchAir since 26.0.0.
    hot_type_options=("dcci-before-kernel-start", "dcci-disable-on-kernel"),
    # GE finds compiled kernels by name, so those of different plans must not share a process or folder.
    needs_fresh_process=True,
    worker_folders={"ASCEND_CACHE_PATH": "cache", "ASCEND_WORK_PATH": "work", "ASCEND_PROCESS_LOG_PATH": "log"},
    takes_torchair=lambda device: True,
    fingerprint=fingerprint,
    examine="sktune.backends.npu.availability:examine",
    examine_program="sktune.backends.npu.availability:examine_program",
    rescue=rescue,
    foresee=foresee,
)
