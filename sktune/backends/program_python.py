"""Looks into the Python that runs a program, which need not be sktune's: versions, what can be imported, devices."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sktune.core.errors import BadInputError

LOOK_S = 55.0
"""Time limit for a look into a Python; most of it is for its imports."""
_AFTER_IMPORTS_S = 5.0
_PROBE = Path(__file__).with_name("python_probe.py")
_WITH_ENVIRONMENT = (
    'start=("${@:2:$1}"); for file in "${@:$1+2}"; do source "$file"; done >/dev/null 2>&1; exec "${start[@]}"'
)
"""Sources files and runs a command: ``bash -c TEXT sktune COUNT ARGUMENT... FILE...``."""


@dataclass(frozen=True, slots=True)
class ProgramPython:
    """What is known of a program's Python.

    Attributes:
        path: as it was given.
        sourced: files that were sourced before it started.
        facts: what ``python_probe`` said; of a fact that is said twice, the last.
        hangs: whether it did not even say its version in time.
    """

    path: str
    sourced: tuple[Path, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    hangs: bool = False

    @property
    def version(self) -> str:
        """Its version; empty if it did not say it."""
        return str(self.facts.get("version", ""))

    def package(self, name: str) -> str:
        """Return the version of an installed package, empty if it is not installed."""
        return str(self.facts.get("versions", {}).get(name, ""))

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that decide what it finds."""
        found: Mapping[str, str] = self.facts.get("variables", {})
        return found

    def import_problem(self, name: str) -> str:
        """Return why the import of ``name`` failed; empty if it did not, or was not reached."""
        ended = self.facts.get("imports_ended", 0)
        if ended == 0 or self.facts.get("importing") != name:
            return ""
        if ended == "time":
            return "its import did not end in time"
        return str(self.facts.get("last_line") or f"its import ended the process with {ended}")


def look_into(
    path: str, sourced: Sequence[Path] = (), variables: Mapping[str, str] | None = None, limit_s: float = LOOK_S
) -> ProgramPython:
    """Start a Python once and return what it says of itself.

    Args:
        path: of the Python, or its name on ``PATH``.
        sourced: shell files that set its environment, such as CANN's ``setenv.bash``.
        variables: that differ from this process's.
        limit_s: after which it is ended, with all that it has started.

    Raises:
        BadInputError: there is no such program, or it is no Python.
    """
    environment = {**os.environ, **(variables or {})}
    if shutil.which(path, path=environment.get("PATH")) is None:
        raise BadInputError(f"there is no program {path!r}; name the Python of the program with --python")
    text = _PROBE.read_text(encoding="utf-8")
    start = [path, "-c", text, text, str(max(limit_s - _AFTER_IMPORTS_S, limit_s / 2))]
    if sourced:
        start = ["bash", "-c", _WITH_ENVIRONMENT, "sktune", str(len(start)), *start, *map(str, sourced)]
    with tempfile.TemporaryDirectory() as empty:  # `python -c` imports from its working folder
        output, errors, has_ended = _output(start, environment, empty, limit_s)
    facts: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("sktune:"):
            with suppress(ValueError):
                facts |= json.loads(line.removeprefix("sktune:"))
    if not facts and has_ended:
        last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "it said nothing")
        raise BadInputError(f"{path} is no Python from 3.9 on ({last[:200]}); name the program's with --python")
    return ProgramPython(path, tuple(sourced), facts, hangs=not facts)


def _output(start: Sequence[str], environment: Mapping[str, str], folder: str, limit_s: float) -> tuple[str, str, bool]:
    """Return what a command prints, its errors, and whether it has ended in time; no process of its group is left."""
    try:
        process = subprocess.Popen(  # noqa: S603 - what the user names
            start, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
            env=environment, start_new_session=True, text=True, errors="replace",
        )  # fmt: skip
    except OSError as failure:
        raise BadInputError(
            f"{start[0]} cannot be started ({failure.strerror}); name the program's Python with --python"
        ) from failure
    has_ended = True
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        has_ended = False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if not has_ended:
        output, errors = process.communicate()  # what it had said before
    return output, errors, has_ended
