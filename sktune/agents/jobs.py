"""Jobs: searches and analyses that run in the background, each in its own process and session.

A job's state is stored in its folder, ``jobs/<name>/`` below the runs, so a job outlives the program that started it,
and any other program can follow and stop it:

    job.json      what runs: see ``BackgroundJob``
    events.jsonl  the events of all its runs, in order
    log.txt       messages for people
    lock          held by its process until it ends; contains the process ID
    stop          exists once the running process was asked to stop
"""

import fcntl
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

from pydantic import Field, ValidationError

from sktune.core.codec import decoded, encoded
from sktune.core.errors import BadInputError
from sktune.core.events.commands import CommandFailed, CommandStopped
from sktune.core.events.lines import parse_event
from sktune.core.files import read_text
from sktune.core.plain_data import load_json
from sktune.study.claims import is_held
from sktune.study.study import folder_name

logger = logging.getLogger(__name__)

FOLDER = "jobs"
COMMAND = (sys.executable, "-P", "-m", "sktune.cli")
"""Without the working folder on the path, which may hold anything."""
POLL_S = 0.1
"""Seconds between two polls for new events."""
LOCK_WAIT_S = 2.0
"""Seconds that a start waits for the lock: a run that has just ended, or a check of it, may hold it for a moment."""


DAMAGED = "delete it, and start the job again if it is needed"


class JobState(StrEnum):
    """What a job is doing, or how its last run ended."""

    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    DIED = "died"


_CLOSING = {CommandFailed.event: JobState.FAILED, CommandStopped.event: JobState.STOPPED}


