"""`sktune agent install`: the right places, formats and texts, nothing edited overwritten, and a correct skill."""

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
from tests.builders import ROOT, checked, one_line_error, sktune_command, succeeded
from tests.projects import TEMPLATE, as_model, long_gaps

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
    assert codex["developer_instructions"].startswith(body.strip())
    assert f"- {skill.SKILL}" in codex["developer_instructions"]


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
    succeeded("agent", "install", str(tmp_path), "--force")
    assert path.read_text() != "mine"


def test_an_upgrade_replaces_our_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --force, if nothing was edited."""
    skill.install(tmp_path)
    newer = {name: f"{text}\nMore.\n" for name, text in skill.files("en", is_checkout=False).items()}
    monkeypatch.setattr(skill, "files", lambda *_arguments, **_keywords: newer)
    assert list(skill.install(tmp_path).written) == PATHS
    assert skill.install(tmp_path).written == ()


def test_links_of_the_recipes_are_followed(tmp_path: Path) -> None:
    """The recipes' scripts link files in .claude to .agents."""
    skill.install(tmp_path)
    shutil.rmtree(tmp_path / ".claude")
    (tmp_path / ".claude").symlink_to(".agents")
    assert skill.install(tmp_path).written == ()


def init_agent(root: Path) -> None:
    """Do what scripts/init-agent.sh of cann-recipes-infer does: link .agents, and convert its subagents for Codex."""
    for kind in ("skills", "agents"):
        for home in (".claude", ".opencode"):
            folder = root / home / kind
            folder.mkdir(parents=True, exist_ok=True)
            for entry in (root / ".agents" / kind).iterdir():
                place = folder / entry.name
                if place.is_symlink() or place.is_file():
                    place.unlink()
                elif place.is_dir():
                    shutil.rmtree(place)
                place.symlink_to(entry.resolve())
    folder = root / ".codex" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    for subagent in (root / ".agents" / "agents").glob("*.md"):
        head, body = front_matter(subagent.read_text(encoding="utf-8"))
        instructions = f"{body.strip()}\n\nAvailable skills for this role:\n" + "\n".join(
            f"- {n}" for n in head["skills"]
        )
        name, description, text = (
            json.dumps(value, ensure_ascii=False) for value in (head["name"], head["description"], f"{instructions}\n")
        )
        (folder / f"{head['name']}.toml").write_text(
            f"name = {name}\ndescription = {description}\n\ndeveloper_instructions = {text}\n", encoding="utf-8"
        )


@pytest.mark.parametrize("language", skill.LANGUAGES)
def test_what_the_repositorys_script_makes_of_our_files_is_ours(tmp_path: Path, language: str) -> None:
    """The script replaces files by links, and converts the subagent for Codex: byte for byte as sktune does."""
    skill.install(tmp_path, language=language)
    init_agent(tmp_path)
    assert skill.install(tmp_path, language=language).written == ()
    other = skill.LANGUAGES[language == "en"]
    assert skill.install(tmp_path, language=other).written
    texts = skill.files(other, is_checkout=False)
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in PATHS} == texts
    assert (tmp_path / ".claude" / "skills" / skill.SKILL).is_symlink()


def test_a_link_out_of_the_folder_is_refused_with_the_fix(tmp_path: Path) -> None:
    """As after a checkout with the script's absolute links was copied: nothing is written, in either."""
    (tmp_path / "first").mkdir()
    skill.install(tmp_path / "first")
    init_agent(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second", symlinks=True)
    before = contents(tmp_path / "first")
    (tmp_path / "second" / PATHS[0]).unlink()
    with one_line_error(BadInputError, r"outside of .*; delete the link"):
        skill.install(tmp_path / "second")
    assert contents(tmp_path / "first") == before and not (tmp_path / "second" / PATHS[0]).exists()


@pytest.mark.parametrize(
    ("documents", "language"),
    [
        ({}, "en"),
        ({"README.md": "# Model\nIt runs on the NPUs of an Atlas A3 (昇腾)."}, "en"),
        ({"README.md": "# 昇腾 NPU 推理优化\n大模型推理优化实践"}, "zh"),
        ({"AGENTS.md": "# NPU 推理优化\n支持 TP/EP/DP 并行策略组合", "README.md": "Inference on NPUs"}, "zh"),
    ],
)
def test_the_texts_are_in_the_folders_language(tmp_path: Path, documents: dict[str, str], language: str) -> None:
    """AGENTS.md counts, else README.md; --language decides."""
    for name, text in documents.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    skill.install(tmp_path)
    expected = skill.files(language, is_checkout=False)
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in PATHS} == expected
    assert ("# 用 sktune" in expected[PATHS[0]]) == (language == "zh")
    other = skill.LANGUAGES[language == "en"]
    succeeded("agent", "install", str(tmp_path), "--language", other)
    assert (tmp_path / PATHS[0]).read_text(encoding="utf-8") == skill.files(other, is_checkout=False)[PATHS[0]]
    refused = sktune_command("agent", "install", str(tmp_path), "--language", "de")
    assert refused.returncode == 2 and "choose from en, zh" in refused.stderr


