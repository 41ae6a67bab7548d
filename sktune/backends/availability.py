"""Which requirements of each backend this machine meets; read without importing torch."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sktune.backends import all_backends
from sktune.backends.info import Finding, State
from sktune.backends.installed import NOT_INSTALLED, PROBE_TIMEOUT_S, device_name, package_version


def examine() -> tuple[Finding, ...]:
    """Return a finding for each requirement on this machine."""
    return (*_common(), *(finding for info in all_backends() for finding in info.examine()))


def usable(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the backends whose requirements are all met."""
    broken = {finding.backend for finding in findings if finding.state is not State.OK}
    return () if "all" in broken else tuple(info.name for info in all_backends() if info.name not in broken)


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend, its device, and why: ``npu``, ``captured``, ``cuda``, ``cpu``, ``full_scale`` or ``no_compiler``."""

    backend: str
    device: str | None
    why: str


def best_backend(*, is_full_scale: bool, is_captured: bool = False) -> BackendChoice:
    """Return the backend closest to an NPU on this machine.

    Args:
        is_full_scale: whether the model has its published size: without an NPU, it is simulated.
        is_captured: whether the program that gets the plan uses npugraph_ex.
    """
    backends = usable(examine())
    if is_captured and "npugraph-ex" in backends:
        return BackendChoice("npugraph-ex", "npu", "captured")
    if "npu" in backends:
        return BackendChoice("npu", "npu", "npu")
    if is_full_scale:
        return BackendChoice("sim", None, "full_scale")
    if "inductor" not in backends:
        return BackendChoice("sim", None, "no_compiler")
    device = "cuda" if _has_cuda() else "cpu"
    return BackendChoice("inductor", device, device)


def _has_cuda() -> bool:
    """Whether torch can use a GPU: if there is one, checked in a separate process."""
    if device_name("cuda") == "no NVIDIA GPU":
        return False
    probe = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    try:
        answer = subprocess.run(probe, capture_output=True, check=False, timeout=PROBE_TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0


def _common() -> list[Finding]:
    findings = []
    for package in ("torch", "transformers", "optuna"):
        version = package_version(package)
        is_installed = version != NOT_INSTALLED
        fix = "" if is_installed else f"pip install {package}"
        findings.append(Finding("all", package, State.OK if is_installed else State.MISSING, version, fix))
    return findings
