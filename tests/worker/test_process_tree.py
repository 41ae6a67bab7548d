"""Programs and their descendants: nothing of a tree is left, whoever ends first and however."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sktune.worker.process_tree import POLL_S, ProcessTree, is_alive

SCRIPT = """
import json, os, pathlib, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
if (child := os.fork()) == 0:  # its own child has no parent soon, and a session of its own
    os.setsid()
    if os.fork():
        os._exit(0)
    pathlib.Path("orphan").write_text(str(os.getpid()))
    time.sleep(600)
os.waitpid(child, 0)
while not pathlib.Path("orphan").exists() or not pathlib.Path("orphan").read_text():
    time.sleep(0.01)
children.append(int(pathlib.Path("orphan").read_text()))
pathlib.Path("children.new").write_text(json.dumps([os.getpid(), *children]))
pathlib.Path("children.new").rename("children")
"""
"""Starts a child, one in another session, and one whose parent has ended; writes the IDs of all processes."""
ENDS = {
    "sleeps": "time.sleep(600)",
    "exits": "sys.exit(3)",
    "is killed": "os.kill(os.getpid(), 9)",
    "segfaults": "os.kill(os.getpid(), 11)",
}


def started(folder: Path, end: str, *, lingers: bool = False) -> ProcessTree:
    """Start the script, which ends as ``ENDS`` says; its scratch folder contains a file."""
    command = [sys.executable, "-c", SCRIPT + ENDS[end]]
    (folder / "scratch").mkdir()
    (folder / "scratch/ccTq1.s").touch()
    with (folder / "log").open("wb") as log:
        return ProcessTree(command, folder, os.environ, log, lingers=lingers, scratch=folder / "scratch")


def pids(folder: Path) -> list[int]:
    """Return the IDs of the script's processes once all have started."""
    wait_for((folder / "children").exists, "the script to start its children")
    return [int(pid) for pid in json.loads((folder / "children").read_text())]


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so; fail after a time that is much longer than any of it takes."""
    until_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until_s, f"waited in vain for {what}"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    """Kill what a test that fails leaves behind."""
    yield
    if (tmp_path / "children").exists():
        for pid in filter(is_alive, pids(tmp_path)):
            os.kill(pid, signal.SIGKILL)


def test_stopping_a_tree_kills_all_of_it(tmp_path: Path) -> None:
    """Children in other sessions and those whose parents have ended, too."""
    tree = started(tmp_path, "sleeps")
    everyone = pids(tmp_path)
    assert tree.poll() is None
    assert all(map(is_alive, everyone))
    assert (tmp_path / "scratch").exists()
    tree.stop()
    assert not any(map(is_alive, [tree.keeper_pid, *everyone]))
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(("end", "code"), [("exits", 3), ("is killed", -9), ("segfaults", -11)])
def test_a_tree_ends_with_its_program_and_as_it_did(tmp_path: Path, end: str, code: int) -> None:
    """The exit code or the signal is the program's."""
    tree = started(tmp_path, end)
    assert tree.wait(60) == code
    assert not any(map(is_alive, pids(tmp_path)))
    assert not (tmp_path / "scratch").exists()


def test_descendants_may_go_on_without_the_program(tmp_path: Path) -> None:
    """As those of a launch script do; the exit code is still the program's."""
    tree = started(tmp_path, "exits", lingers=True)
    program, *children = pids(tmp_path)
    wait_for(lambda: not is_alive(program), "the program to exit")
    assert tree.poll() is None
    assert all(map(is_alive, children))
    tree.stop()
    assert tree.poll() == 3
    assert not any(map(is_alive, children))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV])
def test_a_tree_does_not_outlive_the_process_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    """However that process ends."""
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom sktune.worker.process_tree import ProcessTree\n"
        f"tree = ProcessTree([sys.executable, '-c', {SCRIPT + ENDS['sleeps']!r}], Path.cwd(), os.environ, "
        "open('log', 'wb'), scratch=Path('scratch'))\ntime.sleep(600)\n"
    )
    (tmp_path / "scratch").mkdir()
    search = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    everyone = pids(tmp_path)
    search.send_signal(number)
    assert search.wait() == -number
    wait_for(lambda: not any(map(is_alive, everyone)), "the tree to end")
    wait_for(lambda: not (tmp_path / "scratch").exists(), "its scratch folder to be deleted")


def test_a_tree_that_was_suspended_goes_on(tmp_path: Path) -> None:
    """Slurm suspends jobs with SIGSTOP."""
    tree = started(tmp_path, "sleeps")
    everyone = [tree.keeper_pid, *pids(tmp_path)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in everyone:
            os.kill(pid, number)
        time.sleep(1.5 * POLL_S)
    assert tree.poll() is None
    assert all(map(is_alive, everyone))
    tree.stop()


def test_a_keeper_that_is_stopped_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tree is killed directly, and has ended when that returns."""
    tree = started(tmp_path, "sleeps")
    everyone = pids(tmp_path)
    os.kill(tree.keeper_pid, signal.SIGSTOP)
    monkeypatch.setattr("sktune.worker.process_tree.STOP_S", 0.1)
    tree.stop()
    assert not any(map(is_alive, [tree.keeper_pid, *everyone]))
    assert not (tmp_path / "scratch").exists()


def test_a_program_that_ends_just_before_it_is_stopped_ended_by_itself(tmp_path: Path) -> None:
    """Its exit code is not lost where the keeper learns of both at once."""
    tree = started(tmp_path, "sleeps", lingers=True)
    program, *children = pids(tmp_path)
    os.kill(tree.keeper_pid, signal.SIGSTOP)
    os.kill(program, signal.SIGKILL)
    wait_for(lambda: not is_alive(program), "the program to be killed")
    os.kill(tree.keeper_pid, signal.SIGTERM)
    os.kill(tree.keeper_pid, signal.SIGCONT)
    assert tree.wait(60) == -signal.SIGKILL
    assert not any(map(is_alive, children))


@pytest.mark.parametrize("name", ["no-such-program", "."])
def test_a_program_that_cannot_be_started_is_an_os_error(tmp_path: Path, name: str) -> None:
    """It names the program."""
    with (tmp_path / "log").open("wb") as log, pytest.raises(OSError, match=name):
        ProcessTree([name], tmp_path, os.environ, log)
