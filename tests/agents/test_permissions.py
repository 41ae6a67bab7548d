"""What agents may run: nothing of the user's without ``--allow-run``, and only what is below its folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from sktune.agents import jobs, mcp_server
from sktune.agents.mcp_server import Tools, make_server
from sktune.agents.permissions import Permissions
from sktune.core.errors import BadInputError
from tests.builders import OWN_MODEL, one_line_error

Call = Callable[[Tools, Path], Any]
RECIPE = "version: 1\nname: r\ncommand: touch ran\n"
CALLS: dict[str, Call] = {
    "inspect a file": lambda tools, folder: tools.inspect(f"{folder / 'own.py'}:target"),
    "inspect a module": lambda tools, folder: tools.inspect("antigravity:target"),
    "inspect a link to a file": lambda tools, folder: tools.inspect(f"{folder / 'allowed' / 'link.py'}:target"),
    "search a file": lambda tools, folder: tools.start_search(model=f"{folder / 'own.py'}:target"),
    "search a recipe": lambda tools, folder: tools.start_search(recipe=str(folder / "recipe.yaml")),
    "search a recipe of another folder": lambda tools, folder: tools.start_search(
        recipe=str(folder / "allowed" / "recipe.yaml")
    ),
    "search a recipe of a shape": lambda tools, folder: tools.start_search(
        recipe=str(folder / "allowed" / "fine.yaml"), shapes=str(folder / "allowed" / "shapes.yaml")
    ),
    "search with a strategy": lambda tools, folder: tools.start_search(model="llama", strategy="antigravity:sampler"),
    "analyze a file": lambda tools, folder: tools.analyze(f"{folder / 'own.py'}:target"),
    "inspect a folder's code": lambda tools, folder: tools.inspect(str(folder / "coded"), trust=True),
    "search a folder's code": lambda tools, folder: tools.start_search(model=str(folder / "coded"), trust=True),
    "analyze a folder's code": lambda tools, folder: tools.analyze(str(folder / "coded"), trust=True),
    "search with the code of weights": lambda tools, folder: tools.start_search(
        model=str(folder / "allowed"), weights=str(folder / "coded"), trust=True
    ),
    "analyze a folder with a recipe": lambda tools, folder: tools.analyze(folder=str(folder)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model, a recipe, and a folder that is allowed, from which links lead out."""
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link.py").symlink_to(tmp_path / "own.py")
    (allowed / "recipe.yaml").write_text(f"{RECIPE}directory: ..\n")
    (allowed / "fine.yaml").write_text(RECIPE)
    (allowed / "shapes.yaml").write_text("version: 1\nshapes: [{recipe: fine.yaml}, {recipe: ../recipe.yaml}]\n")
    (tmp_path / "coded").mkdir()
    for place in (tmp_path / "coded", allowed):
        (place / "config.json").write_text('{"auto_map": {"AutoModelForCausalLM": "own.Own"}}')
    return tmp_path


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("has_root", [False, True])
def test_code_outside_of_the_allowed_folders_does_not_run(
    case: str, has_root: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is even started, and the message names the option."""

    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(mcp_server, "_answer", started)
    monkeypatch.setattr(jobs, "start", started)
    roots = [folder / "allowed"] if has_root else []
    tools = Tools(folder / "runs", Permissions.of_folders(roots, writes=True))
    with one_line_error(BadInputError, r"this server runs only .*; start it with --allow-run "):
        CALLS[case](tools, folder)
    assert not (folder / "ran").exists()


def test_code_below_an_allowed_folder_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As do presets and configurations, which are no code of the user's, without any folder."""
    calls: list[str] = []
    monkeypatch.setattr(mcp_server, "_answer", lambda command, *_: calls.append(command))
    (tmp_path / "config.json").write_text("{}")
    Tools(tmp_path, Permissions.of_folders([Path(OWN_MODEL).parent], writes=False)).inspect(OWN_MODEL)
    Tools(tmp_path, Permissions()).inspect("llama")
    Tools(tmp_path, Permissions()).inspect(str(tmp_path))
    assert calls == ["inspect"] * 3


def test_only_an_allowed_cluster_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs a cluster runs code on the machines that connect to it."""
    started: list[tuple[str, ...]] = []

    def start(*arguments: Any, **_options: Any) -> None:
        started.append(arguments[2])
        raise BadInputError("started")

    monkeypatch.setattr(jobs, "start", start)
    tools = Tools(tmp_path, Permissions(addresses=("ours:6379",)))
    with pytest.raises(BadInputError, match=r"connects only to .* or ours:6379, .* --allow-cluster theirs:6379"):
        tools.start_search(model="llama", engine="ray", address="theirs:6379")
    assert not started
    for address in (None, "ours:6379"):
        with pytest.raises(BadInputError, match="started"):
            tools.start_search(model="llama", engine="ray", address=address, workers=3)
    assert {"--engine=ray", "--workers=3"} <= set(started[0])
    assert "--address=ours:6379" in started[1]


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """A mistake there would be noticed late."""
    with pytest.raises(BadInputError, match=r"--allow-run .* is not a folder"):
        Permissions.of_folders([tmp_path / "nothing"], writes=False)


def test_hints_say_what_the_tools_may_do(tmp_path: Path) -> None:
    """They depend on the options of the server."""

    def hints(allowed: Permissions) -> dict[str, tuple[bool | None, bool | None]]:
        tools = anyio.run(make_server(tmp_path, allowed).list_tools)
        each = ((tool.name, tool.annotations) for tool in tools)
        return {name: (hint.read_only_hint, hint.destructive_hint) for name, hint in each if hint}

    safe, all_allowed = hints(Permissions()), hints(Permissions(True, (tmp_path,)))
    changing = {"start_search", "analyze", "stop_search", "show_result", "profile"}
    assert {name for name, (reads, _) in safe.items() if not reads} == changing
    assert not any(destroys for _, destroys in safe.values())
    assert {name for name, (_, destroys) in all_allowed.items() if destroys} == {
        "inspect", "start_search", "analyze", "apply_plan",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 10_000, '{"name": 1, "words": 2}', "\0"])
def test_a_damaged_job_does_not_hide_the_others(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is named in a warning, and everything else works as before."""
    damaged = tmp_path / jobs.FOLDER / "damaged" / "job.json"
    whole = tmp_path / jobs.FOLDER / "whole" / "job.json"
    for path in (damaged, whole):
        path.parent.mkdir(parents=True)
    damaged.write_text(text)
    job = {"name": "ours", "words": ["search"], "ends_with": "study_finished", "is_timed": True, "host": "h"}
    whole.write_text(str(job | {"begins_at": 0}).replace("'", '"').replace("True", "true"))
    assert [each["name"] for each in Tools(tmp_path, Permissions()).list_studies()["studies"]] == ["ours"]
    assert str(damaged) in caplog.text


@pytest.mark.parametrize("number", ["-1", "0", "1 2", "x"])
def test_only_a_process_is_stopped(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number below zero would be a group, and -1 all processes of the user's."""
    monkeypatch.setattr(jobs, "is_held", lambda lock: True)
    monkeypatch.setattr("os.kill", lambda *_: pytest.fail("a signal is sent"))
    monkeypatch.setattr("socket.gethostname", lambda: "h")
    (tmp_path / "lock").write_text(number)
    job = jobs.BackgroundJob("ours", (), "study_finished", True, "h", 0, tmp_path)
    with pytest.raises(BadInputError, match="has no process ID"):
        job.stop()
