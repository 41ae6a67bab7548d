"""Which requirements of Inductor this machine meets, or the Python of a program: a C++ compiler and a known torch."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sktune.backends.program_python import ProgramPython
from sktune.backends.this_machine import device_name
from sktune.core.events.commands import Finding, State
from sktune.program.sktune_program.inductor.versions import problem_with


def examine() -> Sequence[Finding]:
    """Return a finding for each requirement on this machine."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    cpu = Finding("inductor", "processor", State.OK, device_name("cpu"))
    if compiler:
        return [cpu, Finding("inductor", "C++ compiler", State.OK, Path(compiler).name)]
    return [cpu, Finding("inductor", "C++ compiler", State.MISSING, "", "install g++ (Debian: apt-get install g++)")]


def examine_program(python: ProgramPython) -> Sequence[Finding]:
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
