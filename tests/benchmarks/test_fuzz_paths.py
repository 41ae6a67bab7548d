"""Paths of any characters, for every command."""

import os
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz.harness import prepared
from benchmarks.fuzz.inputs import USES
from tests.builders import sktune_command

NAMES = st.one_of(
    st.text(st.sampled_from(r"""#?%&=+:;@!*[]{}()<>|'"\$`~^,. 41aäé日"""), min_size=1, max_size=12),
    st.binary(min_size=1, max_size=12).map(os.fsdecode),
).filter(lambda name: not set(name) & {"/", "\0", os.pathsep} and name.strip(".") != "")
"""Characters with a meaning in URLs, globs, shells, templates and markup, then any bytes; not a list of folders."""
MEANINGS = "a#b?c%41d"
COMMANDS = {f"{command} {number}": use for command, uses in USES.items() for number, use in enumerate(uses)}
LONG = [command for command in COMMANDS if command.startswith("analyze ")]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder with the files of all commands."""
    with prepared() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in LONG])
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(name=MEANINGS)
@given(name=NAMES)
def test_a_command_ends_as_in_a_plain_folder(command: str, name: str, folder: Path) -> None:
    """Whatever characters the paths of its files and of its studies have; and nothing is made beside their folder."""
    check(command, folder, name)


@pytest.mark.slow
@pytest.mark.parametrize("command", LONG)
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
