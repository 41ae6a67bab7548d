"""Folders with links that lead out of them: nothing outside is written, whatever the links are called."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sktune.agents import skill
from sktune.core.errors import BadInputError
from sktune.core.files import create_text, write_text
from sktune.source import edits
from sktune.source.apply import source_change
from sktune.targets.recipe import YamlFile
from tests.builders import one_line_error, sktune_command
from tests.guard import no_hang
from tests.projects import TEMPLATE
from tests.source.test_source import ATTENTION, plan_file

MINE = "mine, and nobody else's\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the template project's model, as someone else may have prepared it."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    return tmp_path / "project" / TEMPLATE.model


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a file of the user's outside of the project."""
    path = tmp_path / "home" / "notes.py"
    path.parent.mkdir()
    path.write_text(MINE)
    return path


def test_a_temporary_file_cannot_be_a_link_that_was_waiting(folder: Path, outside: Path) -> None:
    """Names of temporary files cannot be guessed, and no temporary file is left."""
    for path in (folder / "models" / "modeling_tiny.py", *folder.rglob("*.yaml"), folder / edits.RECORD):
        path.parent.mkdir(exist_ok=True)
        path.with_name(f".{path.name}.part").symlink_to(outside)
    source_change(plan_file(ATTENTION), folder).write()
    edits.undo(folder)
    assert outside.read_text() == MINE
    assert not list(folder.rglob(".sktune-*"))


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "the source": lambda folder, outside: as_link(folder / "models" / "modeling_tiny.py", outside),
    "the YAML": lambda folder, outside: as_link(next(folder.rglob("*.yaml")), outside),
    "the folder of the source": lambda folder, outside: as_link(folder / "models", outside.parent),
    "the record's folder": lambda folder, outside: (folder / ".sktune").symlink_to(outside.parent),
}


def as_link(path: Path, target: Path) -> None:
    """Move a file or folder to the target's place, and put a link in its own."""
    if target.is_dir():
        shutil.rmtree(target)
    path.replace(target)
    path.symlink_to(target)


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of each file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", LINKS)
def test_apply_refuses_links_that_lead_out_of_the_folder(case: str, folder: Path, outside: Path) -> None:
    """In one line, before anything is written."""
    LINKS[case](folder, outside)
    before = contents(outside.parent)
    with pytest.raises(BadInputError) as failure:
        source_change(plan_file(ATTENTION), folder).write()
    assert len(str(failure.value).splitlines()) == 1
    assert contents(outside.parent) == before


def test_a_link_within_the_folder_is_followed(folder: Path) -> None:
    """Repositories have such links; the file changes, and the link stays."""
    path = folder / "models" / "modeling_tiny.py"
    real = folder / "models" / "tiny.py"
    path.rename(real)
    path.symlink_to("tiny.py")
    before = real.read_bytes()
    source_change(plan_file(ATTENTION), folder).write()
    assert path.is_symlink() and real.read_bytes() != before
    edits.undo(folder)
    assert path.is_symlink() and real.read_bytes() == before


def test_undo_refuses_a_record_whose_file_is_a_link(folder: Path, outside: Path) -> None:
    """A repository can come with a record, and a link in place of the file that it names."""
    (folder / "notes.py").symlink_to(outside)
    entry = {"before": "theirs\n", "after_sha256": edits._digest(MINE)}
    (folder / ".sktune").mkdir()
    (folder / edits.RECORD).write_text(json.dumps({"version": 1, "files": {"notes.py": entry}}))
    with pytest.raises(BadInputError, match=r"notes.py is a link to .*, outside of .*; delete .*applied.json"):
        edits.undo(folder)
    assert outside.read_text() == MINE


