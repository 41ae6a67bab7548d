"""What is known of Inductor before it is imported."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sktune.backends.inductor.options import OPTIONS
from sktune.backends.info import BackendInfo, Finding, State
from sktune.backends.installed import device_name

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(sys.maxsize)}
"""Has glibc keep what is freed, but for blocks over 32 MiB (mallopt(3)).

Left alone it adapts both thresholds, the first up to 32 MiB, to what a process happens to free; in one process of four
or five each step then gave memory back and took it again, page by page, and plans were up to 15% slower
(benchmarks/results/processes-cpu-2-cores.md).
"""


def _worker_environment(device: str) -> Mapping[str, str]:
    """Return what a worker's environment says of memory: on a processor ``KEPT_MEMORY``, or what the user has set."""
    kept = KEPT_MEMORY if device == "cpu" else {}
    return {name: os.environ.get(name, value) for name, value in kept.items()}


def _examine() -> Sequence[Finding]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    cpu = Finding("inductor", "processor", State.OK, device_name("cpu"))
    if compiler:
        return [cpu, Finding("inductor", "C++ compiler", State.OK, Path(compiler).name)]
    return [cpu, Finding("inductor", "C++ compiler", State.MISSING, "", "install g++ (Debian: apt-get install g++)")]


INFO = BackendInfo(
    name="inductor",
    backend_class="sktune.backends.inductor.backend:InductorBackend",
    devices=("cpu", "cuda"),
    options=OPTIONS,
    program_compiler="sktune.backends.inductor.backend:compile_marked",
    artifact_installer="sktune.backends.inductor.artifacts:install",
    worker_environment=_worker_environment,
    examine=_examine,
)
