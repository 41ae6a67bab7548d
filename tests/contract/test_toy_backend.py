"""A backend and a runner from another package: nothing of sktune is touched, and a search runs on each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT, TESTS


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a process that finds the package as if it were installed."""
    (tmp_path / "toy.py").write_text((TESTS / "contract" / "toy.py").read_text())
    package = tmp_path / "toy-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[sktune.backends]\ntoy = toy:TOY\ntoy-computed = toy:COMPUTED\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "SKTUNE_TESTS_FINAL_PROCESSES": "3"}


@pytest.mark.parametrize(
    ("backend", "processes", "lines"),
    [
        pytest.param("toy", 3, ("by the toy", "- backend: toy", "- toy: 1"), marks=pytest.mark.slow, id="in workers"),
        pytest.param("toy-computed", 1, ("a toy", "- backend: toy-computed"), id="in its own runner"),
    ],
)
def test_a_search_runs_on_another_package(
    backend: str, processes: int, lines: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    """To the end; the report names the backend, and its options are searched."""
    model = f"{ROOT}/tests/models/pointwise.py:target"
    command = ["search", "--model", model, "--backend", backend, "--trials", "3", "--study", "s", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.command", *command, "--verify-steps", "16"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["event"], last["trials"], last["processes"]) == ("study_finished", 3, processes)
    report = (tmp_path / "runs" / "s" / "report.md").read_text()
    assert all(line in report for line in lines)
    assert "pause" in (tmp_path / "runs" / "s" / "trials.csv").read_text().splitlines()[0]
