"""The examples for Slurm and Kubernetes, and the commands of Ray in the documentation: no option is misspelt."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.test_docs import FENCE, ROOT, check_command, of_sktune

SLURM, KUBERAY = ROOT / "examples" / "slurm.sh", ROOT / "examples" / "kuberay.yaml"
PAGE = ROOT / "docs" / "how-to" / "many-dies.md"


def lines() -> Iterator[list[str]]:
    """Yield the words of each line of the script and of the page's shell blocks."""
    blocks = [block for language, block in FENCE.findall(PAGE.read_text(encoding="utf-8")) if language == "bash"]
    for line in "\n".join([SLURM.read_text(encoding="utf-8"), *blocks]).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        try:
            yield list(lexer)
        except ValueError:  # a line of a longer text
            continue


def options_of_ray(name: str) -> set[str]:
    """Return the options of a command of Ray."""
    pytest.importorskip("ray")
    from ray.scripts.scripts import cli

    command: Any = cli
    return {option for parameter in command.commands[name].params for option in parameter.opts}


def of_ray(words: list[str]) -> Iterator[list[str]]:
    """Yield the arguments of ``ray`` in a line, to the end of its command."""
    for index, word in enumerate(words):
        if word == "ray" and words[index - 1 : index] != ["--engine"] and words[index + 1 : index + 2] != ["stop"]:
            rest = words[index + 1 :]
            ends = [at for at, each in enumerate(rest) if each in ("&", "&&", ">", "|", ";", "||")]
            yield rest[: min(ends, default=len(rest))]


def test_rays_options_exist() -> None:
    """Those of the script and of the page; what is given as resources is JSON."""
    found = [arguments for words in lines() for arguments in of_ray(words)]
    assert len(found) >= 8
    for name, *arguments in found:
        assert {word for word in arguments if word.startswith("--")} <= options_of_ray(name), arguments
        if "--resources" in arguments and not (given := arguments[arguments.index("--resources") + 1]).startswith("$"):
            assert json.loads(given) == {"DIE": 16}


def test_the_slurm_script_is_valid() -> None:
    """For bash, and each of its commands of sktune."""
    checked = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    commands = [command for words in lines() for command in of_sktune(words)]
    assert ["show", "llama", "--runs", "runs"] in commands
    for command in commands:
        check_command(command)


def test_the_manifest_gives_ray_the_dies_of_its_pods() -> None:
    """As many as the device plugin gives to each, in JSON for a shell."""
    manifest = yaml.safe_load(KUBERAY.read_text(encoding="utf-8"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    spec = manifest["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    (group,) = spec["workerGroupSpecs"]
    (given,) = shlex.split(group["rayStartParams"]["resources"])
    (container,) = group["template"]["spec"]["containers"]
    resources = container["resources"]
    assert json.loads(given)["DIE"] == int(resources["limits"]["huawei.com/Ascend910"]) == 16
    assert resources["limits"] == resources["requests"]
    for part in (spec["headGroupSpec"], group):
        names = {volume["name"] for volume in part["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in part["template"]["spec"]["containers"][0]["volumeMounts"]} == names


@pytest.mark.parametrize("group", ["headGroupSpec", "workerGroupSpecs"])
def test_the_manifests_parameters_are_rays_options(group: str) -> None:
    """The operator makes each an option of ``ray start``."""
    parts = yaml.safe_load(KUBERAY.read_text(encoding="utf-8"))["spec"][group]
    for part in parts if isinstance(parts, list) else [parts]:
        assert {f"--{name}" for name in part["rayStartParams"]} <= options_of_ray("start")


def test_the_examples_say_that_they_never_ran_on_npus() -> None:
    """Nobody should take them for tried."""
    for path in (SLURM, KUBERAY):
        assert "It has never run on NPUs" in path.read_text(encoding="utf-8")
    assert "never on NPUs" in PAGE.read_text(encoding="utf-8")
