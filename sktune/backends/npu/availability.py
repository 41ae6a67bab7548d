"""Which requirements of an NPU this machine meets: CANN, the driver, torch_npu and its torchair.

torch_npu is checked in a separate process: without CANN its import fails, and breaks torch in that interpreter.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence

from sktune.ascend.front_ends import what_is_tested
from sktune.backends.program_python import ProgramPython
from sktune.backends.this_machine import NO_NPU, NOT_INSTALLED, PROBE_TIMEOUT_S, cann_version, device_name
from sktune.core.events.commands import Finding, State
from sktune.core.scope_options import has_superkernel

INSTALL = "for --model alone: pip install '.[npu]' in sktune's folder; for a recipe, doctor --recipe"
"""How sktune's own environment gets torch_npu; in a program's, pip would replace what the program needs."""
_PROBE = """
import torch, torch_npu, torchair
takes_none = dict(torchair.scope.super_kernel(None).attrs)["_super_kernel_scope"] is not None
count = torch.npu.device_count()
print(torch_npu.__version__, count, takes_none, torch.npu.get_device_name(0) if count else "-")
"""


def examine() -> Sequence[Finding]:
    """Return a finding for each requirement."""
    home, version = os.environ.get("ASCEND_HOME_PATH"), cann_version()
    if not home:
        fix = "install CANN's toolkit and kernels, then: source <cann>/set_env.sh"
        cann = Finding("npu", "CANN", State.MISSING, "ASCEND_HOME_PATH is not set", fix)
    elif version == NOT_INSTALLED:
        fix = "source set_env.sh of a complete CANN installation"
        cann = Finding("npu", "CANN", State.WRONG, f"no toolkit in {home}", fix)
    else:
        cann = Finding("npu", "CANN", State.OK, version)
    if importlib.util.find_spec("torch_npu") is None:
        return [cann, _chip(), Finding("npu", "torch_npu", State.MISSING, "", INSTALL)]
    return [cann, _chip(), *_torch_npu()]


def _chip() -> Finding:
    name = device_name("npu")
    if name == NO_NPU:
        return Finding("npu", "NPU", State.MISSING, "npu-smi finds none", "run on Atlas A3 or A2, with its driver")
    return Finding("npu", "NPU", State.OK, name)


def _torch_npu() -> list[Finding]:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        answer = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False,
            timeout=PROBE_TIMEOUT_S, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [Finding("npu", "torch_npu", State.WRONG, "its import hangs", "check the driver with npu-smi info")]
    if answer.returncode:
        lines = [line for line in answer.stderr.splitlines() if "Error" in line] or ["its import fails"]
        return [Finding("npu", "torch_npu", State.WRONG, lines[-1][:120], "install CANN and source its set_env.sh")]
    version, count, takes_none, name = answer.stdout.split()[-4:]
    return [
        Finding("npu", "torch_npu", State.OK, f"{version}; {what_is_tested(version)}"),
        _torchair(takes_none == "True"),
        _devices(int(count), name),
    ]


def _devices(count: int, name: str) -> Finding:
    if not count:
        return Finding("npu", "devices", State.MISSING, "torch_npu finds none", "check npu-smi info and the driver")
    if not has_superkernel(name):
        return Finding("npu", "devices", State.WRONG, f"{count} x {name}", "SuperKernel needs Atlas A3 or A2")
    return Finding("npu", "devices", State.OK, f"{count} x {name}")


def _torchair(takes_none: bool) -> Finding:
    if takes_none:
        return Finding("npu", "torchair", State.OK, "SuperKernel scopes, including None")
    fix = "install a torch_npu whose torchair is 7.3.0 or later"
    return Finding("npu", "torchair", State.WRONG, "too old for None as a scope", fix)


def examine_program(python: ProgramPython) -> Sequence[Finding]:
    """Return a finding for each requirement of a program with SuperKernel scopes, in its own Python."""
    fix = "source CANN's set_env.sh in this shell, or in the recipe's start scripts"
    if not (home := python.variables.get("ASCEND_HOME_PATH")):
        cann = Finding("npu", "CANN", State.MISSING, "ASCEND_HOME_PATH is not set there", fix)
    elif found := str(python.facts.get("cann", "")):
        cann = Finding("npu", "CANN", State.OK, f"{found} in {home}")
    else:
        cann = Finding("npu", "CANN", State.WRONG, f"no toolkit in {home}", fix)
    findings = [cann, _chip()]
    version = python.package("torch_npu")
    if not version:
        fix = "install there the torch_npu that the program's requirements name"
        return [*findings, Finding("npu", "torch_npu", State.MISSING, "", fix)]
    if "torch_npu" not in python.facts:
        found = python.import_problem("torch_npu") or f"{version}, not imported, as torch is not"
        fix = "source CANN's set_env.sh before, and see that torch_npu fits the torch there"
        return [*findings, Finding("npu", "torch_npu", State.WRONG, found, fix)]
    findings.append(Finding("npu", "torch_npu", State.OK, version))
    if problem := python.import_problem("torchair"):
        fix = "install what it lacks; TorchAir needs protobuf, without saying so"
        return [*findings, Finding("npu", "torchair", State.WRONG, problem, fix)]
    findings.append(_torchair(bool(python.facts.get("takes_none"))))
    if problem := python.import_problem("devices"):
        return [*findings, Finding("npu", "devices", State.WRONG, problem, "check npu-smi info and the driver")]
    return [*findings, _devices(int(python.facts.get("devices", 0)), str(python.facts.get("device", "")))]
