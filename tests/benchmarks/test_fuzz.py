"""Damaged inputs for every command: a few in CI, 10,000 for each by ``python -m benchmarks.fuzz``."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fuzz.harness import Tally, prepared, run
from benchmarks.fuzz.inputs import CONFIG, USES
from tests.builders import sktune_command

INPUTS = {"analyze": 3, "search": 6, "calibrate": 6}
"""Inputs of the commands that take longest when they accept one; of others there are more."""
OTHERS = 15


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


def test_a_folder_whose_name_is_no_text_can_be_searched(tmp_path: Path) -> None:
    """Linux allows any bytes."""
    folder = tmp_path / NO_TEXT
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    runs = str(folder / "runs")
    options = ("--backend", "sim", "--trials", "1", "--runs", runs)
    done = sktune_command("search", "--model", NO_TEXT, *options, folder=tmp_path)
    assert done.returncode == 0
    study = r"a\udcffb-sim-cpu"
    assert sktune_command("show", study, "--runs", runs).returncode == 0
    assert sktune_command("report", study, "--runs", runs).returncode == 0
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
