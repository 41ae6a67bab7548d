"""Processor, accelerators, packages and CANN of this machine, read without importing torch."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
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


def cann_version() -> str:
    """Return CANN's version from its installation, or ``NOT_INSTALLED``."""
    home = os.environ.get("ASCEND_HOME_PATH")
    for path in sorted(Path(home).glob("*/ascend_toolkit_install.info")) if home else []:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("version="):
                return line.partition("=")[2].strip()
    return NOT_INSTALLED


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpu_name() -> str:
    text = _output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return text.strip().partition("\n")[0] or "no NVIDIA GPU"


def _npu_name() -> str:
    rows = [line.split() for line in _output_of("npu-smi", "info", "-m").splitlines()[1:] if line.split()]
    chips = sorted({" ".join(row[3:]) for row in rows if len(row) > 3 and row[3] != "Mcu"})
    return f"{len(rows)} x {', '.join(chips)}" if chips else NO_NPU


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one device, in bytes."""

    used: int
    total: int

    @property
    def free(self) -> int:
        """What is not used, in bytes."""
        return self.total - self.used


def device_memory(device: str) -> tuple[DeviceMemory, ...]:
    """Return the memory of each NPU or GPU, as npu-smi or nvidia-smi shows it; empty for other devices."""
    if device == "cuda":
        text = _output_of("nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")
        pairs = re.findall(r"^(\d+), (\d+)$", text, re.MULTILINE)
    elif device == "npu":
        # A chip's row ends with the usage of HBM; the one before, of a server's memory, is also `used / total`.
        pairs = re.findall(r"\d+ */ *\d+ +(\d+) */ *(\d+) *\|\s*$", _output_of("npu-smi", "info"), re.MULTILINE)
    else:
        return ()
    return tuple(DeviceMemory(int(used) << 20, int(total) << 20) for used, total in pairs)


def _output_of(program: str, *arguments: str) -> str:
    command = shutil.which(program)
    if command is None:
        return ""
    answer = subprocess.run(  # noqa: S603 - of the driver
        [command, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    return answer.stdout
