"""What people see: names from files are printed, not obeyed, and errors are one line."""

import errno
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from sktune.cli.terminal import PrintableFormatter, Terminal
from sktune.core.printable import printable, shortened
from tests.builders import sktune_command, sktune_process
from tests.reports.page_studies import study_in

EVIL = "a\x1b]0;title\x07\x1b[2Jb\x9b31mc\u202ed\r"


def test_a_name_cannot_command_the_terminal() -> None:
    """Neither in text nor in tables; colours of our own remain."""
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, color_system="standard", width=200)
    table = Table(EVIL)
    table.add_row(f"[red]{EVIL}[/red]")
    terminal.print(EVIL, table, style="bold")
    shown = file.getvalue()
    for sequence in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07", "\r"):
        assert sequence not in shown
    assert "\x1b[1m" in shown


def test_text_of_people_is_printed_as_it_is() -> None:
    """In every script, with tabs and line ends."""
    for text in ("使用自动分析工具\u3000ok", "naïve\tcafé\n", "🙂"):
        assert printable(text) == text


@given(st.text("ab  ", max_size=60), st.integers(4, 40))
def test_long_text_is_shortened_in_its_middle(text: str, limit: int) -> None:
    """To at most the limit; both ends stay."""
    short = shortened(text, limit)
    assert len(short) <= limit
    if len(text) > limit:
        head, _, tail = short.partition("…")
        assert text.startswith(head)
        assert text.endswith(tail)


def test_words_are_not_cut_where_that_costs_little() -> None:
    """Names of plans consist of words."""
    assert shortened("embed_tokens to mlp over 2 layers, 2 scopes", 36) == "embed_tokens to … layers, 2 scopes"
    assert shortened("x" * 50, 9) == "xxxx…xxxx"


def test_messages_in_the_log_are_printable() -> None:
    """They name other processes, which any user can start."""
    record = logging.LogRecord("x", logging.WARNING, "", 1, "process %s", (EVIL,), None)
    assert "\x1b" not in PrintableFormatter("%(message)s").format(record)


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "long" * 60, "[bold]markup", os.fsdecode(b"\xff")])
def test_an_error_is_one_printable_line(name: str, tmp_path: Path) -> None:
    """Whatever the file is called that it names."""
    done = sktune_command("apply", name, "--to", str(tmp_path), "--json")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "\x1b" not in line
    assert json.loads(done.stdout)["event"] == "error"


@pytest.mark.parametrize(
    "failure",
    [
        MemoryError(),
        SystemError("error return without exception set"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_what_the_machine_lacks_is_one_line(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a way out, wherever it was missing."""

    def inspect(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("sktune.tuning.inspect.inspect_model", inspect)
    done = sktune_command("inspect", "--model", "llama")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and line.endswith("run the same command again")


def test_a_file_name_that_is_not_utf8_is_no_traceback(tmp_path: Path) -> None:
    """As a process, whose streams are encoded."""
    done = sktune_process("profile", os.fsdecode(b"\xff.csv"), "--json", folder=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["event"] == "error"


def test_text_with_colons_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A module and its function are no picture; neither in text nor in tables."""
    table = Table("name")
    table.add_row("a:b:c")
    Terminal().print(":bug: a:b:c", table)
    shown = capsys.readouterr().out
    assert ":bug: a:b:c" in shown
    assert shown.count("a:b:c") == 2


def test_a_terminal_without_unicode_gets_what_it_can_show(tmp_path: Path) -> None:
    """People's text is written with escapes, and JSON lines are the same values."""
    study_in(tmp_path, "研究", trials=2, final=False)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "sktune.cli", "studies", "--runs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=300)
    assert b"\\u7814\\u7a76" in done.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, check=True, env=environment, timeout=300)
    assert json.loads(done.stdout)["studies"][0]["study"] == "研究"
