"""Fingerprints: what a study's figures hold for. Read without importing torch, so that a resume is quick."""

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from sktune.backends.environment import numerics_environment
from sktune.backends.sim.constants import ATLAS_A3, load_constants
from sktune.core.space import SpaceSpec
from sktune.targets import TargetSpec

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(sys.maxsize)}
"""Has glibc keep what is freed, but for blocks over 32 MiB (mallopt(3)).

Left alone it adapts both thresholds, the first up to 32 MiB, to what a process happens to free; in one process of four
or five each step then gave memory back and took it again, page by page, and plans were up to 15% slower
(benchmarks/results/processes-cpu-2-cores.md).
"""


FORMAT = "2"
"""Of fingerprints: since 2 they hold the environment, and files by their content alone."""


def fingerprint(spec: TargetSpec, space: SpaceSpec) -> dict[str, str]:
    """Return what must be equal for a study to be continued: versions, device, environment, model and space.

    What the model's import brings in is known to the worker alone: ``TuningStudy.check_modules`` compares that.
    """
    space_digest = hashlib.sha256(space.model_dump_json().encode()).hexdigest()[:16]
    found = {
        "format": FORMAT,
        "sktune": package_version("sktune"),
        "torch": package_version("torch"),
        "transformers": package_version("transformers"),
        "python": platform.python_version(),
        "backend": spec.backend,
        "device": "simulated Atlas A3, one die" if spec.backend == "sim" else device_name(spec.device),
        # Spelt out, so that a user sees what to give; the model's digest depends on them, too.
        **spec.choices(),
        "model": f"{spec.name} {spec.fingerprint()[:16]}",
        "space": space_digest,
    }
    if settings := memory_settings(spec):
        found["memory"] = " ".join(f"{name}={value}" for name, value in settings.items())
    if spec.backend == "npu":
        found |= {"torch_npu": package_version("torch_npu"), "cann": cann_version()}
    if spec.backend != "sim":  # a simulated figure takes no time
        found |= numerics_environment(spec.device)
    if spec.backend == "sim":
        found["torch_npu"] = package_version("torch_npu")  # where it is installed, its graph is simulated
        found["constants"] = load_constants(Path(spec.constants) if spec.constants else ATLAS_A3).digest
    return found


def memory_settings(spec: TargetSpec) -> dict[str, str]:
    """Return what a worker's environment says of memory: on a processor ``KEPT_MEMORY``, or what the user has set.

    Nothing where the environment is set by a script of the user's.
    """
    if (spec.backend, spec.device) != ("inductor", "cpu") or spec.has_own_environment:
        return {}
    return {name: os.environ.get(name, value) for name, value in KEPT_MEMORY.items()}


def device_name(device: str) -> str:
    """Return the processor's name and how much of it there is."""
    if device == "cuda":
        return _gpu_name()
    if device == "npu":
        return _npu_name()
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def package_version(package: str) -> str:
    """Return the version of an installed package, or ``not installed``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


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
        return "no NPU"
    answer = subprocess.run([command, "info", "-m"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    rows = [line.split() for line in answer.stdout.splitlines()[1:] if line.split()]
    chips = sorted({" ".join(row[3:]) for row in rows if len(row) > 3 and row[3] != "Mcu"})
    return f"{len(rows)} x {', '.join(chips)}" if chips else "no NPU"


def cann_version() -> str:
    """Return CANN's version from its installation, or ``not installed``."""
    home = os.environ.get("ASCEND_HOME_PATH")
    for path in sorted(Path(home).glob("*/ascend_toolkit_install.info")) if home else []:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("version="):
                return line.partition("=")[2].strip()
    return "not installed"
