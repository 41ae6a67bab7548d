"""Which requirements of each backend this machine meets; read without importing torch."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sktune.backends import all_backends
from sktune.backends.info import attribute_at
from sktune.backends.program_python import ProgramPython
from sktune.backends.this_machine import NOT_INSTALLED, PROBE_TIMEOUT_S, device_name, package_version
from sktune.core.events.commands import Finding, State

OLDEST_PYTHON, OLDEST_TORCH = (3, 9), (2, 6)
"""Of a program's side."""


def examine() -> tuple[Finding, ...]:
    """Return a finding for each requirement on this machine."""
    addresses = [info.examine for info in all_backends() if info.examine]
    return (*_common(), *(finding for address in addresses for finding in attribute_at(address)()))


def examine_program(python: ProgramPython) -> tuple[Finding, ...]:
    """Return a finding for each requirement of a recipe's program, in the Python that runs it."""
    if python.hangs:
        found = f"{python.path} did not say its version in time"
        return (Finding("all", "Python", State.WRONG, found, "see why it does not start, or name another one"),)
    addresses = [info.examine_program for info in all_backends() if info.examine_program]
    return (*_common_of(python), *(finding for address in addresses for finding in attribute_at(address)(python)))


def usable(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the backends whose requirements are all met."""
    broken = {finding.backend for finding in findings if finding.state is not State.OK}
    if "all" in broken:
        return ()
    return tuple(info.name for info in all_backends() if broken.isdisjoint({info.name, *info.needs}))


def usable_in_program(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the backends that a program's Python can be searched with: those whose findings on it are all good."""
    examined = {finding.backend for finding in findings}
    return tuple(name for name in usable(findings) if name in examined)


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


def _common_of(python: ProgramPython) -> list[Finding]:
    sourced = ", ".join(map(str, python.sourced))
    variables = ", ".join(f"{name}={value}" for name, value in python.variables.items())
    facts, found = python.facts, f"sourced: {sourced}" if sourced else "this shell's, nothing sourced"
    findings = [
        _versioned("Python", python.version, OLDEST_PYTHON, f", {facts['machine']}, {facts['executable']}"),
        Finding("all", "environment", State.OK, f"{found}; {variables or 'none of the variables that matter is set'}"),
    ]
    version = python.package("torch")
    if not version:
        fix = "install there the torch that the program's requirements name, or name another Python"
        findings.append(Finding("all", "torch", State.MISSING, NOT_INSTALLED, fix))
    elif problem := python.import_problem("torch"):
        findings.append(Finding("all", "torch", State.WRONG, f"{version}: {problem}", "repair it there"))
    else:
        findings.append(_versioned("torch", version, OLDEST_TORCH))
    for package in ("transformers", "numpy"):
        found = python.package(package) or f"{NOT_INSTALLED}; sktune does not need it there"
        findings.append(Finding("all", package, State.OK, found))
    return findings


def _versioned(what: str, version: str, oldest: tuple[int, int], more: str = "") -> Finding:
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if number >= oldest:
        return Finding("all", what, State.OK, f"{version}{more}")
    needed = ".".join(map(str, oldest))
    return Finding("all", what, State.WRONG, f"{version}{more}", f"use {what} {needed} or later for the program")
