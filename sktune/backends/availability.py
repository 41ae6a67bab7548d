"""What a machine has of what sktune needs, by backend: a table for people, read without importing torch_npu itself.

torch_npu is looked at in a process of its own: without CANN its import fails, and takes the interpreter's torch along.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sktune.backends.fingerprint import cann_version, device_name, package_version
from sktune.core.scope_options import has_superkernel

PROBE_TIMEOUT_S = 300.0
_PROBE = """
import torch, torch_npu, torchair
takes_none = dict(torchair.scope.super_kernel(None).attrs)["_super_kernel_scope"] is not None
count = torch.npu.device_count()
print(torch_npu.__version__, count, takes_none, torch.npu.get_device_name(0) if count else "-")
"""


class State(StrEnum):
    """Whether a thing is there."""

    OK = "ok"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: what was looked for, for which backend, what is there, and how to get it where it is not."""

    backend: str
    what: str
    state: State
    found: str
    fix: str = ""


def examine() -> tuple[Finding, ...]:
    """Look at this machine."""
    return (*_common(), *_inductor(), *_npu())


def usable(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the backends that lack nothing."""
    backends = dict.fromkeys(finding.backend for finding in findings if finding.backend != "all")
    broken = {finding.backend for finding in findings if finding.state is not State.OK}
    return () if "all" in broken else (*(name for name in backends if name not in broken), "sim")


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend and its device, and why it: ``npu``, ``cuda``, ``cpu``, ``full_scale`` or ``no_compiler``."""

    backend: str
    device: str | None
    why: str


def best_backend(*, is_full_scale: bool) -> BackendChoice:
    """Return what comes nearest to an NPU on this machine; a model at its published size is simulated without one."""
    backends = usable(examine())
    if "npu" in backends:
        return BackendChoice("npu", "npu", "npu")
    if is_full_scale:
        return BackendChoice("sim", None, "full_scale")
    if "inductor" not in backends:
        return BackendChoice("sim", None, "no_compiler")
    device = "cuda" if _has_cuda() else "cpu"
    return BackendChoice("inductor", device, device)


def _has_cuda() -> bool:
    """Whether torch can use a GPU; it is asked in a process of its own, and only where there is one."""
    if device_name("cuda") == "no NVIDIA GPU":
        return False
    probe = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    try:
        answer = subprocess.run(probe, capture_output=True, check=False, timeout=PROBE_TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0


def _common() -> list[Finding]:
    found = []
    for package in ("torch", "transformers", "optuna"):
        version = package_version(package)
        is_there = version != "not installed"
        mend = "" if is_there else f"pip install {package}"
        found.append(Finding("all", package, State.OK if is_there else State.MISSING, version, mend))
    return found


def _inductor() -> list[Finding]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    cpu = Finding("inductor", "processor", State.OK, device_name("cpu"))
    if compiler:
        return [cpu, Finding("inductor", "C++ compiler", State.OK, Path(compiler).name)]
    return [cpu, Finding("inductor", "C++ compiler", State.MISSING, "", "install g++ (Debian: apt-get install g++)")]


def _npu() -> list[Finding]:
    found = [_cann(), _chip()]
    if importlib.util.find_spec("torch_npu") is None:
        return [*found, Finding("npu", "torch_npu", State.MISSING, "", "pip install '.[npu]' in sktune's folder")]
    return [*found, *_torch_npu()]


def _cann() -> Finding:
    home = os.environ.get("ASCEND_HOME_PATH")
    if not home:
        mend = "install CANN's toolkit and kernels, then: source <cann>/set_env.sh"
        return Finding("npu", "CANN", State.MISSING, "ASCEND_HOME_PATH is not set", mend)
    version = cann_version()
    if version == "not installed":
        return Finding("npu", "CANN", State.WRONG, f"no toolkit in {home}", "source set_env.sh of a complete CANN")
    return Finding("npu", "CANN", State.OK, version)


def _chip() -> Finding:
    name = device_name("npu")
    if name == "no NPU":
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
        Finding("npu", "torch_npu", State.OK, version),
        _torchair(takes_none == "True"),
        _devices(int(count), name),
    ]


def _devices(count: int, name: str) -> Finding:
    if not count:
        return Finding("npu", "devices", State.MISSING, "torch_npu sees none", "check npu-smi info, and the driver")
    if not has_superkernel(name):
        return Finding("npu", "devices", State.WRONG, f"{count} x {name}", "SuperKernel needs Atlas A3 or A2")
    return Finding("npu", "devices", State.OK, f"{count} x {name}")


def _torchair(takes_none: bool) -> Finding:
    if takes_none:
        return Finding("npu", "torchair", State.OK, "SuperKernel scopes, None among them")
    mend = "install a torch_npu whose torchair is 7.3.0 or later"
    return Finding("npu", "torchair", State.WRONG, "too old for None as a scope", mend)
