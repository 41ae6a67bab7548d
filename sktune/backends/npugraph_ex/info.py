"""Describes the npugraph-ex backend before it is imported."""

from collections.abc import Sequence

from sktune.ascend.front_ends import front_end, releases_with
from sktune.backends.info import BackendInfo, Finding, State
from sktune.backends.installed import NOT_INSTALLED, package_version
from sktune.backends.npu.info import fingerprint
from sktune.backends.npugraph_ex import vllm
from sktune.backends.npugraph_ex.options import KERNELS, OPTIONS, SUPERKERNEL, program_keywords
from sktune.core.scope_flavour import ScopeFlavour

_NAME = "npugraph-ex"


def _examine() -> Sequence[Finding]:
    """Return whether torch_npu has npugraph_ex, with which options; the backend npu has the other requirements."""
    installed = package_version("torch_npu")
    known = front_end(installed)
    if installed == NOT_INSTALLED:
        return [Finding(_NAME, "npugraph_ex", State.MISSING, "", "pip install '.[npu]' in sktune's folder")]
    if known is None:
        return [Finding(_NAME, "npugraph_ex", State.OK, f"torch_npu {installed} is older than all that are known")]
    if not known.superkernel:
        fix = f"install torch_npu {releases_with()}, or a later post-release of one of them"
        return [Finding(_NAME, "npugraph_ex", State.MISSING, f"torch_npu {installed} has none", fix)]
    missing = [name for name in (*SUPERKERNEL, *KERNELS) if name not in known.superkernel]
    lacks = f"without {', '.join(missing)}" if missing else "with all options of SuperKernels"
    return [Finding(_NAME, "npugraph_ex", State.OK, f"comes with torch_npu {installed}, {lacks}; see npu for the rest")]


INFO = BackendInfo(
    name=_NAME,
    backend_class="sktune.backends.npugraph_ex.backend:NpugraphExBackend",
    devices=("npu",),
    options=OPTIONS,
    scope_flavour=ScopeFlavour.CAPTURED,
    needs_fresh_process=True,
    worker_folders={"ASCEND_CACHE_PATH": "cache", "ASCEND_WORK_PATH": "work", "ASCEND_PROCESS_LOG_PATH": "log"},
    program_keywords=program_keywords,
    prepare_program=vllm.prepare,
    program_environment=vllm.ENVIRONMENT,
    takes_torchair=lambda device: True,
    fingerprint=fingerprint,
    examine=_examine,
)
