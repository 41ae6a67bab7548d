"""Other Pythons on this machine, and programs that run in them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sktune.launch import SITE
from tests.builders import TESTS

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
STANDINS = TESTS / "projects" / "standins"
VARIABLES = ("PYTHONPATH", "SKTUNE_PLAN", "SKTUNE_RUN", "RANK", "RANK_ID", "LOCAL_RANK", "PYTHONDONTWRITEBYTECODE")
"""Not passed on to programs."""


def python(version: str) -> str:
    """Return a Python of a version; the test is skipped if this machine has none."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} in ~/.pyenv/versions")
    return str(found[-1])


def ran(
    command: list[str], *folders: Path, variables: Mapping[str, str] | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with the site folder and ``folders`` on its ``PYTHONPATH``."""
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment = inherited | {"PYTHONPATH": os.pathsep.join(map(str, (SITE, *folders)))} | dict(variables or {})
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=directory)


def files_of(folder: Path) -> set[str]:
    """Return all paths in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