def test_both_languages_have_the_same_commands() -> None:
    """Settings, commands and keys differ only in the language of the report."""
    for is_checkout in (False, True):
        english, chinese = (skill.files(each, is_checkout=is_checkout)[PATHS[0]] for each in skill.LANGUAGES)
        marks = ("settings", "recipe", "analyze", "")
        assert [blocks(english, mark).replace("--language en", "--language zh") for mark in marks] == [
            blocks(chinese, mark) for mark in marks
        ]
        tables = [text.partition("## 5.")[2] for text in (english, chinese)]
        keys = [re.findall(r"^\| (`\w+`.*?) \|", table, flags=re.MULTILINE) for table in tables]
        assert keys[0] and keys[0] == keys[1]


def test_in_a_checkout_the_skill_measures_the_folders_own_program(tmp_path: Path) -> None:
    """Its settings name no preset, and its command writes the recipe of the model's YAML."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    root = tmp_path / "project"
    (root / "executor" / "scripts").mkdir(parents=True, exist_ok=True)
    (root / "executor" / "scripts" / "infer.sh").touch()
    yaml_file = next((root / TEMPLATE.model).rglob("*.yaml")).relative_to(root / TEMPLATE.model)
    skill.install(root)
    text = (root / PATHS[0]).read_text()
    settings = blocks(text, "settings")
    assert "SUBJECT=(--recipe recipe.yaml)" in settings and "--model" not in settings
    assert "sktune inspect" not in blocks(text)
    chosen = {"FOLDER": str(TEMPLATE.model), "YAML": f"(--yaml {yaml_file})", "BUDGET": "1s"}
    (event,) = run_in_one_shell(root, blocks(text, "recipe"), **chosen)
    assert event["event"] == "recipe_written"
    recipe = yaml.safe_load((root / "recipe.yaml").read_text())
    assert recipe["yaml"]["file"].endswith(yaml_file.name)
    assert run_in_one_shell(root, blocks(text, "recipe"), **chosen) == []  # the recipe may have been edited: it stays


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
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tests.command "$@"\n')
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
    few_plans = re.sub(r"\{stream-fusion.*?\}", "{stream-fusion: [0]}", space.read_text())
    space.write_text(few_plans)  # all are tried long before the budget ends
    files = f"--space {shlex.quote(str(space))} --constants {shlex.quote(str(long_gaps(tmp_path)))}"
    subject = f"(--model {shlex.quote(model)} --backend sim {files})"
    settings = {"FOLDER": shlex.quote(str(folder)), "YAML": "()", "STUDY": "own", "BUDGET": "25s", "SUBJECT": subject}
    return Project(tmp_path, (tmp_path / PATHS[0]).read_text(), settings, folder)


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
    subject = re.sub(r" --space \S+ --constants \S+\)", ")", project.settings["SUBJECT"])
    settings = project.settings | {"SUBJECT": subject, "BUDGET": "60s"}
    last = run_in_one_shell(project.root, blocks(project.skill, "analyze"), **settings)[-1]
    assert last["event"] == "analysis_finished"
    assert {"recommendation", "options", "risks", "next", "files"} <= last.keys()


def test_the_keys_and_exit_codes_in_the_skill_are_correct() -> None:
    """Each key that it explains exists in the result, and each exit code is one of a search."""
    text = skill.files("en", is_checkout=False)[PATHS[0]]
    schema = json.loads((ROOT / "docs" / "schema" / "events-v1.json").read_text())["$defs"]
    keys = schema["study_shown"]["properties"].keys()
    table = text.partition("## 5.")[2].partition("## 6.")[0]
    explained = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)))
    assert explained and set(explained) <= keys
    assert set(re.findall(r"^\| (\d) \|", text, flags=re.MULTILINE)) == {"0", "1", "2"}
