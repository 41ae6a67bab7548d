"""Damaged inputs for every command, a few in CI, 10,000 for each by ``python -m benchmarks.fuzz``; and any paths."""

import json
import os
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz.harness import Tally, prepared, run
from benchmarks.fuzz.inputs import CONFIG, USES
from tests.builders import sktune_command, succeeded

INPUTS = {"analyze": 3, "search": 6, "calibrate": 6}
"""Inputs of the commands that take longest when they accept one; of others there are more."""
OTHERS = 15
PATH = os.environ["PATH"]
"""With programs."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder with the undamaged files."""
    with prepared() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("command", USES)
def test_a_damaged_input_ends_with_a_result_or_one_line(command: str, folder: Path) -> None:
    """No traceback and no hang; other numbers are other inputs."""
    tally = Tally()
    for number in range(INPUTS.get(command, OTHERS)):
        run(folder, command, number, tally)
    assert not tally.wrong
    assert sum(tally.ends.values()) == INPUTS.get(command, OTHERS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "--model", "llama", "--backend", "sim", "--trials", "1", "--runs", "loop"),
        ("search", "--recipe", "loop"),
        ("show", "x", "--runs", "loop"),
        ("report", "x", "--runs", "loop"),
        ("apply", "loop", "--to", "loop"),
        ("profile", "loop"),
        ("mcp", "--runs", "loop", "--allow-run", "loop"),
    ],
)
def test_a_link_to_itself_ends_in_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Python's ``Path.resolve`` raises RuntimeError for one."""
    (tmp_path / "loop").symlink_to("loop")
    done = sktune_command(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


LONG, NO_TEXT = "x" * 300, b"a\xffb".decode(errors="surrogateescape")


@pytest.mark.parametrize("name", [LONG, NO_TEXT])
@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "--model", "NAME"),
        ("search", "--model", "NAME", "--backend", "sim", "--trials", "1"),
        ("search", "--recipe", "NAME"),
        ("show", "NAME"),
        ("apply", "NAME", "--to", "NAME"),
        ("profile", "NAME"),
        ("recipe", "init", "NAME"),
        ("analyze", "--dir", "NAME"),
        ("fusion", "NAME"),
        ("agent", "install", "NAME"),
    ],
)
def test_a_name_that_no_file_has_ends_in_one_line(arguments: tuple[str, ...], name: str, tmp_path: Path) -> None:
    """Too long for the system, or not even text."""
    done = sktune_command(*(argument.replace("NAME", name) for argument in arguments), folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_a_folder_whose_name_is_no_text_can_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux allows any bytes."""
    monkeypatch.setenv("PATH", PATH)  # the worker may be the first that starts warm, which tries the compiler
    folder = tmp_path / NO_TEXT
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    runs = str(folder / "runs")
    options = ("--backend", "sim", "--trials", "1", "--runs", runs)
    succeeded("search", "--model", NO_TEXT, *options, folder=tmp_path)
    study = r"a\udcffb-sim-cpu"
    succeeded("show", study, "--runs", runs)
    succeeded("report", study, "--runs", runs)
    refused = sktune_command("search", "--model", "llama", "--backend", "sim", "--study", NO_TEXT)
    assert (refused.returncode, "is no text" in refused.stderr) == (2, True)


def test_a_traceback_and_a_hang_would_be_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness does not pass everything."""
    monkeypatch.setattr("benchmarks.fuzz.harness.LIMIT_S", 0.5)
    for failing in ("raise KeyError('x')", "while True: pass", "print('Traceback (most recent call last)')"):
        tally = Tally()

        def main(code: str = failing) -> None:
            exec(code)

        with monkeypatch.context() as patched:
            patched.setattr("tests.builders.main", main)
            run(folder, "apply", 0, tally)
        assert len(tally.wrong) == 1, failing


NAMES = st.one_of(
    st.text(st.sampled_from(r"""#?%&=+:;@!*[]{}()<>|'"\$`~^,. 41aäé日"""), min_size=1, max_size=12),
    st.binary(min_size=1, max_size=12).map(os.fsdecode),
).filter(lambda name: not set(name) & {"/", "\0", os.pathsep} and name.strip(".") != "")
"""Characters with a meaning in URLs, globs, shells, templates and markup, then any bytes; not a list of folders."""
MEANINGS = "a#b?c%41d"
COMMANDS = {f"{command} {number}": use for command, uses in USES.items() for number, use in enumerate(uses)}
SEARCHING = [command for command in COMMANDS if command.startswith("analyze ")]


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in SEARCHING])
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(name=MEANINGS)
@given(name=NAMES)
def test_a_command_ends_as_in_a_plain_folder(command: str, name: str, folder: Path) -> None:
    """Whatever characters the paths of its files and of its studies have; and nothing is made beside their folder."""
    check(command, folder, name)


@pytest.mark.slow
@pytest.mark.parametrize("command", SEARCHING)
def test_an_analysis_ends_as_in_a_plain_folder(command: str, folder: Path) -> None:
    """With one name: it searches."""
    check(command, folder, MEANINGS)


def check(command: str, folder: Path, name: str) -> None:
    """Check that a command ends in a folder of this name as in a plain one."""
    plain, _ = _end(command, folder, "plain")
    code, errors = _end(command, folder, name)
    assert code == plain, errors


@lru_cache(len(COMMANDS))
def _end(command: str, folder: Path, name: str) -> tuple[int, str]:
    """Return the exit code and the errors of a command in a folder of this name."""
    place = folder / "place" / name
    shutil.copytree(folder / "base", place, symlinks=True)
    try:
        arguments = [_absolute(argument, place) for argument in COMMANDS[command].arguments]
        done = sktune_command(*arguments, *_runs(command, place), folder=place)
        assert [path.name for path in place.parent.iterdir()] == [name]
        return done.returncode, done.stderr if done.returncode else ""
    finally:
        shutil.rmtree(place.parent)


def _absolute(argument: str, folder: Path) -> str:
    """Return the absolute path of an argument that is a file or the folder of one."""
    file, colon, function = argument.partition(":")
    return f"{folder / file}{colon}{function}" if (folder / file).exists() else argument


def _runs(command: str, folder: Path) -> list[str]:
    has_studies = command.split()[0] in ("search", "analyze", "show", "report")
    return ["--runs", str(folder / "runs")] if has_studies else []
