"""A worker's process and the pipes to it: its start, its answers line by line, its time limits and its end."""

import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sktune.backends import backend_info
from sktune.backends.info import BackendInfo
from sktune.core.errors import OutOfTimeError, SktuneError
from sktune.core.files import real_path, without_spaces
from sktune.targets import TargetSpec
from sktune.worker.process_tree import ProcessTree
from sktune.worker.server import SCRATCH

logger = logging.getLogger(__name__)

SERVER = "sktune.worker.server"
"""The module that a worker's process runs."""
POLL_S = 1.0
"""Seconds between two looks whether the worker has ended."""
WATCH_S = 5.0
"""Seconds between two looks whether the worker is at work."""
MAX_IDLE_SHARE, MAX_IDLE_BYTES = 0.01, 1 << 16
"""What threads that only poll use of the time between two looks, and read in it, at most."""


class WorkerDiedError(Exception):
    """The worker's process ended during a request."""


class StageTimeoutError(Exception):
    """A stage exceeded its time limit."""


def work_folder(backend: BackendInfo, folder: Path, number: int) -> Path | None:
    """Create a working folder for worker ``number`` in a study's ``folder``; None if it runs in the current folder."""
    if not backend.needs_fresh_process:
        return None
    parent = real_path(folder) / "work"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{number}-", dir=parent))


def environment_of(spec: TargetSpec, cache: Path, work: Path | None) -> dict[str, str]:
    """Return the environment of a worker; compiler caches go to ``cache``, other folders of compilers to ``work``."""
    backend = backend_info(spec.backend)
    environment = {
        **os.environ,
        **backend.worker_environment(spec.device),
        "TORCHINDUCTOR_CACHE_DIR": str(without_spaces(cache)),
        "LANGUAGE": "en",  # messages of compilers are read
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # With torch_npu installed but no CANN, importing torch would fail; the npu backend imports torch_npu itself.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    if work:
        for name, part in backend.worker_folders.items():
            (work / part).mkdir(parents=True)
            environment[name] = str(work / part)
    return environment


class IdleWatch:
    """Tells whether processes have done anything since it was asked last; polling threads do not count.

    Args:
        activity: returns the processor seconds used, and the bytes read.
    """

    def __init__(self, activity: Callable[[], tuple[float, int]]) -> None:
        self._activity, self._seen, self._at_s = activity, activity(), time.monotonic()

    def is_idle(self) -> bool:
        """Whether they computed for less than a hundredth of the time, and read less than 64 KiB."""
        (cpu_s, read_bytes), now_s = self._activity(), time.monotonic()
        computed_s, read = abs(cpu_s - self._seen[0]), abs(read_bytes - self._seen[1])
        share = computed_s / max(now_s - self._at_s, 1e-9)
        self._seen, self._at_s = (cpu_s, read_bytes), now_s
        return share < MAX_IDLE_SHARE and read < MAX_IDLE_BYTES


class WorkerProcess:
    """One worker process. It starts in the background and imports what it needs while the client continues.

    Args:
        backend: name of the backend.
        folder: working folder.
        environment: the complete environment.
        log: file for its output before the first request.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, backend: str, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._buffer = b""
        requests_in, self._requests = os.pipe()
        self._answers, answers_out = os.pipe()
        command = [sys.executable, "-m", SERVER, str(requests_in), str(answers_out), backend]
        scratch = None
        try:
            scratch = Path(tempfile.mkdtemp(prefix="sktune-"))
            variables = {**environment, SCRATCH: str(scratch)}
            with log.open("ab") as output:
                self._tree = ProcessTree(
                    command, folder, variables, output, pass_fds=(requests_in, answers_out), scratch=scratch
                )
        except OSError:
            os.close(self._requests)
            os.close(self._answers)
            if scratch:
                shutil.rmtree(scratch, ignore_errors=True)
            raise
        finally:
            os.close(requests_in)
            os.close(answers_out)
        logger.info("started worker %d", self._tree.pid)

    def stop(self) -> None:
        """Kill the worker, its compilers, and whatever else it has started."""
        self._tree.stop()
        os.close(self._requests)
        os.close(self._answers)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, and all that it started."""
        return self._tree.poll() is not None

    def pause(self, *, is_paused: bool) -> None:
        """Stop the process, or let it go on: while another one measures, it must not compute."""
        with suppress(ProcessLookupError):  # the next request shows that it has died
            os.kill(self._tree.pid, signal.SIGSTOP if is_paused else signal.SIGCONT)

    def ask(
        self,
        request: Mapping[str, Any],
        limit_s: Callable[[str], float],
        deadline_s: Callable[[], float],
        at_work_s: float = 0.0,
    ) -> Iterator[dict[str, Any]]:
        """Send a request and yield the answers, with a time limit for each stage.

        Args:
            request: JSON values.
            limit_s: returns how long a stage may take without a heartbeat.
            deadline_s: returns the time by which the request must end, on the clock of ``time.monotonic``.
            at_work_s: how long a stage may take while the worker computes or reads files.

        Raises:
            SktuneError: raised in the worker; its class is preserved.
            StageTimeoutError: a stage took too long.
            WorkerDiedError: the worker died.
            OutOfTimeError: at the deadline.
        """
        if time.monotonic() >= deadline_s():
            raise OutOfTimeError
        stage = "start"
        allowed_s = limit_s(stage)
        began_s = time.monotonic()
        until_s = began_s + allowed_s
        watch = IdleWatch(self._tree.activity) if at_work_s else None
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError as failure:
            raise WorkerDiedError(self._end_text()) from failure
        while True:
            line = self._line(min(until_s, deadline_s(), time.monotonic() + WATCH_S))
            if line is None:
                now_s = time.monotonic()
                if now_s >= deadline_s():
                    raise OutOfTimeError
                if watch and not watch.is_idle():
                    until_s = min(now_s + allowed_s, began_s + at_work_s)
                if now_s < until_s:
                    continue
                if now_s < began_s + at_work_s:
                    raise StageTimeoutError(f"the worker did nothing for {allowed_s:g} s")
                raise StageTimeoutError(f"{stage} did not end within {max(allowed_s, at_work_s):g} s")
            message = json.loads(line)
            if "error" in message:
                raise _rebuilt(message["error"], message["message"])
            if "alive" in message:
                until_s = time.monotonic() + allowed_s
                continue
            if "stage" in message:
                stage = message["stage"]
                allowed_s = limit_s(stage)
                until_s = time.monotonic() + allowed_s
            yield message

    def _line(self, until_s: float) -> bytes | None:
        """Return the next line; None on timeout."""
        answers = select.poll()
        answers.register(self._answers, select.POLLIN)
        while b"\n" not in self._buffer:
            # A child that was forked holds the pipe open, so its end does not show that the worker has ended.
            has_ended = self._tree.poll() is not None
            wait_s = 0.0 if has_ended else min(until_s - time.monotonic(), POLL_S)
            if answers.poll(1000 * max(0.0, wait_s)):
                chunk = os.read(self._answers, 1 << 16)
                if not chunk:
                    raise WorkerDiedError(self._end_text())
                self._buffer += chunk
            elif has_ended:
                raise WorkerDiedError(self._end_text())
            elif time.monotonic() >= until_s:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end_text(self) -> str:
        try:
            code = self._tree.wait(10)
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe"
        if code >= 0:
            return f"the worker ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"the worker was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _rebuilt(name: str, message: str) -> SktuneError:
    """Return the error that the worker raised."""
    return next((kind for kind in _kinds(SktuneError) if kind.__name__ == name), SktuneError)(message)


def _kinds(kind: type[SktuneError]) -> Iterator[type[SktuneError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
