"""However a search ends, nothing that it has started goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from sktune.core.errors import BackendError
from sktune.tuning.request import Request, space_spec
from sktune.worker.jobs import RunnerSetup
from sktune.worker.process_tree import is_alive
from sktune.worker.runner import WorkerRunner

PROGRAM = """
import json, os, pathlib, subprocess, sys, time
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, start_new_session=True, env={})
pathlib.Path("pids.new").write_text(json.dumps([os.getpid(), child.pid]))
pathlib.Path("pids.new").rename("pids")
time.sleep(600)
"""
"""Starts a child in a session of its own and without the run's environment, and goes on for ever."""
DIES = """
import os, signal
import torch
import sktune

def prefill(seed, steps):
    if os.fork() == 0:
        os.setsid()
        with open({pids!r}, "w") as file:
            file.write(f"[{{os.getpid()}}]")
        signal.pause()
    while not os.path.exists({pids!r}) or not os.path.getsize({pids!r}):
        pass
    os.kill(os.getpid(), signal.SIGKILL)

def target():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    return sktune.Target(module, decode_step=module.forward, prefill=prefill)
"""
"""A target whose process dies, while a child that it has forked holds its pipes."""


def wait_for_end(pids: list[int]) -> None:
    """Wait until processes have ended; kill them and fail if they do not."""
    until_s = time.monotonic() + 30
    while left := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > until_s:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"{len(left)} of {len(pids)} processes went on")
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_recipes_program_ends_with_its_search(tmp_path: Path, number: signal.Signals) -> None:
    """With all that it has started; unless the search is killed, a line says how to continue."""
    (tmp_path / "program.py").write_text(PROGRAM)
    recipe = {"version": 1, "name": "endless", "command": [sys.executable, "program.py"], "other_inference": "(?!)"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "backend": "inductor"}))
    command = [sys.executable, "-m", "sktune.cli", "search", "--recipe", "recipe.yaml", "--trials", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as search:
        until_s = time.monotonic() + 120
        while not (tmp_path / "pids").exists() and search.poll() is None and time.monotonic() < until_s:
            time.sleep(0.05)
        search.send_signal(number)
        _, errors = search.communicate()
    wait_for_end(json.loads((tmp_path / "pids").read_text()))
    if number is signal.SIGKILL:
        assert search.returncode == -number
        return
    assert search.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith(f"stopped immediately by {number.name}; run the same command to continue")
    assert "Traceback" not in errors


def test_a_worker_that_dies_is_noticed_while_its_child_holds_the_pipe(tmp_path: Path, compile_cache: Path) -> None:
    """And the child, in a session of its own, ends as well."""
    (tmp_path / "dies.py").write_text(DIES.format(pids=str(tmp_path / "pids")))
    request = Request(f"{tmp_path / 'dies.py'}:target")
    spec, preset = request.target()
    setup = RunnerSetup(spec, space_spec(request, spec, preset), tmp_path / "study", compile_cache, 60)
    with WorkerRunner(setup) as runner:
        runner.deadline_s = time.monotonic() + 120
        with pytest.raises(BackendError, match=r"killed by SIGKILL .* before the baseline was ready"):
            runner.open()
        wait_for_end(json.loads((tmp_path / "pids").read_text()))
