"""What a machine has of what sktune needs, by backend: a table for people, read without importing torch."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sktune.backends import all_backends
from sktune.backends.info import Finding, State
from sktune.backends.installed import NOT_INSTALLED, PROBE_TIMEOUT_S, device_name, package_version


def examine() -> tuple[Finding, ...]:
    """Look at this machine."""
    return (*_common(), *(finding for info in all_backends() for finding in info.examine()))


def usable(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the backends that lack nothing."""
    broken = {finding.backend for finding in findings if finding.state is not State.OK}
    return () if "all" in broken else tuple(info.name for info in all_backends() if info.name not in broken)


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
        is_there = version != NOT_INSTALLED
        fix = "" if is_there else f"pip install {package}"
        found.append(Finding("all", package, State.OK if is_there else State.MISSING, version, fix))
    return found
