"""A program and all its descendants, in whatever session they are: none of them outlives the search.

Between the search and the program runs a keeper: this file, executed as a script. It is the subreaper of its
descendants (prctl(2)): those whose parents have ended become its children, so that none can leave its tree, not even
with ``setsid``. The keeper kills the whole tree when it is asked to, when the program has ended, or when the search has
ended, for whatever reason.
"""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
POLL_S = 1.0
"""The keeper looks this often whether its parent has ended; normally a signal comes earlier."""
KILL_S = 10.0
"""How long killed processes may take to end: one may wait for a device or for network storage."""
STOP_S = KILL_S + POLL_S
"""How long the keeper may take to kill its tree."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
AWAITED = (signal.SIGCHLD, signal.SIGALRM, *ENDING)


class ProcessTree:
    """A program and its descendants.

    Args:
        argv: the program and its arguments.
        folder: its working folder.
        environment: its complete environment.
        output: file for its output and errors.
        pass_fds: file descriptors that it inherits.
        lingers: whether descendants may go on when the program has ended; otherwise they are killed then.
        scratch: a folder that is deleted once the whole tree has ended.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: IO[bytes],
        *,
        pass_fds: Sequence[int] = (),
        lingers: bool = False,
        scratch: Path | None = None,
    ) -> None:
        self._scratch = scratch
        started_in, started_out = os.pipe()
        keeper = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(started_out), str(int(lingers))]
        keeper += [str(scratch or "")]
        with os.fdopen(started_in, "rb") as started:
            try:
                self._keeper = subprocess.Popen(  # noqa: S603 - without a shell
                    [*keeper, *argv],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(*pass_fds, started_out),
                    start_new_session=True,  # Ctrl-C reaches the search only
                    env=dict(environment),
                )
            finally:
                os.close(started_out)
            result, _, value = started.readline().partition(b" ")
        if result != b"started":
            code = self._keeper.wait()
            number = int(value or 0)
            raise OSError(number, os.strerror(number) if number else f"its keeper ended with exit code {code}", argv[0])
        self.pid = int(value)

    @property
    def keeper_pid(self) -> int:
        """The keeper's process ID; ``pid`` is the program's."""
        return self._keeper.pid

    def poll(self) -> int | None:
        """Return the program's exit code, negative for a signal, once the whole tree has ended; None until then."""
        return self._keeper.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait for the end of the whole tree and return the program's exit code.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        return self._keeper.wait(timeout_s)

    def stop(self) -> None:
        """Kill the whole tree and delete its scratch folder."""
        self._keeper.terminate()
        try:
            self._keeper.wait(STOP_S)
        except subprocess.TimeoutExpired:  # somebody has stopped the keeper itself
            everyone = descendants(self._keeper.pid)
            _kill(everyone)
            self._keeper.kill()
            self._keeper.wait()
            until_s = time.monotonic() + KILL_S
            while any(map(is_alive, everyone)) and time.monotonic() < until_s:
                time.sleep(0.002)
        if self._scratch:  # the keeper may have been killed
            shutil.rmtree(self._scratch, ignore_errors=True)

    def activity(self) -> tuple[float, int]:
        """Return the processor seconds of the tree's processes, and the bytes that they have read."""
        cpu_s, read_bytes = 0.0, 0
        for pid in descendants(self._keeper.pid):
            with suppress(OSError, ValueError, IndexError):  # it may end meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
                cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own and its ended children's
                counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
                read_bytes += int(counts["rchar"]) + int(counts["read_bytes"])  # by calls, and by mapped pages
        return cpu_s, read_bytes


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    state = _status(pid)
    return state is not None and state[0] not in "ZX"


def _status(pid: int) -> tuple[str, int] | None:
    """Return a process's state and its parent's ID; None if there is no such process."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return state, int(parent)


def descendants(ancestor: int) -> list[int]:
    """Return the IDs of all processes below one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (status := _status(int(path.name))):
            children.setdefault(status[1], []).append(int(path.name))
    found, todo = list[int](), [ancestor]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _keep(parent: int, started: int, lingers: bool, scratch: str, argv: list[str]) -> None:
    """Run a program, kill its descendants in the end, and end as it did."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.set_inheritable(started, False)
    try:
        defaults = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them
        program = os.posix_spawnp(argv[0], argv, os.environ, setsid=True, setsigmask=(), setsigdef=defaults)
    except OSError as failure:
        os.write(started, b"failed %d\n" % (failure.errno or 0))
        os._exit(1)
    os.write(started, b"started %d\n" % program)
    opened = [int(path.name) for path in Path("/proc/self/fd").iterdir()]  # SC_OPEN_MAX may be a billion
    for number in opened:
        if number > 2:
            with suppress(OSError):  # that of the list itself
                os.close(number)  # the program's pipes must close with it
    # Not ``sigtimedwait``: stopped and continued, as Slurm suspends jobs, it returns a signal that nobody sent.
    signal.setitimer(signal.ITIMER_REAL, POLL_S, POLL_S)
    result: int | None = None
    while os.getppid() == parent:
        ended, has_children = _reap()
        result = ended.get(program, result)
        if not has_children or (result is not None and not lingers):
            break
        if signal.sigwaitinfo(AWAITED).si_signo in ENDING:
            break
    result = _reap()[0].get(program, result)  # it may have ended just before the keeper was asked to end
    _kill_descendants()
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    _end_as(result)


def _reap() -> tuple[dict[int, int], bool]:
    """Return the wait statuses of children that have ended, by process ID, and whether there are others."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if not pid:
            return ended, True
        ended[pid] = status


def _kill_descendants() -> None:
    until_s = time.monotonic() + KILL_S
    while _reap()[1] and time.monotonic() < until_s:
        _kill(descendants(os.getpid()))
        time.sleep(0.002)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _end_as(status: int | None) -> None:
    """End with the exit code or the signal of the program; with exit code 1 if it was killed here."""
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})  # no other: one may be pending
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    _keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4], sys.argv[5:])
