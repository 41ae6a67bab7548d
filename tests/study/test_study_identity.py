"""Whole searches: changes that end a study, changes that do not, and two searches on one storage."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sktune.core.errors import TargetError
from sktune.core.space import SpaceSpec
from sktune.targets import describe
from sktune.worker.jobs import RunnerSetup
from sktune.worker.runner import WorkerRunner
from tests import warm
from tests.builders import ROOT, TESTS, sktune_command, succeeded

MODEL = "from own_parts import target as parts\n\n\ndef target():\n    return parts()\n"
LAZY = "def target():\n    from ownpackage.own_parts import target as parts\n\n    return parts()\n"
QUICK = ("--backend", "sim", "--trials", "2", "--study", "s")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a package with two models whose parts are in a separate module; one of them imports it when called."""
    package = tmp_path / "project" / "ownpackage"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "own_model.py", package / "own_parts.py")
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(MODEL)
    (package / "packaged.py").write_text(LAZY)
    return package.parent


def search(project: Path, model: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Search a model of ``project``, as a user would from that folder."""
    return sktune_command("search", "--model", model, *QUICK, *arguments, folder=project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "files"),
    [("ownpackage/model.py:target", ["own_parts.py"]), ("ownpackage.packaged:target", ["own_parts.py", "packaged.py"])],
)
def test_a_module_of_the_model_ends_the_study_when_it_changes(project: Path, model: str, files: list[str]) -> None:
    """Stale results are not returned; results for the same files are, even if the files have moved.

    Given as ``package.module:function``, the module is found as the worker finds it, without importing it.
    """
    first = search(project, model)
    assert first.returncode == 0, first.stderr
    moved = Path(shutil.copytree(project, project.parent / "moved"))
    again = search(moved, model)
    assert again.returncode == 0, again.stderr
    for name in files:
        file = moved / "ownpackage" / name
        text = file.read_text()
        file.write_text(text + "\n# changed\n")
        changed = search(moved, model)
        assert changed.returncode == 2
        assert f"made with module {file}, which has changed since" in changed.stderr
        assert len(changed.stderr.strip().splitlines()) == 1
        file.write_text(text)


@pytest.mark.slow
def test_a_module_that_changes_while_a_search_runs_ends_it(project: Path, tmp_path: Path) -> None:
    """The next worker would import it and compile plans of another model."""
    model = project / "ownpackage" / "model.py"
    spec, _ = describe(f"{model}:target", backend="sim")
    with WorkerRunner(RunnerSetup(spec, SpaceSpec(), tmp_path / "study", tmp_path / "cache")) as runner:
        of_tests = (str(TESTS), str(TESTS.with_name("benchmarks")))  # the tests' own worker imports them
        modules = {name for name in runner.open().modules if not name.startswith(of_tests)}
        assert modules == {"model.py", "own_parts.py"}
        runner.close()
        parts = model.with_name("own_parts.py")
        parts.write_text(parts.read_text() + "\n# changed\n")
        with pytest.raises(TargetError, match=r"module own_parts\.py was changed while the search ran"):
            runner.open()


@pytest.mark.slow
def test_two_searches_on_one_storage_do_not_mix(tmp_path: Path) -> None:
    """Even in separate folders, which share no lock: otherwise both would run trials and name a winner."""
    shared = ["--storage", f"sqlite:///{tmp_path}/shared.db", "--study", "s", "--backend", "sim", "--json"]
    command = [
        sys.executable,
        "-m",
        "tests.command",
        "search",
        "--model",
        "llama",
        "--runs",
        str(tmp_path / "a"),
        *shared,
    ]
    first = subprocess.Popen([*command, "--trials", "4000"], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        began = json.loads(first.stdout.readline())
        assert began["event"] == "search_started"
        qwen3 = ["search", "--model", "qwen3", "--runs", str(tmp_path / "b"), *shared, "--trials", "2"]
        for options in ([], ["--take-over"]):
            refused = sktune_command(*qwen3, *options)
            assert refused.returncode == 2
            assert f"is being run by process {warm.forked(first.pid)}" in refused.stderr
        refused = sktune_command(*qwen3, "--join")
        assert refused.returncode == 2
        assert "made with scale" in refused.stderr or "made with model" in refused.stderr
        llama = ["search", "--model", "llama", "--runs", str(tmp_path / "c"), *shared, "--trials", "2", "--join"]
        succeeded(*llama)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=120)
    finally:
        first.kill()
    refused = sktune_command(*qwen3)
    assert refused.returncode == 2
    assert "made with" in refused.stderr
