"""Describes the npugraph-ex backend before it is imported."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from sktune.backends.info import BackendInfo, Finding, State
from sktune.backends.npu.info import INFO as NPU
from sktune.backends.npu.info import fingerprint
from sktune.backends.npugraph_ex.options import OPTIONS
from sktune.backends.program_python import ProgramPython
from sktune.core.scope_flavour import ScopeFlavour

_NAME = "npugraph-ex"


def _examine() -> Sequence[Finding]:
    """Return whether torch_npu has npugraph_ex; the backend npu has the other requirements."""
    spec = importlib.util.find_spec("torch_npu")
    folders = [Path(folder) / "dynamo" / "npugraph_ex" for folder in (spec and spec.submodule_search_locations) or ()]
    if any(folder.is_dir() for folder in folders):
        return [Finding(_NAME, "npugraph_ex", State.OK, "comes with torch_npu; see npu for the rest")]
    fix = "install torch_npu 2.13 or later: pip install '.[npu]' in sktune's folder"
    return [Finding(_NAME, "npugraph_ex", State.MISSING, "", fix)]


def _examine_program(python: ProgramPython) -> Sequence[Finding]:
    """Return whether the program's torch_npu has npugraph_ex; the backend npu has the other requirements."""
    if python.facts.get("npugraph_ex"):
        return [Finding(_NAME, "npugraph_ex", State.OK, "torch.compile knows it there; see npu for the rest")]
    if "npugraph_ex" in python.facts:
        fix = "install there a torch_npu that has npugraph_ex"
        return [Finding(_NAME, "npugraph_ex", State.MISSING, "torch.compile does not know it", fix)]
    found = python.import_problem("npugraph_ex") or "not seen, as torch_npu and TorchAir cannot be imported"
    return [Finding(_NAME, "npugraph_ex", State.WRONG, found, "see npu")]


INFO = BackendInfo(
    name=_NAME,
    backend_class="sktune.backends.npugraph_ex.backend:NpugraphExBackend",
    devices=("npu",),
    options=OPTIONS,
    scope_flavour=ScopeFlavour.CAPTURED,
    needs_fresh_process=True,
    worker_folders={"ASCEND_CACHE_PATH": "cache", "ASCEND_WORK_PATH": "work", "ASCEND_PROCESS_LOG_PATH": "log"},
    takes_torchair=lambda device: True,
    fingerprint=fingerprint,
    examine=_examine,
    needs=(NPU.name,),
    examine_program=_examine_program,
)
