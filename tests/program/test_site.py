"""The folder on ``PYTHONPATH``: nothing happens without a plan or a run, and nothing is written to it."""

import json
import os
import shutil
from pathlib import Path

import pytest

from sktune.launch import SITE
from tests.program.pythons import STANDINS, VERSIONS, files_of, python, ran

MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"


@pytest.mark.parametrize("version", VERSIONS)
def test_without_variables_nothing_is_imported(version: str) -> None:
    """Beside the module that Python imports by itself."""
    command = [python(version), "-c", MODULES]
    without = json.loads(ran(command, variables={"PYTHONPATH": ""}).stdout)
    assert set(json.loads(ran(command).stdout)) - set(without) <= {"sitecustomize"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hidden_sitecustomize_runs_as_before(version: str, tmp_path: Path) -> None:
    """Under its name and with the whole path; one that fails does not take the plan away."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; NOTE = 'hidden'; sys.path.append('added')")
    code = "import sys, sitecustomize; print(sitecustomize.NOTE, sys.path[-1], sys.path[1])"
    done = ran([python(version), "-c", code], hidden)
    assert done.stdout.split() == ["hidden", "added", str(SITE)], done.stderr
    (hidden / "sitecustomize.py").write_text("raise ImportError('of something else')")
    (tmp_path / "plan.json").write_text('{"version": 1, "backend": "npu", "plan": {"scopes": []}}')
    plan = {"SKTUNE_PLAN": str(tmp_path / "plan.json")}
    code = "import torch; print(torch.compile.__qualname__)"
    done = ran([python(version), "-c", code], hidden, STANDINS, variables=plan)
    assert done.stdout.split() == ["Rank.compile"]
    assert "Error in sitecustomize" in done.stderr


def test_a_plan_is_found_from_any_folder(tmp_path: Path) -> None:
    """Its path is that of the folder where the program begins; an empty one is none."""
    (tmp_path / "plan.json").write_text('{"version": 1, "backend": "npu", "plan": {"scopes": []}}')
    code = "import os; os.chdir('/'); import torch; print(torch.compile.__qualname__)"
    for name, qualname in (("plan.json", "Rank.compile"), ("", "compile")):
        command = [python("3.12"), "-c", code]
        done = ran(command, STANDINS, variables={"SKTUNE_PLAN": os.path.relpath(tmp_path / name) if name else ""})
        assert done.stdout.split() == [qualname], done.stderr


def test_the_folder_twice_on_the_path_is_no_trouble(tmp_path: Path) -> None:
    """As when one script sets it, and another one does again, through a link."""
    (tmp_path / "link").symlink_to(SITE)
    done = ran([python("3.12"), "-c", "print('fine')"], SITE, tmp_path / "link")
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize("version", VERSIONS)
def test_programs_write_nothing_into_the_package(version: str, tmp_path: Path) -> None:
    """Of the folder that is mounted, or shared by many; Python itself keeps the code of ``sitecustomize``."""
    site = tmp_path / "site"
    shutil.copytree(SITE, site, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "plan.json").write_text('{"version": 1, "backend": "npu", "plan": {"scopes": []}}')
    before = files_of(site)
    path = os.pathsep.join([str(site), str(STANDINS)])
    variables = {"SKTUNE_PLAN": str(tmp_path / "plan.json"), "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": ""}
    done = ran([python(version), "-c", "import torch; print(torch.compile.__module__)"], variables=variables)
    assert done.stdout.split() == ["sktune_program.rank"], done.stderr
    written = {name for name in files_of(site) - before if "sitecustomize" not in name}
    assert written <= {"__pycache__"}


@pytest.mark.parametrize("variable", ["SKTUNE_PLAN", "SKTUNE_RUN"])
def test_a_python_without_torch_is_left_alone(variable: str) -> None:
    """A launch script starts many: nothing is read before torch is imported."""
    done = ran([python("3.12"), "-c", "print('fine')"], variables={variable: "nowhere"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
