"""A scene: the folder in which one search is disturbed and then run again, and the processes of the search."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import warm

SUBJECT_FILES = Path(__file__).parent / "subjects"
ROOT = Path(__file__).parents[2]
MARK = "CAMPAIGN_MARK"
STUDY = "disturbed"
ROLES = {"keeper": "process_tree.py", "worker": "benchmarks.campaign.server", "rank": "program.py"}
"""Part of the command line by which a process of a search is known."""
TRIALS = {"sim": "5", "ranks": "3", "inductor": "3"}
RECIPE = """
version: 1
name: two-ranks
command: [python3, -S, program.py]
ranks: 2
timeout_s: 10
backend: inductor
device: cpu
other_inference: "(?!)"
space: space.yaml
"""
SPACE = """
version: 1
space:
  layers_per_scope: [1]
  options: {inductor: {cpu: {matmul: [aten], reductions: [aten], cpp_wrapper: [false]}}}
"""


STARTING = 0.25
"""Share of the moments that are before the first event, by time; the others are by the number of events."""


@dataclass(frozen=True, slots=True)
class Usual:
    """What an undisturbed search is like: its duration and the number of events that it prints."""

    seconds: float
    events: int


@dataclass
class Search:
    """A running ``sktune search`` and what it prints."""

    process: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path
    began_s: float = field(default_factory=time.monotonic)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The complete events printed so far."""
        lines = self.stdout.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return [event for line in lines if (event := _parsed(line))]

    def sleep_until(self, after_s: float) -> bool:
        """Wait until some seconds after the start; return whether the search still runs then."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self.began_s + after_s - time.monotonic()))
        return self.process.poll() is None

    def reach(self, moment: float, usual: Usual) -> bool:
        """Wait until a share of the search is done, however busy the machine is; return whether it still runs then."""
        if moment < STARTING:
            return self.sleep_until(moment * usual.seconds)
        done = (moment - STARTING) / (1.0 - STARTING) * usual.events
        while self.process.poll() is None and len(self.events) < int(done):
            time.sleep(0.01)
        time.sleep(0.3 * (done % 1.0))
        return self.process.poll() is None

    def of(self, role: str) -> list[int]:
        """Return the processes of a role: ``search``, or a key of ``ROLES``."""
        search = warm.forked(self.process.pid)
        if role == "search":
            return [search] if self.process.poll() is None else []
        pids = [pid for pid in _descendants(search) if ROLES[role] in _cmdline(pid)]
        # A keeper has its program in its command line, too.
        return [warm.forked(pid) for pid in pids if (role == "keeper") == (ROLES["keeper"] in _cmdline(pid))]

    def end(self, limit_s: float) -> int | None:
        """Wait for its end and return the exit code; None if it had to be killed after ``limit_s``."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


