"""A backend and a runner from another package: nothing of sktune is touched, and a search runs on them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT, TESTS

MODEL = f"{ROOT}/tests/models/pointwise.py:target"
ONE_TRIAL = f"""
from pathlib import Path
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.runners import make_runner
from sktune.runners.base import JudgeRequest, RunnerSetup
from sktune.targets import describe

spec, _ = describe({MODEL!r}, backend="toy")
with make_runner(RunnerSetup(spec, SpaceSpec(), Path("study"), Path("cache"))) as runner:
    opened = runner.open()
    units = [unit.name for unit in opened.layout.units]
    outcome = runner.judge(JudgeRequest(Plan((Scope(units[0], units[-1]),)), "trial.log"), lambda stage: None)
    print(opened.description, outcome.speedup.ratio, outcome.verification is not None, sep="|")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a process that finds the package as if it were installed."""
    (tmp_path / "toy.py").write_text((TESTS / "contract" / "toy.py").read_text())
    package = tmp_path / "toy-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[sktune.backends]\ntoy = toy:TOY\ntoy-computed = toy:COMPUTED\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    """Return what a Python process prints."""
    command = [sys.executable, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_search_runs_on_a_backend_and_a_runner_of_another_package(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """To the end; report and trials name it and its options."""
    command = ["-m", "sktune.cli", "search", "--model", MODEL, "--backend", "toy-computed", "--trials", "3"]
    last = json.loads(run([*command, "--study", "s", "--json"], environment, tmp_path).splitlines()[-1])
    assert (last["event"], last["trials"], last["processes"]) == ("study_finished", 3, 1)
    report = (tmp_path / "runs" / "s" / "report.md").read_text()
    assert "a toy" in report
    assert "- backend: toy-computed" in report
    assert "pause" in (tmp_path / "runs" / "s" / "trials.csv").read_text().splitlines()[0]


@pytest.mark.slow
def test_sktunes_workers_run_a_backend_of_another_package(environment: dict[str, str], tmp_path: Path) -> None:
    """They compile with it, verify it and measure it."""
    description, ratio, is_verified = run(["-c", ONE_TRIAL], environment, tmp_path).splitlines()[-1].split("|")
    assert "by the toy" in description
    assert float(ratio) > 1.5
    assert is_verified == "True"
