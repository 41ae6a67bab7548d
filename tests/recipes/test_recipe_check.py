"""`sktune doctor --recipe`: a search could start if all is good, and what is not is said with its fix."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sktune.backends.this_machine import device_memory
from sktune.core.events.commands import Finding, State
from sktune.recipes.recipe_check import examine_recipe
from tests.builders import TESTS, sktune_command

BASE = str(Path(sys.base_prefix, "bin", "python3"))
YAML = Path("models/tiny_moe/config/tiny_moe_2tp.yaml")
# Rows of `npu-smi info`: a chip has the row of its NPU above it.
NPU_SMI = """#!/bin/sh
cat <<'END'
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 175.9       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3161 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          60000/ 65536         |
END
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the checkout with two ranks."""
    return Path(shutil.copytree(TESTS / "projects" / "ranks", tmp_path / "ranks"))


def recipe(root: Path, **values: Any) -> Path:
    """Write the project's recipe with other values."""
    path = root / "recipe.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))
    return path


def with_weights(root: Path, size: int, **settings: Any) -> Path:
    """Write weights of ``size`` bytes, which take no space, and a recipe that loads them."""
    folder = root / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    changes = {"model_config.model_path": str(folder), **settings}
    return recipe(root, yaml={"file": str(YAML), "set": changes})


def finding(path: Path, what: str) -> Finding:
    """Return the finding about something; the program's Python is one that starts fast, as it has no torch."""
    return next(each for each in examine_recipe(path, BASE) if each.what == what)


def test_a_search_that_could_start(root: Path, tmp_path: Path) -> None:
    """Exit code 0, all findings good; nothing was started or written."""
    before = sorted(root.rglob("*"))
    done = sktune_command("doctor", "--recipe", str(root / "recipe.yaml"), "--python", sys.executable, "--json",
                          folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    event = json.loads(done.stdout.splitlines()[-1])
    assert event["backends"] == ["inductor"]
    assert {each["state"] for each in event["findings"]} == {"ok"}
    assert sorted(root.rglob("*")) == before


def test_a_search_that_could_not(root: Path, tmp_path: Path) -> None:
    """Exit code 1; a file that is no recipe is bad input."""
    path = recipe(root, command="nowhere/program {yaml}")
    done = sktune_command("doctor", "--recipe", str(path), "--python", sys.executable, folder=tmp_path)
    assert done.returncode == 1
    done = sktune_command("doctor", "--recipe", str(root / YAML), folder=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "words"), [("nowhere {yaml}", "nowhere"), ("bash executor/scripts/other.sh {yaml}", "other.sh")]
)
def test_a_command_that_is_not_there(root: Path, command: str, words: str) -> None:
    """The program itself, or the script that it is given."""
    result = finding(recipe(root, command=command), "command")
    assert result.state is State.MISSING
    assert words in result.found


def test_the_yamls_copy(root: Path) -> None:
    """It must be possible, and overwrite nothing of the user's."""
    changes = {"file": str(YAML), "set": {"model_config.exe_mode.inner": 1}}
    assert "leads through" in finding(recipe(root, yaml=changes), "YAML").found
    path = recipe(root, yaml={"file": str(YAML)})
    assert finding(path, "YAML").state is State.OK
    (root / YAML).with_stem(f"{YAML.stem}_sktune").write_text("mine: 1\n")
    assert finding(path, "YAML").state is State.WRONG


def test_placeholders_and_files_that_are_sourced(root: Path, tmp_path: Path) -> None:
    """A placeholder has its place; what is sourced must be there, and sets the environment of the program's Python."""
    scripts = root / "executor" / "scripts"
    (scripts / "infer.sh").write_text('source "$(dirname "$0")/set_env.sh"\n' + (scripts / "infer.sh").read_text())
    set_env = scripts / "set_env.sh"
    set_env.write_text("# your_comment\ncann_path='your_cann_pkgs_path'\nsource $cann_path/bin/setenv.bash\n")
    result = finding(root / "recipe.yaml", "start scripts")
    assert result.state is State.WRONG
    assert "your_cann_pkgs_path in executor/scripts/set_env.sh:2" in result.found
    cann = tmp_path / "cann"
    set_env.write_text(f"export cann_path={cann}\nsource ${{cann_path}}/bin/setenv.bash\n")
    results = [each for each in examine_recipe(root / "recipe.yaml", BASE) if each.what == "start scripts"]
    assert [each.state for each in results] == [State.OK, State.MISSING]
    (cann / "bin").mkdir(parents=True)
    (cann / "bin" / "setenv.bash").write_text("export ASCEND_HOME_PATH=/somewhere\n")
    assert "/somewhere" in finding(root / "recipe.yaml", "environment").found


