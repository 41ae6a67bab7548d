"""Processor, accelerators and packages of this machine, read without importing torch."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

NOT_INSTALLED = "not installed"
NO_NPU = "no NPU"
PROBE_TIMEOUT_S = 300.0
"""Time limit for a process that imports a package to check it."""


def device_name(device: str) -> str:
    """Return the processor's name, with the number of cores or chips, or the GPU's with its driver."""
    if device == "cuda":
        return _gpu_name()
    if device == "npu":
        return _npu_name()
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def package_version(package: str) -> str:
    """Return the version of an installed package, or ``NOT_INSTALLED``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpu_name() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "no NVIDIA GPU"
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603
    return answer.stdout.strip().partition("\n")[0] or "no NVIDIA GPU"


def _npu_name() -> str:
    command = shutil.which("npu-smi")
    if command is None:
        return NO_NPU
    answer = subprocess.run([command, "info", "-m"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    rows = [line.split() for line in answer.stdout.splitlines()[1:] if line.split()]
    chips = sorted({" ".join(row[3:]) for row in rows if len(row) > 3 and row[3] != "Mcu"})
    return f"{len(rows)} x {', '.join(chips)}" if chips else NO_NPU
