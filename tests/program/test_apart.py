"""A search whose ranks have a Python of their own, in which torch is installed and sktune is not."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sktune.backends.inductor.options import EXACT
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.launch import SITE
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


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_program_cannot_import_what_sktune_needs(environment: Path, name: str) -> None:
    """Else the tests below would show nothing."""
    done = ran([str(environment / "bin" / "python3"), "-c", f"import {name}"], directory=environment)
    assert f"ModuleNotFoundError: No module named {name!r}" in done.stderr


@pytest.mark.slow
def test_two_ranks_are_searched_whose_python_has_torch_alone(environment: Path, project: Path) -> None:
    """No module of sktune's dependencies reaches them, and nothing in their environment changes."""
    before = files_of(environment)
    request = Request("", trials=1, recipe=project / "recipe.yaml", runs=project.parent / "runs")
    result = run(request)
    assert len(result.trials) == 1
    assert all(record.outcome and record.outcome.speedup for record in result.trials), result.trials
    assert result.final[0].bit_identical
    ranks = notes(project.parent)
    assert {note["rank"] for note in ranks} == {0, 1}
    assert any(note["entered"] for note in ranks)
    for note in ranks:
        modules = note["modules"]
        assert isinstance(modules, list) and "sktune_program" in modules
        assert not OURS & set(modules)
    assert files_of(environment) == before


@pytest.mark.slow
def test_regions_are_the_same_as_with_one_python_for_both_sides(
    environment: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program whose scopes Inductor compiles needs nothing but its torch: the same plan, and the same bits."""
    recipe = project / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("backend: npu", "backend: inductor"))
    before = files_of(environment)
    found = {}
    for name, own in (("apart", environment / "bin"), ("one", Path(sys.executable).parent)):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv(NOTES, str(tmp_path / name))
        monkeypatch.setenv("PATH", os.pathsep.join([str(own), os.environ["PATH"]]))
        result = run(Request("", trials=1, recipe=recipe, runs=tmp_path / f"runs-{name}"))
        (record,) = result.trials
        assert record.plan.scopes and record.outcome and record.outcome.speedup, record
        assert result.final[0].bit_identical
        ranks = notes(tmp_path / name)
        assert any(note["compiled"] for note in ranks)
        bits = {(note["rank"], str(note["bits"])) for note in ranks}
        assert len(bits) == 2  # of every run, with scopes and without
        found[name] = record.plan, bits
        assert {note["python"] for note in ranks} == {str(environment) if name == "apart" else sys.prefix}
    assert found["apart"] == found["one"]
    assert files_of(environment) == before


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


@pytest.mark.slow
def test_a_plan_for_inductor_runs_in_production_where_sktune_is_not_installed(
    environment: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits that the program has without the plan, and nothing is written beside sktune's code."""
    plan = Plan((Scope("blocks.0.mix", "blocks.1.out", tuple(EXACT.items())),))
    file = project / "best_plan.yaml"
    file.write_text(write_plan(plan, {"speedup": 1.2}, "inductor", 2, {"function": "Model.decode", "signature": ""}))
    site = tmp_path / "site"
    shutil.copytree(SITE, site, ignore=shutil.ignore_patterns("__pycache__"))
    before = files_of(site)
    ranks = {}
    for name, variables in (("without", {}), ("with", {"SKTUNE_PLAN": str(file)})):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(NOTES, str(tmp_path / name))
        done = ran(["bash", "launch.sh"], variables={**variables, "PYTHONPATH": str(site)}, directory=project)
        assert done.returncode == 0, done.stderr
        ranks[name] = sorted(notes(tmp_path / name), key=lambda note: str(note["rank"]))
    assert [note["bits"] for note in ranks["with"]] == [note["bits"] for note in ranks["without"]]
    assert [note["compiled"] for note in ranks["with"] + ranks["without"]] == [True, True, False, False]
    assert not any(OURS & set(note["modules"]) for note in ranks["with"])  # type: ignore[call-overload]
    assert {name for name in files_of(site) - before if "sitecustomize" not in name} <= {"__pycache__"}
