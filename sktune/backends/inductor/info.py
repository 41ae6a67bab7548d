"""Describes Inductor before it is imported."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sktune.backends.info import BackendInfo
from sktune.backends.installed import device_name
from sktune.backends.options import ListedOptions
from sktune.backends.program_python import ProgramPython
from sktune.core.events.commands import Finding, State
from sktune.core.plan import Option
from sktune.program.sktune_program.inductor.options import INDUCTOR
from sktune.program.sktune_program.inductor.versions import problem_with

EXACT: Mapping[str, Option] = {name: spec.exact for name, spec in INDUCTOR.items() if spec.exact is not None}
OPTIONS = ListedOptions("inductor", INDUCTOR)


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
    version = str(python.facts.get("torch", ""))
    if not version:
        state = State.WRONG if python.package("torch") else State.MISSING
        regions = Finding("inductor", "regions", state, "torch cannot be imported", "see torch")
    elif problem := problem_with(version):
        found, _, fix = problem.partition("; ")
        regions = Finding("inductor", "regions", State.WRONG, found, fix)
    else:
        regions = Finding("inductor", "regions", State.OK, f"torch {version}")
    if compiler := str(python.facts.get("compiler", "")):
        return [regions, Finding("inductor", "C++ compiler", State.OK, compiler)]
    return [regions, Finding("inductor", "C++ compiler", State.MISSING, "", "install g++, or set CXX")]


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
