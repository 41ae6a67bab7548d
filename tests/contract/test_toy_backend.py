"""A backend from another package: a module and an entry point, and nothing of sktune is touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT

MODULE = '''
"""Runs the step as it is, and waits where no scope is."""

import time

from sktune.backends.info import BackendInfo
from sktune.backends.options import ListedOptions, OptionSpec

OPTIONS = ListedOptions("toy", {"pause": OptionSpec(("short", "long"), "short", "how long a scope waits")})
INFO = BackendInfo("toy", "toy_backend:Toy", devices=("cpu",), options=OPTIONS, fingerprint=lambda spec: {"toy": "1"})
PAUSE_S = {"short": 0.0, "long": 0.002}


class Toy:
    notes = "by the toy"

    def __init__(self, target, layout, inputs):
        self.target, self.names = target, [unit.name for unit in layout.units]

    def compile(self, plan, at=lambda label: None):
        from sktune.backends.base import Compiled, Step

        inside = sum(self.names.index(one.last) - self.names.index(one.first) + 1 for one in plan.scopes)
        pauses = [PAUSE_S[dict(one.options).get("pause", "short")] for one in plan.scopes]
        wait_s = 0.001 * (len(self.names) - inside) + sum(pauses)

        def run(*inputs):
            time.sleep(wait_s)
            return self.target.decode_step(*inputs)

        return Compiled(Step(run), regions=len(plan.scopes), code_digest=plan.digest)

    def written(self):
        return {}

    def references(self):
        return {}
'''


@pytest.mark.slow
def test_a_search_runs_on_a_backend_of_another_package(tmp_path: Path) -> None:
    """To the end, in workers; report and study name it, and its options are searched."""
    (tmp_path / "toy_backend.py").write_text(MODULE)
    package = tmp_path / "toy-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[sktune.backends]\ntoy = toy_backend:INFO\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    model = f"{ROOT}/tests/models/pointwise.py:target"
    command = [sys.executable, "-m", "sktune.cli", "search", "--model", model, "--backend", "toy", "--trials", "4"]
    done = subprocess.run(
        [*command, "--study", "s", "--verify-steps", "16", "--json"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (events[-1]["event"], events[-1]["trials"], events[-1]["processes"]) == ("study_finished", 4, 3)
    report = (tmp_path / "runs" / "s" / "report.md").read_text()
    assert "by the toy" in report
    assert "- backend: toy" in report
    assert "- toy: 1" in report
    assert "pause" in (tmp_path / "runs" / "s" / "trials.csv").read_text().splitlines()[0]
