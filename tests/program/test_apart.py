"""A search whose ranks have a Python of their own, in which torch is installed and sktune is not."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.launch import SITE
from sktune.program.sktune_program.task import VERIFIED_STEPS
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from tests.builders import TESTS
from tests.program.pythons import STANDINS, VARIABLES, files_of, ran

NEEDED = ("torch", "torchgen", "functorch", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
          "fsspec", "filelock", "numpy", "setuptools", "_distutils_hack")  # fmt: skip
"""What torch imports, the last of which comes with setuptools; everything else is missing in the program's Python."""
OURS = {"sktune", "pydantic", "yaml", "scipy", "pandas", "optuna", "libcst", "rich", "typer", "transformers"}
NOTES = "NOTES"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch alone; the stand-ins of torch_npu and TorchAir are installed in it."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            origin = Path(spec.origin)
            source = origin.parent if spec.submodule_search_locations else origin
            (packages / source.name).symlink_to(source)
            for beside in source.parent.glob(f"{name}.libs"):
                (packages / beside.name).symlink_to(beside)
    for file in (STANDINS / "ascend").glob("*.py"):
        shutil.copy(file, packages)
    return folder


@pytest.fixture
def project(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is started with the environment's ``python3``."""
    shutil.copytree(TESTS / "projects" / "apart", tmp_path / "apart")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join([str(environment / "bin"), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # torch's folder belongs to others
    monkeypatch.setenv(NOTES, str(tmp_path))
    return tmp_path / "apart"


def notes(folder: Path) -> list[dict[str, object]]:
    """Return what the ranks have noted."""
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


@pytest.mark.slow
def test_inductors_regions_need_nothing_but_torch(
    environment: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search, and then its plan in production: the bits of a run without scopes, and of a Python that has everything.

    No module of sktune's dependencies reaches the ranks; nothing is written into their environment, nor beside sktune's
    code. What a rank does with scopes for an NPU under a search, test_formats.py shows.
    """
    recipe = project / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("backend: npu", "backend: inductor"))
    before = files_of(environment)
    request = Request("", trials=1, recipe=recipe, runs=tmp_path / "runs", verify_steps=VERIFIED_STEPS)
    result = run(request)
    (record,) = result.trials
    assert record.plan.scopes and record.outcome and record.outcome.speedup, record
    assert result.final[0].bit_identical
    searched = notes(project.parent)
    assert any(note["compiled"] for note in searched)
    assert not any(OURS & set(note["modules"]) for note in searched)  # type: ignore[call-overload]
    assert all("sktune_program" in note["modules"] for note in searched)  # type: ignore[operator]
    bits = bits_of(searched)
    assert len(bits) == 2  # of every run, with scopes and without
    assert files_of(environment) == before

    file = project / "best_plan.yaml"
    file.write_text(write_plan(record.plan, {}, "inductor", 2, {"function": "Model.decode", "signature": ""}))
    site = tmp_path / "site"
    shutil.copytree(SITE, site, ignore=shutil.ignore_patterns("__pycache__"))
    shipped = files_of(site)
    for name, own in (("apart", environment / "bin"), ("one", Path(sys.executable).parent)):
        folder = tmp_path / f"notes-{name}"
        folder.mkdir()
        monkeypatch.setenv(NOTES, str(folder))
        monkeypatch.setenv("PATH", os.pathsep.join([str(own), os.environ["PATH"]]))
        variables = {"SKTUNE_PLAN": str(file), "PYTHONPATH": str(site)}
        done = ran(["bash", "launch.sh"], variables=variables, directory=project)
        assert done.returncode == 0, done.stderr
        ranks = notes(folder)
        assert bits_of(ranks) == bits
        assert all(note["compiled"] for note in ranks)
        assert {note["python"] for note in ranks} == {str(environment) if name == "apart" else sys.prefix}
        assert name == "one" or not any(OURS & set(note["modules"]) for note in ranks)  # type: ignore[call-overload]
    assert {name for name in files_of(site) - shipped if "sitecustomize" not in name} <= {"__pycache__"}


def bits_of(ranks: list[dict[str, object]]) -> set[tuple[object, str]]:
    """Return what the ranks have computed."""
    return {(note["rank"], str(note["bits"])) for note in ranks}


@pytest.mark.slow
def test_a_plan_runs_in_production_where_sktune_is_not_installed(environment: Path, project: Path) -> None:
    """``PYTHONPATH`` and ``SKTUNE_PLAN`` are all that it takes."""
    plan = Plan((Scope("blocks.0.mix", "blocks.1.out", (("early-start", 0),)),))
    file = project / "best_plan.yaml"
    file.write_text(write_plan(plan, {"speedup": 1.2}, "npu", 2, {"function": "Model.decode", "signature": ""}))
    variables = {"SKTUNE_PLAN": str(file), "PYTHONDONTWRITEBYTECODE": "1"}
    done = ran(["bash", "launch.sh"], variables=variables, directory=project)
    assert done.returncode == 0, done.stderr
    ranks = notes(project.parent)
    assert len(ranks) == 2
    for note in ranks:
        entered, modules = note["entered"], note["modules"]
        assert isinstance(entered, list) and set(entered) == {"blocks.0.mix..blocks.1.out [early-start=0]"}
        assert len(entered) >= 16  # each step, and once while Dynamo traces
        assert isinstance(modules, list) and not OURS & set(modules)
