"""`sktune agent install`: the right places and formats, no edited file overwritten, and a skill that is correct."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sktune.agents import skill
from sktune.core.errors import BadInputError
from tests.builders import ROOT, checked, sktune_command
from tests.projects import TEMPLATE, as_model

PATHS = [
    ".agents/skills/superkernel-autotune/SKILL.md",
    ".agents/agents/superkernel-analyzer.md",
    ".claude/skills/superkernel-autotune/SKILL.md",
    ".claude/agents/superkernel-analyzer.md",
    ".codex/skills/superkernel-autotune/SKILL.md",
    ".codex/agents/superkernel-analyzer.toml",
]


def install(folder: Path) -> dict[str, Any]:
    """Install into ``folder`` as a user would; return the event and the exit code."""
    done = sktune_command("agent", "install", str(folder), "--json")
    (event,) = checked(done.stdout)
    return event | {"returned": done.returncode}


def front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a Markdown file, and the rest of it."""
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_every_kind_of_agent_finds_a_skill_and_a_subagent(tmp_path: Path) -> None:
    """In the format of each agent, with the phrases that users say."""
    assert install(tmp_path)["written"] == PATHS
    for home in (".agents", ".claude", ".codex"):
        head, body = front_matter((tmp_path / home / "skills" / skill.SKILL / "SKILL.md").read_text())
        assert list(head) == ["name", "description"]
        assert head["name"] == skill.SKILL
        assert len(head["description"]) <= 1024  # the limit of Claude and Codex
        assert "使用自动分析工具" in head["description"]
        assert body.strip()
    for home in (".agents", ".claude"):
        head, _ = front_matter((tmp_path / home / "agents" / f"{skill.SUBAGENT}.md").read_text())
        assert list(head) == ["name", "description", "mode", "skills"]
        assert (head["mode"], head["skills"]) == ("subagent", [skill.SKILL])
    codex = tomllib.loads((tmp_path / ".codex" / "agents" / f"{skill.SUBAGENT}.toml").read_text())
    assert list(codex) == ["name", "description", "developer_instructions"]
    _, body = front_matter((tmp_path / ".claude" / "agents" / f"{skill.SUBAGENT}.md").read_text())
    assert codex["developer_instructions"].strip() == body.strip()


def test_a_second_installation_changes_nothing(tmp_path: Path) -> None:
    """Files with the same contents are not written again."""
    skill.install(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert skill.install(tmp_path) == skill.Installed((), tuple(PATHS))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("was_installed", [True, False])
def test_a_file_that_is_not_ours_or_was_edited_stays(tmp_path: Path, was_installed: bool) -> None:
    """It is named in one line, and nothing else is written; --force overwrites it."""
    if was_installed:
        skill.install(tmp_path)
    path = tmp_path / PATHS[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    refused = install(tmp_path)
    assert (refused["event"], refused["returned"]) == ("error", 2)
    assert PATHS[0] in refused["message"] and "--force" in refused["message"]
    assert path.read_text() == "mine"
    assert sorted(tmp_path.rglob("*")) == before
    assert sktune_command("agent", "install", str(tmp_path), "--force").returncode == 0
    assert path.read_text() != "mine"


def test_an_upgrade_replaces_our_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --force, if nothing was edited."""
    skill.install(tmp_path)
    newer = {name: f"{text}\nMore.\n" for name, text in skill.files().items()}
    monkeypatch.setattr(skill, "files", lambda: newer)
    assert list(skill.install(tmp_path).written) == PATHS
    assert skill.install(tmp_path).written == ()


def test_links_of_the_recipes_are_followed(tmp_path: Path) -> None:
    """The recipes' scripts link files in .claude to .agents."""
    skill.install(tmp_path)
    shutil.rmtree(tmp_path / ".claude")
    (tmp_path / ".claude").symlink_to(".agents")
    assert skill.install(tmp_path).written == ()


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """A misspelt folder is not created."""
    with pytest.raises(BadInputError, match="is not a folder"):
        skill.install(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def blocks(text: str, mark: str = "") -> str:
    """Return the commands in the skill's code blocks that have this mark."""
    marked = re.findall(r"(?:<!-- (\w+) -->\n)?```bash\n(.*?)```", text, flags=re.DOTALL)
    return "".join(commands for name, commands in marked if name == mark)


def run_in_one_shell(folder: Path, commands: str, **settings: str) -> list[dict[str, Any]]:
    """Run commands as an agent does, with ``settings`` instead of the skill's; return their events."""
    command = folder / "bin" / "sktune"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sktune.cli "$@"\n')
    command.chmod(0o755)
    assignments = "".join(f"{name}={value}\n" for name, value in settings.items())
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", assignments + commands], capture_output=True, text=True, check=False,
        cwd=folder, env=os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return checked(done.stdout)


@dataclass(frozen=True)
class Project:
    """A model with its source, and the settings for it."""

    root: Path
    skill: str
    settings: dict[str, str]
    source: Path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a small model in a project with the layout of the recipes, with the skill installed."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    skill.install(tmp_path)
    folder = tmp_path / "project" / TEMPLATE.model
    model, space = as_model(tmp_path / "project", tmp_path)
    where = f"(--backend sim --space {shlex.quote(str(space))})"
    settings = {"MODEL": shlex.quote(model), "FOLDER": shlex.quote(str(folder)), "STUDY": "own", "BUDGET": "25s"}
    return Project(tmp_path, (tmp_path / PATHS[0]).read_text(), settings | {"WHERE": where}, folder)


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the contents of the files under a folder, except those that Python writes when it runs them."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.slow
def test_the_commands_of_the_skill_lead_from_a_model_to_a_change_and_back(project: Project) -> None:
    """Run unchanged, in one shell, with settings for a small model on the simulation."""
    assert set(re.findall(r"^(\w+)=", blocks(project.skill, "settings"), flags=re.MULTILINE)) == set(project.settings)
    before = contents(project.source)
    events = run_in_one_shell(project.root, blocks(project.skill), **project.settings)
    last = [event["event"] for event in events if not event["event"].startswith(("trial_", "final_", "search_"))]
    assert last[:2] == ["doctor_finished", "inspected"]
    assert last[-6:] == ["study_finished", "study_shown", "study_shown", "plan_applied", "plan_applied", "plan_undone"]
    diff, written, _ = (event for event in events if event["event"].startswith("plan_"))
    assert "superkernel_scope" in diff["diff"] and not diff["written"] and written["written"]
    assert contents(project.source) == before


@pytest.mark.slow
def test_the_one_call_of_the_skill_ends_with_a_recommendation(project: Project) -> None:
    """The short way of the skill."""
    settings = project.settings | {"WHERE": "(--backend sim)", "BUDGET": "60s"}
    last = run_in_one_shell(project.root, blocks(project.skill, "analyze"), **settings)[-1]
    assert last["event"] == "analysis_finished"
    assert {"recommendation", "options", "risks", "next", "files"} <= last.keys()


def test_the_keys_and_exit_codes_in_the_skill_are_correct() -> None:
    """Each key that it explains exists in the result, and each exit code is one of a search."""
    text = (skill.TEMPLATES / "SKILL.md").read_text()
    schema = json.loads((ROOT / "docs" / "schema" / "events-v1.json").read_text())["$defs"]
    keys = schema["study_shown"]["properties"].keys()
    table = text.partition("## 5.")[2].partition("## 6.")[0]
    explained = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)))
    assert explained and set(explained) <= keys
    assert set(re.findall(r"^\| (\d) \|", text, flags=re.MULTILINE)) == {"0", "1", "2"}
