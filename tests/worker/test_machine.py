"""Failures of the machine: told from those of plans, they end a search and store nothing."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from sktune.core.errors import ExitCode, MachineError, StorageError, described, machine_failure
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Plan, Scope
from sktune.program.sktune_program.errors import CompileError
from sktune.reports.study import verdict_line
from sktune.worker.jobs import Judge
from sktune.worker.machine import explained, refuse_failure_of_machine
from tests import warm
from tests.builders import one_line_error
from tests.end_to_end.test_faults import faulty
from tests.fake_runner import FakeRunner, search


def caused(cause: Exception) -> Exception:
    """Return the failure of a plan that was caused by another one."""
    try:
        try:
            raise cause
        except Exception as failure:
            raise CompileError("scope a..b: InductorError", blamed="a..b") from failure
    except CompileError as failure:
        return failure


@pytest.mark.parametrize(
    "cause",
    [
        *(OSError(number, os.strerror(number)) for number in (
            errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
        )),
        RuntimeError("C++ compile error\n\nOutput:\nx.cpp:1: fatal error: error writing to /tmp/c.s: "
                     "No space left on device\n"),
        RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, '/no/such/g++')"),
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        RuntimeError("g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory"),
        RuntimeError("can't start new thread"),
        RuntimeError("CUDA error: no CUDA-capable device is detected"),
    ],
)  # fmt: skip
def test_a_failure_that_names_the_machine_is_the_machines(cause: Exception) -> None:
    """Also as the cause of the compiler's own error, and inside of its output; the message is that line alone."""
    for failure in (cause, caused(cause)):
        assert (found := machine_failure(failure))
        assert "\n" not in found and "scope" not in found


@pytest.mark.parametrize(
    "cause",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "model.bin"),
        RuntimeError("LoweringException: cannot be fused"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. "
                     "Error code 12 (Cannot allocate memory)"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)  # fmt: skip
def test_other_failures_are_plans(cause: Exception) -> None:
    """A plan may need more memory than there is, and its kernels may fail."""
    assert machine_failure(caused(cause)) == ""


def test_a_compilers_own_reason_is_told() -> None:
    """Not only that there was an error, as when a licence has ended; a traceback's later lines stay in the log."""
    output = "note\nx.cpp: fatal error: no licence\n1 error\n"
    failure = RuntimeError(f"C++ compile error\n\nCommand:\ng++ -Werror\n\nOutput:\n{output}")
    assert described(failure) == "RuntimeError: C++ compile error: x.cpp: fatal error: no licence"
    assert described(RuntimeError("bad\nan error")) == "RuntimeError: bad"


@pytest.mark.parametrize(
    ("line", "is_machines"),
    [
        ("rtStreamSynchronize failed, runtime result is 507899", True),  # driver
        ("rtKernelLaunch failed, runtime result is 507010", True),  # the scheduler's heartbeat is lost
        ("rtKernelLaunch failed, runtime result is 507015", False),  # a kernel
        ("the address is 15078991", False),
    ],
)
def test_canns_codes_of_devices_and_drivers_are_the_machines(line: str, is_machines: bool, tmp_path: Path) -> None:
    """Whatever the plan was; other codes stay the plan's."""
    log = tmp_path / "plog.log"
    log.write_text(f"[ERROR] RUNTIME(1,python):2026-08-01-10:00:00.000.000 [api.cc:1] EZ9999: {line}\n")
    outcome = Outcome(Reason.CRASHED, "the worker ended")
    if is_machines:
        with pytest.raises(MachineError, match=r"50\d{4}"):
            explained(outcome, Plan((Scope("a", "a"),)), [log])
    else:
        assert explained(outcome, Plan((Scope("a", "a"),)), [log]).reason is Reason.CRASHED


def test_what_a_log_or_a_full_disk_says_counts(tmp_path: Path) -> None:
    """Of a process that died without a word of its own."""
    log = tmp_path / "trial.log"
    refuse_failure_of_machine([log], [tmp_path, tmp_path / "missing"])
    log.write_text("Traceback\nOSError: [Errno 24] Too many open files: 'x'\n")
    with pytest.raises(MachineError, match="Too many open files: 'x'; mend that") as refused:
        refuse_failure_of_machine([log], [tmp_path])
    assert refused.value.exit_code == ExitCode.FAILED


