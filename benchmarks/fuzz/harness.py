"""Runs a command with damaged input in this process, and judges how it ends."""

import faulthandler
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from unittest.mock import patch

from benchmarks.fuzz.inputs import damaged, make_base
from sktune.backends import all_backends
from tests.builders import TESTS, install_toy, sktune_command
from tests.guard import HangError, no_hang

LIMIT_S = 60.0
"""Seconds after which an input hangs; none takes a tenth of it on an idle machine."""


@dataclass
class Tally:
    """How the inputs of one command ended.

    Attributes:
        ends: number of inputs by exit code.
        wrong: for each that ended wrongly, its number and how.
        slowest_s: the longest time of one input.
    """

    ends: Counter[int] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    slowest_s: float = 0.0

    def add(self, other: "Tally") -> None:
        """Add what other inputs of the command did."""
        self.ends += other.ends
        self.wrong += other.wrong
        self.slowest_s = max(self.slowest_s, other.slowest_s)


@contextmanager
def prepared() -> Iterator[Path]:
    """Yield a folder with the undamaged files; a backend that needs no worker, and no programs, can be found."""
    with (
        tempfile.TemporaryDirectory(prefix="sktune-fuzz-") as name,
        patch.dict(os.environ),
        patch.object(sys, "path", [name, *sys.path]),
    ):
        folder = Path(name)
        toy = (TESTS / "contract" / "toy.py").read_text()
        install_toy(folder, toy, "[sktune.backends]\ntoy-computed = toy:COMPUTED\n")
        (folder / "no-programs").mkdir()
        os.environ["PATH"] = str(folder / "no-programs")
        all_backends.cache_clear()
        sys.modules.pop("toy", None)  # another test's
        try:
            make_base(folder / "base")
            yield folder
        finally:
            all_backends.cache_clear()
            sys.modules.pop("toy", None)


_opened = ExitStack()
_folders: list[Path] = []


def prepare() -> None:
    """Prepare this process for ``run_chunk``, until it ends."""
    _folders.append(_opened.enter_context(prepared()))


def run_chunk(command: str, numbers: Iterable[int]) -> Tally:
    """Run a command with the inputs of these numbers."""
    tally = Tally()
    for number in numbers:
        run(_folders[0], command, number, tally)
    return tally


def run(folder: Path, command: str, number: int, tally: Tally) -> None:
    """Run a command with its input ``number``, the same in every process, and add its end to ``tally``."""
    work = folder / "work"
    shutil.copytree(folder / "base", work, symlinks=True)
    began = monotonic()
    faulthandler.dump_traceback_later(3 * LIMIT_S, exit=True)  # a hang in C, where no Python can be interrupted
    try:
        arguments = damaged(random.Random(f"{command} {number}"), command, work)
        with no_hang(LIMIT_S):
            done = sktune_command(*arguments, folder=work)
        tally.ends[done.returncode] += 1
        if problem := _problem(done.returncode, done.stdout, done.stderr):
            tally.wrong.append((number, problem))
    except HangError:
        tally.wrong.append((number, f"hangs in {_place()}"))
    except Exception as failure:  # noqa: BLE001 - what a user would see as a traceback
        tally.wrong.append((number, f"{type(failure).__name__}: {failure!s:.200} in {_place()}"))
    finally:
        faulthandler.cancel_dump_traceback_later()
        tally.slowest_s = max(tally.slowest_s, monotonic() - began)
        with suppress(OSError):
            shutil.rmtree(work)


def _problem(exit_code: int, output: str, errors: str) -> str:
    """Return what is wrong with the end of a command; empty if nothing is."""
    if "Traceback (most recent call last)" in output + errors:
        return "a traceback is printed"
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    if "\x1b" in errors or "\x1b" in output:
        return "a terminal's command is printed"
    if exit_code == 0:
        return "an error, but exit code 0" if lines else ""
    if len(lines) != 1 or not errors.splitlines()[-1].startswith("error: "):
        return f"exit code {exit_code} with {len(lines)} lines of error: {errors[-200:]!r}"
    return "" if exit_code in (1, 2) else f"exit code {exit_code}"


def _place() -> str:
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [frame for frame in frames if f"{os.sep}sktune{os.sep}" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