@dataclass(frozen=True)
class BackgroundJob:
    """A job, as described in its folder.

    Attributes:
        name: for a search, the name of its study.
        words: arguments of the command, without ``--json``.
        ends_with: kind of the last event of a run that finishes.
        is_timed: whether it measures time; two such jobs at the same time disturb each other.
        host: where it runs.
        begins_at: number of lines that its earlier runs have printed.
        folder: where all of this is stored.
    """

    name: str
    words: tuple[str, ...]
    ends_with: str
    is_timed: bool
    host: str
    begins_at: Annotated[int, Field(ge=0)]
    folder: Annotated[Path, Field(exclude=True)]

    @property
    def log(self) -> Path:
        """Messages for people."""
        return self.folder / "log.txt"

    @property
    def is_alive(self) -> bool:
        """Whether its process is running."""
        return is_held(self.folder / "lock")

    @property
    def state(self) -> JobState:
        """What it is doing, or how its last run ended."""
        alive = self.is_alive  # read before the events: it may print the last one in between
        last = next((event["event"] for event in reversed(self.events(self.begins_at)[0])), "")
        if closed := {**_CLOSING, self.ends_with: JobState.FINISHED}.get(last):
            return closed  # its process may still be cleaning up
        was_asked = (self.folder / "stop").exists()
        if alive:
            return JobState.STOPPING if was_asked else JobState.RUNNING
        return JobState.STOPPED if was_asked else JobState.DIED

    def events(self, since: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return the events of all its runs from line ``since`` on, counted from 0, and the number of the next line.

        A line that is still being written is left out, and so is one that was cut off by a kill.
        """
        lines = _lines(self.folder)
        return [event for line in lines[since:] if (event := parse_event(line))], len(lines)

    def state_and_events(self, since: int) -> tuple[JobState, list[dict[str, Any]], int]:
        """Return ``state`` and ``events(since)``; one that has ended comes with its last event."""
        state = self.state  # first: a last event may be printed in between
        return state, *self.events(since)

    def wait(self, since: int, seconds: float) -> None:
        """Wait until more than ``since`` lines are printed or its process has ended, for at most ``seconds``."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and len(_lines(self.folder)) <= since and self.is_alive:
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ask it to stop: the first time after the running trial, the second time immediately.

        Raises:
            BadInputError: it is not running, or runs on another host.
        """
        if not self.is_alive:
            raise BadInputError(f"{self.name!r} is not running (state: {self.state}); there is nothing to stop")
        if self.host != socket.gethostname():
            raise BadInputError(f"{self.name!r} runs on {self.host}; stop it there")
        number = read_text(self.folder / "lock", BadInputError, "stop it with Ctrl-C")
        if not number:
            raise BadInputError(f"{self.name!r} is still starting; try again in a second")
        if not re.fullmatch(r"[1-9][0-9]{0,9}", number):  # a negative number would be a group of processes
            raise BadInputError(f"{self.folder / 'lock'} has no process ID; stop the process with Ctrl-C")
        (self.folder / "stop").touch()
        with suppress(ProcessLookupError):  # it has ended in the meantime
            os.kill(int(number), signal.SIGINT)


def start(runs: Path, name: str, words: Sequence[str], *, ends_with: str, is_timed: bool) -> BackgroundJob:
    """Start a job whose last event is ``ends_with``; a job of the same name continues in the same folder.

    Args:
        runs: folder of the runs.
        name: for a search, the name of its study.
        words: arguments of the command, without ``--json``.
        ends_with: kind of its last event.
        is_timed: whether it measures time.

    Raises:
        BadInputError: it is already running, another job would disturb it, or its folder cannot be written.
    """
    if is_timed and (other := next((job for job in all_jobs(runs) if job.is_timed and job.is_alive), None)):
        raise BadInputError(f"{other.name!r} is running, and each would disturb the other; wait for it, or stop it")
    folder = runs / FOLDER / folder_name(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder / "lock", name) as lock:
            _end_line(folder / "events.jsonl")
            begins_at = len(_lines(folder))
            job = BackgroundJob(name, tuple(words), ends_with, is_timed, socket.gethostname(), begins_at, folder)
            (folder / "stop").unlink(missing_ok=True)
            _store(job)
            lock.write(str(_launched(job, lock)))
    except (OSError, ValueError) as failure:  # an argument with a null character, for instance
        raise BadInputError(f"{name!r} cannot be started: {failure}; fix that and start it again") from failure
    return job


def all_jobs(runs: Path) -> Iterator[BackgroundJob]:
    """Return all jobs below ``runs``, without those whose ``job.json`` is damaged."""
    for path in sorted((runs / FOLDER).glob("*/job.json")):
        try:
            data = load_json(read_text(path, BadInputError, DAMAGED), str(path), BadInputError, DAMAGED)
            if not isinstance(data, dict):
                raise BadInputError(f"{path} does not describe a job; {DAMAGED}")
            yield decoded(BackgroundJob, data | {"folder": path.parent})
        except ValidationError:
            logger.warning("%s does not describe a job; %s", path, DAMAGED)
        except BadInputError as failure:
            logger.warning("%s", failure)


def find_job(runs: Path, name: str) -> BackgroundJob | None:
    """Return the job of that name; None if there is none."""
    return next((job for job in all_jobs(runs) if job.name == name), None)


def _held(path: Path, name: str) -> TextIO:
    """Open the lock file, acquire the lock, and empty the file."""
    lock = path.open("a+", encoding="utf-8")
    until_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as failure:
            if time.monotonic() > until_s:
                lock.close()
                raise BadInputError(f"{name!r} is already running; follow it, or stop it first") from failure
            time.sleep(POLL_S)
        else:
            lock.truncate(0)
            return lock


def _store(job: BackgroundJob) -> None:
    new = job.folder / "job.json.new"
    new.write_text(json.dumps(encoded(job)), encoding="utf-8")
    new.replace(job.folder / "job.json")  # others may be reading it


def _launched(job: BackgroundJob, lock: TextIO) -> int:
    """Start the process, which inherits the lock and holds it until it ends; return its process ID."""
    with (job.folder / "events.jsonl").open("ab") as events, job.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command, without a shell
            [*COMMAND, *job.words, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=events,
            stderr=log,
            pass_fds=(lock.fileno(),),
            start_new_session=True,  # it outlives the program that started it
        )
    threading.Thread(target=process.wait, daemon=True).start()  # otherwise it stays a zombie
    return process.pid


def _lines(folder: Path) -> list[str]:
    try:
        text = (folder / "events.jsonl").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return text.split("\n")[:-1]


def _end_line(path: Path) -> None:
    """Complete the line that the last run was writing when it was killed."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with path.open("ab") as events:
            events.write(b"\n")