def test_a_full_disk_is_the_machines(tmp_path: Path) -> None:
    """It is named, with its folder."""
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(small)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        refuse_failure_of_machine([], [small])
        with pytest.raises(OSError, match="No space left"):
            (small / "ballast").write_bytes(bytes(1 << 20))
        with pytest.raises(MachineError, match="no space is left in"):
            refuse_failure_of_machine([], [small])
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.parametrize("failure", [MachineError("full"), OSError(errno.ENOSPC, "full"), StorageError("full")])
@pytest.mark.parametrize("request_kind", ["judge", "sample_noise_floor", "verify", "compare"])
def test_it_ends_a_search_which_stores_nothing_of_it(
    failure: Exception, request_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever request, and however often: the same command goes on once the machine is well again."""
    monkeypatch.setattr("sktune.study.study.MAX_ATTEMPTS", 1)

    def breaks(kind: str, plans: Sequence[Plan]) -> None:
        if kind == request_kind:
            raise failure

    for _ in range(3):
        with pytest.raises(type(failure), match="full"):
            search(tmp_path, FakeRunner(breaks=breaks), trials=4)
    result = search(tmp_path, FakeRunner(), trials=4)
    assert result.winner is not None
    assert [record.outcome.reason for record in result.trials if record.outcome] == [None] * 4


@pytest.mark.parametrize("reason", [Reason.COMPILE_FAILED, Reason.CRASHED, Reason.TIMEOUT, Reason.MISMATCH])
def test_without_a_measured_plan_there_is_no_answer(reason: Reason, tmp_path: Path) -> None:
    """No scope is claimed only of plans that were compared; that nothing could be tried is said, with a page."""
    runner = FakeRunner(fault=lambda plan: Outcome(reason, "the reason"))
    for _ in range(2):  # also of a study that has ended
        result = search(tmp_path, runner, trials=4)
        assert result.has_failed
        assert re.match(f"Nothing could be tried: .*4 {reason}.*the reason", verdict_line(result))
    assert (tmp_path / "s" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", None], ids=["no path", "no such compiler"])
def test_without_a_compiler_no_plan_is_to_blame(
    path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker says so in one line, in a cold cache, and judges the plan once there is a compiler."""
    monkeypatch.delenv(warm.ADDRESS)  # a warm process needs a compiler when it starts
    if path is None:
        monkeypatch.setenv("CXX", "/no/such/g++")
    else:
        monkeypatch.setenv("PATH", path)
    with faulty("flips_a_bit", tmp_path, tmp_path / "cache") as (runner, plans):
        with one_line_error(MachineError, r"the machine fails, not the plan: .*; mend that"):
            runner.run(Judge(plans["sound"], "trial-0000.log"), lambda stage: None)
        monkeypatch.undo()
        assert runner.run(Judge(plans["sound"], "trial-0000.log"), lambda stage: None).speedup


@pytest.mark.slow
def test_a_compiler_that_hangs_blames_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next worker tries one operator before a timeout is stored."""
    command = [sys.executable, "-m", "tests.command", "--version"]
    subprocess.run(command, capture_output=True, check=True)  # what starts warm has tried the compiler when it begins
    monkeypatch.setattr("sktune.worker.runner.MIN_RUN_TIMEOUT_S", 4.0)
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    with faulty("flips_a_bit", tmp_path, tmp_path / "cache") as (runner, plans):
        runner._compile_timeout_s = 2.0
        with pytest.raises(MachineError, match="one operator does not compile either: compile did not end within 4 s"):
            runner.run(Judge(plans["sound"], "trial-0000.log"), lambda stage: None)
        monkeypatch.undo()
        runner._compile_timeout_s = 60.0
        assert runner.run(Judge(plans["sound"], "trial-0000.log"), lambda stage: None).speedup
