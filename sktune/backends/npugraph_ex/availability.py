"""Which requirements of npugraph-ex this machine meets, or the Python of a program; the backend npu has the others."""

from collections.abc import Sequence

from sktune.ascend.front_ends import front_end, releases_with
from sktune.backends.npugraph_ex.options import KERNELS, SUPERKERNEL
from sktune.backends.program_python import ProgramPython
from sktune.backends.this_machine import NOT_INSTALLED, package_version
from sktune.core.events.commands import Finding, State

_NAME = "npugraph-ex"


def examine() -> Sequence[Finding]:
    """Return whether torch_npu has npugraph_ex, with which options; the backend npu has the other requirements."""
    installed = package_version("torch_npu")
    known = front_end(installed)
    if installed == NOT_INSTALLED:
        return [Finding(_NAME, "npugraph_ex", State.MISSING, "", "see torch_npu")]
    if known is None:
        return [Finding(_NAME, "npugraph_ex", State.OK, f"torch_npu {installed} is older than all that are known")]
    if not known.superkernel:
        fix = f"install torch_npu {releases_with()}, or a later post-release of one of them"
        return [Finding(_NAME, "npugraph_ex", State.MISSING, f"torch_npu {installed} has none", fix)]
    missing = [name for name in (*SUPERKERNEL, *KERNELS) if name not in known.superkernel]
    lacks = f"without {', '.join(missing)}" if missing else "with all options of SuperKernels"
    return [Finding(_NAME, "npugraph_ex", State.OK, f"comes with torch_npu {installed}, {lacks}; see npu for the rest")]


def examine_program(python: ProgramPython) -> Sequence[Finding]:
    """Return whether the program's torch_npu has npugraph_ex; the backend npu has the other requirements."""
    if python.facts.get("npugraph_ex"):
        return [Finding(_NAME, "npugraph_ex", State.OK, "torch.compile knows it there; see npu for the rest")]
    if "npugraph_ex" in python.facts:
        fix = "install there a torch_npu that has npugraph_ex"
        return [Finding(_NAME, "npugraph_ex", State.MISSING, "torch.compile does not know it", fix)]
    if not python.package("torch_npu"):
        return [Finding(_NAME, "npugraph_ex", State.MISSING, "", "see torch_npu")]
    found = python.import_problem("npugraph_ex") or "not seen, as torch_npu and TorchAir cannot be imported"
    return [Finding(_NAME, "npugraph_ex", State.WRONG, found, "see npu")]
