"""Describes Inductor before it is imported."""

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sktune.backends.inductor.options import OPTIONS
from sktune.backends.info import BackendInfo, Finding, State
from sktune.backends.installed import device_name
from sktune.backends.program_python import ProgramPython

RETAINED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(sys.maxsize)}
"""Makes glibc retain freed memory, except for blocks over 32 MiB (mallopt(3)).

By default it adapts both thresholds, the first up to 32 MiB, to the blocks that a process frees; in one of four or five
processes, each step then returned memory to the system and took it again, page by page, and plans were up to 15% slower
(benchmarks/results/processes-cpu-2-cores.md).
"""


def _worker_environment(device: str) -> Mapping[str, str]:
    """Return a worker's memory settings: on a CPU ``RETAINED_MEMORY``, unless the user has set the variables."""
    defaults = RETAINED_MEMORY if device == "cpu" else {}
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def _examine() -> Sequence[Finding]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    cpu = Finding("inductor", "processor", State.OK, device_name("cpu"))
    if compiler:
        return [cpu, Finding("inductor", "C++ compiler", State.OK, Path(compiler).name)]
    return [cpu, Finding("inductor", "C++ compiler", State.MISSING, "", "install g++ (Debian: apt-get install g++)")]


def _examine_program(python: ProgramPython) -> Sequence[Finding]:
    """Return whether sktune can compile a program's decode step in regions, with the torch that the program has."""
    lowest, beyond = _torch_versions()
    version = str(python.facts.get("torch", ""))
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    wanted = f"{'.'.join(map(str, lowest))} or later, before {'.'.join(map(str, beyond))}"
    if not version:
        regions = Finding("inductor", "regions", State.WRONG, "torch cannot be imported", "see torch")
    elif lowest <= number < beyond:
        regions = Finding("inductor", "regions", State.OK, f"torch {version}")
    else:
        found = f"torch {version}: sktune does not know this Inductor's internals"
        regions = Finding("inductor", "regions", State.WRONG, found, f"use torch {wanted} there, or another backend")
    if compiler := str(python.facts.get("compiler", "")):
        return [regions, Finding("inductor", "C++ compiler", State.OK, compiler)]
    return [regions, Finding("inductor", "C++ compiler", State.MISSING, "", "install g++, or set CXX")]


def _torch_versions() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first version of torch that sktune accepts, and the first one after those, from its own metadata."""
    requirements = importlib.metadata.requires("sktune") or []
    torch = next(text for text in requirements if re.match(r"torch\b(?!_)", text))
    bounds = dict(re.findall(r"(>=|<)\s*(\d+\.\d+)", torch))
    first, beyond = (tuple(map(int, bounds[sign].split("."))) for sign in (">=", "<"))
    return first, beyond


INFO = BackendInfo(
    name="inductor",
    backend_class="sktune.backends.inductor.backend:InductorBackend",
    devices=("cpu", "cuda"),
    options=OPTIONS,
    compiles_programs=True,
    artifact_installer="sktune.backends.inductor.artifacts:install",
    worker_environment=_worker_environment,
    examine=_examine,
    examine_program=_examine_program,
)