RECORDS = {
    "no JSON": ("{", "is not JSON"),
    "deep": ("[" * 10_000, "is not JSON"),
    "half a character": ('{"version": 1, "files": {"a": {"before": "\\ud800", "after_sha256": ""}}}', "is not JSON"),
    "a list": ("[]", "is not a record of sktune"),
    "a long name": (
        '{"version": 1, "files": {"%s": {"before": "", "after_sha256": ""}}}' % ("a" * 300),
        "names files that cannot exist",
    ),
    "a long path": (
        '{"version": 1, "files": {"%s": {"before": "", "after_sha256": ""}}}' % ("a/" * 3000),
        "names files that cannot exist",
    ),
    "no texts": ('{"version": 1, "files": {"a": null}}', "is not a record of sktune"),
    "numbers": ('{"version": 1, "files": {"a": {"before": 1, "after_sha256": 2}}}', "is not a record of sktune"),
    "parents": ('{"version": 1, "files": {"../a": {"before": "", "after_sha256": ""}}}', "outside of its folder"),
    "a null character": ('{"version": 1, "files": {"a\\u0000": {"before": "", "after_sha256": ""}}}', "cannot be"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_damaged_record_is_refused_in_one_line(case: str, folder: Path) -> None:
    """By undo, and by apply."""
    text, reason = RECORDS[case]
    (folder / ".sktune").mkdir()
    (folder / edits.RECORD).write_text(text)
    for use in (lambda: edits.undo(folder), lambda: source_change(plan_file(ATTENTION), folder)):
        with one_line_error(BadInputError, reason):
            use()


def test_a_pipe_in_place_of_a_source_is_not_waited_for(folder: Path) -> None:
    """It would never answer."""
    path = folder / "models" / "modeling_tiny.py"
    path.unlink()
    os.mkfifo(path)
    with no_hang(), pytest.raises(BadInputError, match="not a regular file"):
        source_change(plan_file(ATTENTION), folder)


def test_no_file_of_sktunes_follows_a_link(tmp_path: Path, outside: Path) -> None:
    """Reports, pages, plans and constants are written by the one, recipes by the other."""
    link, dangling = tmp_path / "report.md", tmp_path / "recipe.yaml"
    link.symlink_to(outside)
    dangling.symlink_to(tmp_path / "home" / "new")
    with pytest.raises(OSError, match="it is a link"):
        write_text(link, "text")
    with pytest.raises(FileExistsError):
        create_text(dangling, "text")
    assert outside.read_text() == MINE and not (tmp_path / "home" / "new").exists()


def test_a_written_file_keeps_its_mode(tmp_path: Path) -> None:
    """And a new one has the usual one."""
    path = tmp_path / "text"
    write_text(path, "1")
    usual = tmp_path / "usual"
    usual.touch()
    assert path.stat().st_mode == usual.stat().st_mode
    path.chmod(0o640)
    write_text(path, "2")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("2", 0o640)


def test_recipe_init_does_not_write_through_a_dangling_link(tmp_path: Path) -> None:
    """The file that it would make is not in the folder."""
    (tmp_path / "infer.sh").write_text("python3 infer.py\n")
    (tmp_path / "infer.py").write_text("import torch\n\nstep = torch.compile(torch.nn.Linear(1, 1))\n")
    (tmp_path / "recipe.yaml").symlink_to(tmp_path / "elsewhere")
    done = sktune_command("recipe", "init", str(tmp_path), "--out", str(tmp_path / "recipe.yaml"))
    assert done.returncode == 2 and "already exists" in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_the_skill_is_not_installed_through_a_link(tmp_path: Path, outside: Path) -> None:
    """Nothing at all is written then."""
    project = tmp_path / "project"
    project.mkdir()
    (project / ".claude").symlink_to(outside.parent)
    with pytest.raises(BadInputError, match=r"outside of .*; delete the link"):
        skill.install(project)
    assert list(project.iterdir()) == [project / ".claude"] and list(outside.parent.iterdir()) == [outside]


def test_the_skill_is_installed_through_a_link_within_the_folder(tmp_path: Path) -> None:
    """As repositories link one agent's folder to another's."""
    (tmp_path / ".agents").mkdir()
    (tmp_path / ".claude").symlink_to(".agents")
    assert skill.install(tmp_path).written
    assert skill.install(tmp_path).written == ()


@pytest.mark.parametrize("text", ["{", "[]", '{"files": 1}', '{"files": {"a": 1}}', "[" * 10_000])
def test_a_damaged_record_of_the_skill_is_refused(text: str, tmp_path: Path) -> None:
    """In one line with the fix."""
    (tmp_path / ".sktune").mkdir()
    (tmp_path / skill.RECORD).write_text(text)
    with one_line_error(BadInputError, r"agent.json is .*; delete it and use --force"):
        skill.install(tmp_path)


@pytest.mark.parametrize("target", ["notes.py", "nothing"])
def test_the_copy_of_a_recipes_yaml_is_not_written_through_a_link(target: str, tmp_path: Path, outside: Path) -> None:
    """Whether the link leads to a file or to nothing."""
    from sktune.core.errors import TargetError
    from sktune.recipes.yaml_copy import copy_paths, written_copies

    (tmp_path / "a.yaml").write_text("x: 1\n")
    (tmp_path / "a_sktune.yaml").symlink_to(outside.with_name(target))
    program = YamlFile(file=tmp_path / "a.yaml")
    with pytest.raises(TargetError, match="rename it"), written_copies(program, copy_paths(program.file, [])):
        pass
    assert [path.name for path in outside.parent.iterdir()] == ["notes.py"] and outside.read_text() == MINE
