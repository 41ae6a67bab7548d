"""The README's commands run as they are written there, with options that make them quick."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sktune.core.plan_file import write_plan
from tests import profiles
from tests.builders import ROOT, checked, sktune_command
from tests.projects import RANKS, TEMPLATE
from tests.recipes.reporting import reporting
from tests.source.test_source import ATTENTION

README = (ROOT / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|]+) \| `sktune ([^`]+)` \| \[", re.MULTILINE)
COMMANDS = dict(ROW.findall(README))
"""By what the user has."""
SIMULATED = ("--backend", "sim", "--trials", "1")
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip


def nothing(folder: Path) -> None:
    """Need no files."""


def hugging_face_folder(folder: Path) -> None:
    """Write a small configuration."""
    (folder / "path" / "to" / "hf-folder").mkdir(parents=True)
    (folder / "path" / "to" / "hf-folder" / "config.json").write_text(json.dumps(LLAMA))


def examples(folder: Path) -> None:
    """Copy the examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")


def recipe(folder: Path) -> None:
    """Write a program that reports as a rank does, and its recipe."""
    reporting(folder)


def recipes(folder: Path) -> None:
    """Copy a checkout with one model, under the README's name."""
    shutil.copytree(RANKS.root, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("recipe.yaml"))
    (folder / RANKS.model).rename(folder / "models" / "deepseek_r1")


def profile(folder: Path) -> None:
    """Write the profile of a small DeepSeek."""
    (folder / "kernel_details.csv").write_text(profiles.kernel_details(profiles.deepseek()))


def source(folder: Path) -> None:
    """Copy a model's source under the README's name, and write a plan for it."""
    shutil.copytree(TEMPLATE.root / TEMPLATE.model, folder / "models" / "deepseek_r1")
    (folder / "best_plan.yaml").write_text(write_plan(ATTENTION, {}, "npu", TEMPLATE.layers))


@dataclass(frozen=True)
class Run:
    """How a command of the README is run: files that it needs, options that make it quick, and the last event."""

    prepare: Callable[[Path], None]
    options: tuple[str, ...]
    event: str
    exit_code: int = 0


RUNS: Mapping[str, Run] = {
    "a Hugging Face model": Run(hugging_face_folder, SIMULATED, "study_finished"),
    "your own model": Run(examples, SIMULATED, "study_finished"),
    "a recipe that `infer.sh` starts": Run(recipe, ("--trials", "1"), "study_finished"),
    "an Ascend NPU": Run(nothing, ("--trials", "1"), "error", 1),
    "many dies": Run(recipes, (), "recipe_written"),
    "no hardware": Run(nothing, ("--scale", "tiny", "--trials", "1"), "study_finished"),
    "only a profile": Run(profile, (), "profile_finished"),
    "ten minutes": Run(nothing, ("--backend", "sim", "--time-budget", "60s"), "analysis_finished"),
    "an agent": Run(nothing, (), "agent_installed"),
    "a plan for your source": Run(source, (), "plan_applied"),
}

RUN_ELSEWHERE = {
    "a plan from before an upgrade": "tests/tuning/test_recheck.py",
    "a study, running or done": "tests/server/test_serve.py",  # it runs until it is stopped
}


def test_each_command_of_the_table_is_run() -> None:
    """None is added without a run."""
    assert COMMANDS.keys() == RUNS.keys() | RUN_ELSEWHERE.keys()
    assert all((ROOT / path).is_file() for path in RUN_ELSEWHERE.values())


@pytest.mark.slow
@pytest.mark.parametrize("user_has", RUNS)
def test_a_command_of_the_table_runs(user_has: str, tmp_path: Path) -> None:
    """In a folder with what the user has; the last line on standard output is the expected event."""
    run = RUNS[user_has]
    run.prepare(tmp_path)
    done = sktune_command(*shlex.split(COMMANDS[user_has]), *run.options, "--json", folder=tmp_path)
    assert done.returncode == run.exit_code, done.stderr
    assert checked(done.stdout)[-1]["event"] == run.event
