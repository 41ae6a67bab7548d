"""A backend and a runner from another package: nothing of sktune is touched, and a search runs on each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT, TESTS, install_toy

SAID = {"toy": ("by the toy", "- backend: toy", "- toy: 1"), "toy-computed": ("a toy", "- backend: toy-computed")}


@pytest.mark.parametrize("backend", SAID)
def test_a_search_runs_on_another_package(backend: str, tmp_path: Path) -> None:
    """To the end; the report names the backend, and its options are searched."""
    toy = (TESTS / "contract" / "toy.py").read_text()
    install_toy(tmp_path / "site", toy, "[sktune.backends]\ntoy = toy:TOY\ntoy-computed = toy:COMPUTED\n")
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = ["--model", f"{ROOT}/tests/models/pointwise.py:target", "--backend", backend, "--verify-steps", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.command", "search", *words, "--trials", "2", "--study", "s", "--json"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "SKTUNE_TESTS_FINAL_PROCESSES": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["event"], last["trials"], last["processes"]) == ("study_finished", 2, 2 if backend == "toy" else 1)
    assert all(line in (tmp_path / "runs" / "s" / "report.md").read_text() for line in SAID[backend])
    assert "pause" in (tmp_path / "runs" / "s" / "trials.csv").read_text().splitlines()[0]