class Scene:
    """The folder of one search.

    Args:
        folder: contains ``work`` (where the search runs), ``tmp`` (its temporary files) and ``out`` (what it prints).
        subject: what is searched.
        cache: compiled code to begin with.
        shim: the preloaded library; None to run without it.
        variables: added to the environment of every search.
    """

    def __init__(
        self, folder: Path, subject: str, cache: Path | None = None, shim: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.subject = folder, subject
        self.work, self.tmp, self.out = folder / "work", folder / "tmp", folder / "out"
        self.study = self.work / "runs" / STUDY
        self.database = self.study / "study.db"
        self.cache = self.work / "runs" / "cache"
        self.control = self.out / "control"
        self._mark, self._shim, self._cache = uuid.uuid4().hex, shim, cache
        self._variables = dict(variables or {})
        for each in (self.work, self.tmp, self.out):
            each.mkdir(parents=True, exist_ok=True)
        self.control.write_bytes(bytes(48))

    def prepare(self) -> None:
        """Write the recipe and copy the compiled code into ``work``, which may have been mounted since."""
        if self.subject == "ranks":
            shutil.copy(SUBJECT_FILES / "program.py", self.work)
            (self.work / "recipe.yaml").write_text(RECIPE)
            (self.work / "space.yaml").write_text(SPACE)
        if self._cache and self._cache.exists():
            shutil.copytree(self._cache, self.cache)

    def start(self, name: str, **variables: str) -> Search:
        """Start the command, which is always the same; ``variables`` are added to its environment."""
        target = ["--model", f"{SUBJECT_FILES / 'model.py'}:target"]
        if self.subject == "ranks":
            target = ["--recipe", "recipe.yaml"]
        elif self.subject == "sim":
            target += ["--backend", "sim"]
        command = [
            sys.executable,
            "-m",
            "benchmarks.campaign.command",
            "search",
            *target,
            "--trials",
            TRIALS[self.subject],
        ]
        command += ["--study", STUDY, "--compile-timeout", "10", "--verify-steps", "64", "--json"]
        stdout, stderr = self.out / f"{name}.jsonl", self.out / f"{name}.txt"
        with stdout.open("wb") as output, stderr.open("wb") as errors:
            process = subprocess.Popen(
                command, cwd=self.work, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                env=self._environment() | variables, start_new_session=True,
            )  # fmt: skip
        return Search(process, stdout, stderr)

    def _environment(self) -> dict[str, str]:
        preloaded = {"LD_PRELOAD": str(self._shim)} if self._shim else {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")}
        return {
            **inherited, **preloaded, **self._variables, MARK: self._mark,
            "TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT), "PATH": path,
            "OMP_NUM_THREADS": "1", "CAMPAIGN_CONTROL": str(self.control), "CAMPAIGN_FOLDER": str(self.work),
        }  # fmt: skip

    def processes(self) -> Iterator[int]:
        """Yield all living processes that the search has started, wherever they are."""
        mark = f"{MARK}={self._mark}".encode()
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with suppress(OSError):
                    if mark in (path / "environ").read_bytes().split(b"\0"):
                        yield int(path.name)

    def left_processes(self, patience_s: float) -> list[str]:
        """Return the command lines of the processes that still run after ``patience_s``, and kill them."""
        until_s = time.monotonic() + patience_s
        while (left := list(self.processes())) and time.monotonic() < until_s:
            time.sleep(0.05)
        lines = [_cmdline(pid).strip()[:120] for pid in left]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return lines

    def files(self) -> set[str]:
        """Return the paths below ``work`` and ``tmp``, with digits replaced, without caches."""
        paths = [path for top in (self.work, self.tmp) for path in top.rglob("*") if path.is_file()]
        kept = [path for path in paths if not path.is_relative_to(self.cache) and "__pycache__" not in path.parts]
        return {_without_digits(str(path.relative_to(self.folder))) for path in kept}


def build_shim(folder: Path) -> Path | None:
    """Compile the preloaded library; None if there is no C compiler."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC").split()[0]
    shim = folder / "shim.so"
    source = Path(__file__).parent / "shim.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(shim), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return shim


def read_controls() -> None:
    """Have the preloaded library, if there is one, read this process's environment, after a fork."""
    with suppress(AttributeError):
        ctypes.CDLL(None).campaign_begin()


def _without_digits(text: str) -> str:
    return "".join("0" if char.isdigit() else char for char in text).replace("00", "0").replace("00", "0")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parent = int((path / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(path.name))
    found, todo = list[int](), [ancestor]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def record(database: Path) -> Mapping[int, Any]:
    """Return the ended trials in a study's database by number, read without sktune and Optuna."""
    import sqlite3
    from contextlib import closing

    trials: dict[int, Any] = {}
    query = (
        "SELECT number, state, key, value_json FROM trials LEFT JOIN trial_user_attributes USING (trial_id) "
        "WHERE state NOT IN ('RUNNING', 'WAITING')"
    )
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=20)) as connection:
        for number, state, key, value in connection.execute(query):
            trials.setdefault(number, {"state": state})[key] = json.loads(value) if value else None
    return trials