@pytest.mark.parametrize(
    ("values", "state"), [({"ranks": 2}, State.OK), ({"ranks": 3}, State.WRONG), ({"ranks": 1}, State.WRONG)]
)
def test_ranks_are_those_of_the_yaml(root: Path, values: dict[str, Any], state: State) -> None:
    """A run with another number would fail after its start."""
    assert finding(recipe(root, **values), "ranks").state is state


def test_ranks_need_devices(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as npu-smi shows and the program may see; weights must fit into what is free on the fullest."""
    tool = tmp_path / "npu-smi"
    tool.write_text(NPU_SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [each.free >> 20 for each in device_memory("npu")] == [65536 - 3161, 65536 - 60000]
    path = with_weights(root, 8 << 30)
    path = recipe(root, backend="npu")
    assert finding(path, "ranks").state is State.OK
    assert finding(path, "memory of devices").state is State.OK
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    assert finding(path, "ranks").state is State.MISSING
    shutil.rmtree(root / "weights")
    with_weights(root, 12 << 30)  # 6 GiB for each rank, 5.4 are free
    assert finding(path, "memory of devices").state is State.WRONG


@pytest.mark.parametrize(
    ("model_path", "words"),
    [("your_model_path", "your_model_path"), ("/nowhere", "no such folder"), (".", "config.json")],
)
def test_weights_that_are_not_there(root: Path, model_path: str, words: str) -> None:
    """A placeholder, no folder, a folder of something else."""
    path = recipe(root, yaml={"file": str(YAML), "set": {"model_config.model_path": model_path}})
    result = finding(path, "weights")
    assert result.state is not State.OK
    assert words in result.found


def test_weights_need_memory(root: Path) -> None:
    """On a CPU that of all ranks; random weights need only the configuration."""
    path = with_weights(root, 1 << 43)
    assert finding(path, "memory of the host").state is State.WRONG
    shutil.rmtree(root / "weights")
    path = with_weights(root, 0)
    assert finding(path, "weights").state is State.MISSING
    shutil.rmtree(root / "weights")
    path = with_weights(root, 0, **{"model_config.with_ckpt": False})
    assert finding(path, "weights").state is State.OK


def test_a_port_that_is_in_use(root: Path) -> None:
    """The one of the recipe's environment, else of its scripts."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = recipe(root, environment={"MASTER_PORT": str(port)})
        assert finding(path, "MASTER_PORT").state is State.WRONG
    assert finding(path, "MASTER_PORT").state is State.OK


def test_another_inference_that_runs(root: Path, tmp_path: Path) -> None:
    """It would disturb every measurement."""
    program = tmp_path / "infer.py"
    program.write_text("import time\ntime.sleep(600)\n")
    path = recipe(root, other_inference=f"python.* {program}")
    assert finding(path, "other inference").state is State.OK
    process = subprocess.Popen([sys.executable, str(program)])
    try:
        until = time.monotonic() + 20
        while finding(path, "other inference").state is State.OK and time.monotonic() < until:
            pass
        assert str(process.pid) in finding(path, "other inference").found
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", ["bash executor/scripts/infer.sh {yaml}", "program {yaml}", "python-of-it {yaml}"])
def test_the_python_is_that_of_the_program(root: Path, tmp_path: Path, command: str) -> None:
    """Found by its script, by the first line of an installed command, or as the command itself."""
    python = tmp_path / "bin" / "python-of-it"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    shutil.copy(python, python.with_name("python3"))
    program = python.with_name("program")
    program.write_text("#!/usr/bin/env -S python-of-it -u\n")
    program.chmod(0o755)
    path = recipe(root, command=command, environment={"PATH": f"{python.parent}:{os.environ['PATH']}"})
    results = {each.what: each for each in examine_recipe(path)}
    assert results["torch"].state is State.OK


def test_cann_comes_from_the_shell_or_the_start_scripts(root: Path) -> None:
    """Not from an option that was given already."""
    found = finding(recipe(root, backend="npu"), "CANN")
    assert found.state is State.MISSING
    assert found.fix == "source CANN's set_env.sh in this shell, or in the recipe's start scripts"


def test_an_environment_that_the_script_activates(root: Path, tmp_path: Path) -> None:
    """Its Python is the one that is looked into; if it is nowhere, the rest is checked all the same."""
    (root / "own" / "bin").mkdir(parents=True)
    python = root / "own" / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (root / "own" / "bin" / "activate").write_text(f"PATH={python.parent}:$PATH\n")
    (root / "run.sh").write_text("source own/bin/activate\npython3 infer.py $1\n")
    results = {each.what: each for each in examine_recipe(recipe(root, command="bash run.sh {yaml}"))}
    assert results["torch"].state is State.OK
    assert "own/bin/activate" in results["environment"].found
    (root / "run.sh").write_text("python3.99 infer.py $1\n")
    results = {each.what: each for each in examine_recipe(recipe(root, command="bash run.sh {yaml}"))}
    assert results["Python"].state is State.MISSING
    assert results["ranks"].state is State.OK
