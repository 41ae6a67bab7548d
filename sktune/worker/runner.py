"""The runner of sktune's own workers: keeps a process alive, sends it jobs, and turns its death into an outcome.

Requests and answers go through pipes, line by line, with a time limit for each stage.
"""

import json
import logging
import math
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
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from sktune.backends import backend_info
from sktune.backends.info import BackendInfo
from sktune.core.codec import decoded, encoded
from sktune.core.delivery import Delivery
from sktune.core.errors import (
    DEVICE_ERROR,
    MEND_MACHINE,
    BackendError,
    MachineError,
    OutOfTimeError,
    SktuneError,
    TargetError,
    first_line,
)
from sktune.core.files import real_path, without_spaces
from sktune.core.outcome import MAX_FINALISTS, MAX_SHORTLISTED, FinalRow, Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.core.verification import Verification
from sktune.measure.machine import Machine
from sktune.program.sktune_program.launch import PLAN_VARIABLE, RUN_VARIABLE
from sktune.targets import TargetSpec
from sktune.worker.jobs import (
    SCRATCH,
    CheckMachine,
    Compare,
    Deliver,
    Job,
    Judge,
    LoadModel,
    Opened,
    ProcessComparison,
    Report,
    RunnerSetup,
    RunnerTraits,
    Shortlist,
    Verify,
    durations_in_fresh_processes,
    durations_in_one_process,
    silent,
)
from sktune.worker.machine import explained, refuse_failure_of_machine, rename_old
from sktune.worker.process_tree import ProcessTree

logger = logging.getLogger(__name__)
T = TypeVar("T")

SERVER = "sktune.worker.server"
"""The module that a worker's process runs."""
POLL_S = 1.0
"""Seconds between two looks whether the worker has ended."""
WATCH_S = 5.0
"""Seconds between two looks whether the worker is at work."""
MAX_IDLE_SHARE, MAX_IDLE_BYTES = 0.01, 1 << 16
"""A process is idle if it used at most this share of a core between two looks, and read at most so many bytes: threads
that poll do as much."""


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
    """Return the environment of a worker; compiler caches go to ``cache``, other folders of compilers to ``work``.

    A plan that the user's shell has for its programs must not be on the baseline.
    """
    backend = backend_info(spec.backend)
    inherited = {name: value for name, value in os.environ.items() if name not in (PLAN_VARIABLE, RUN_VARIABLE)}
    environment = {
        **inherited,
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


MAX_BYTES = 20 << 30
KEPT_S = 3600.0
"""What was used in the last hour is never deleted: a process may be about to load it."""
ENTRIES = ("fxgraph", "aotautograd")
"""Folders of entries, beside those of code, whose names have two characters."""
CHOICES = ".best_config"
"""Choices by timing stay, as they determine which code a plan is compiled to: these files, and the folder ``cache``."""


def trim(cache: Path, max_bytes: int = MAX_BYTES, kept_s: float = KEPT_S) -> int:
    """Delete files until at most ``max_bytes`` are left; return how many bytes were deleted.

    Each file can be missing: Inductor makes it again from the others, or anew. Errors are ignored, as other processes
    may do the same.
    """
    files: list[tuple[float, int, str]] = []
    with suppress(OSError):
        folders = [entry.path for entry in os.scandir(cache) if entry.is_dir(follow_symlinks=False)
                   and (len(entry.name) == 2 or entry.name in ENTRIES)]  # fmt: skip
        for entry in (entry for folder in folders for entry in _files(folder)):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime, status.st_size, entry.path))
    excess = size = sum(size for _, size, _ in files) - max_bytes
    for used_s, file_bytes, path in sorted(files):
        if excess <= 0 or used_s > time.time() - kept_s:
            break
        with suppress(OSError):
            Path(path).unlink()
            excess -= file_bytes
    return size - excess


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(CHOICES):
                yield entry


OPEN_TIMEOUT_S = 3600.0
"""Loading a large checkpoint takes long; a worker that is not ready after an hour never will be.

One that neither computes nor reads is not waited for that long: see ``MIN_RUN_TIMEOUT_S``."""
LOGGED = (Reason.COMPILE_FAILED, Reason.TIMEOUT, Reason.CRASHED)
"""Failures that the logs of compiler and runtime may explain."""
MIN_RUN_TIMEOUT_S = 60.0
"""Verifying and measuring take seconds; a step that hangs, or a worker that does nothing while it opens a model, is
killed after this, or the compile timeout if longer; so is one that compiles a single operator to try the machine."""


class WorkerRunner:
    """Runs requests in a worker process, which is started when needed and replaced when it dies; a ``Runner``.

    Entering it starts a worker early if none was ever started in the study's folder. For backends that need a fresh
    process for each plan, a worker that has judged one is replaced before the next.
    """

    def __init__(self, setup: RunnerSetup) -> None:
        self._setup, self._spec, self._folder = setup, setup.spec, setup.folder
        self._compile_timeout_s = setup.compile_timeout_s
        self._backend = backend_info(self._spec.backend)
        self._traits = RunnerTraits(
            measures_time=not self._backend.is_simulated,
            # Graphs on an NPU never free their memory: hold as few as possible in one process.
            max_shortlisted=MAX_FINALISTS if self._backend.needs_fresh_process else MAX_SHORTLISTED,
            final_processes=self._backend.final_processes,
            estimate=durations_in_fresh_processes if self._backend.needs_fresh_process else durations_in_one_process,
        )
        self._worker: WorkerProcess | None = None
        self._next: WorkerProcess | None = None
        self._starts = 0
        self._opened: Opened | None = None
        self._has_judged = False
        self._work: Path | None = None
        self._modules: dict[str, str] = {}
        self._is_crowded = False
        self.deadline_s = math.inf
        self._own_ways: Mapping[type, Callable[[Any, Report], Any]] = {
            Judge: self._judge, Shortlist: self._shortlist, Verify: self._verify, Compare: self._compare,
            Deliver: self._deliver,
        }  # fmt: skip

    def __enter__(self) -> Self:
        if not (self._folder / "logs").exists():
            self._start()  # its imports take as long as creating the study's database
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the worker and its compilers."""
        self._end_worker()
        if self._next is not None:
            self._next.stop()
        self._next = None

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._worker, self._opened, self._has_judged = None, None, False

    def open(self) -> Opened:
        """Load the model and record the baseline, unless a worker is ready; see ``Runner.open``.

        Raises:
            SktuneError: raised in the worker; its class is preserved.
            BackendError: the worker dies, hangs, or takes longer than an hour.
        """
        if self._has_judged and self._backend.needs_fresh_process:
            self.close()
        if self._worker is None:
            self._start()
        if self._opened is None:
            self._opened = self._load()
        return self._opened

    def run(self, job: Job[T], report: Report = silent, /) -> T:
        """See ``Runner.run``; what may kill the process, or takes a fresh one, has a method of its own here."""
        if own_way := self._own_ways.get(type(job)):
            answer: T = own_way(job, report)
            return answer
        self.open()
        return self._answer(job, report)

    def _judge(self, job: Judge, report: Report) -> Outcome:
        """Run one trial. Whatever happens to the worker becomes the outcome, unless it is the machine's failure."""
        self._yield_cores()
        self.open()
        self._has_judged = True
        outcome = self._judged(job, report)
        if outcome.reason in LOGGED:
            self._refuse_failure_of_machine(job.log)
        if outcome.reason is Reason.TIMEOUT and outcome.stage is Stage.COMPILE:
            self._refuse_compiler_that_hangs(job.log)
        outcome = self._explained(outcome, job.plan)
        return replace(outcome, noise=self._noise(outcome.noise)) if outcome.speedup else outcome

    def _yield_cores(self) -> None:
        """Replace a worker whose threads do not wait for one another as the machine's present load requires.

        By default a thread that waits for the others keeps its core busy. If other processes need the core, too, the
        threads take turns in waiting, and steps were 300 times slower. The number of threads stays as it is: bits and
        compiled code may depend on it.
        """
        if not self._traits.measures_time or self._spec.device != "cpu":
            return
        is_crowded = Machine.look().is_crowded(self._setup.placement)
        if is_crowded != self._is_crowded:
            self.close()
        self._is_crowded = is_crowded

    def _noise(self, noise: str) -> str:
        """Return what disturbed a measurement."""
        crowded = "other processes need the cores: threads that wait leave theirs" if self._is_crowded else ""
        return "; ".join(filter(None, (noise, crowded)))

    def _refuse_failure_of_machine(self, log: str) -> None:
        folders = (self._folder, self._setup.cache, Path(tempfile.gettempdir()))
        refuse_failure_of_machine([self._folder / "logs" / log], folders)

    def _refuse_compiler_that_hangs(self, log: str) -> None:
        """Raise ``MachineError`` if one operator does not compile in time either, by the next worker."""
        if self._backend.needs_fresh_process:
            return  # it compiles no single operator: its logs name the machine
        self.open()
        try:
            self._answer(CheckMachine(log))
        except BackendError as failure:
            raise MachineError(
                f"the machine fails, not the plan: one operator does not compile either: "
                f"{failure.__cause__ or failure}; {MEND_MACHINE}, or set a longer --compile-timeout"
            ) from failure

    def _judged(self, job: Judge, report: Report) -> Outcome:
        stage, scope = Stage.COMPILE, ""
        scored: Outcome | None = None
        log = f"logs/{job.log}"
        rename_old(self._log(job.log))
        try:
            for message in self._ask(job):
                if "stage" in message:
                    stage, scope = Stage(message["stage"]), ""
                    report(stage)
                scope = message.get("scope", scope)
                if "scored" in message:
                    scored = replace(decoded(Outcome, message["scored"]), log=log)
                if "answer" in message:
                    outcome = replace(decoded(Outcome, message["answer"]), log=log)
                    if outcome.reason is Reason.CRASHED or DEVICE_ERROR.search(outcome.detail):
                        self.close()  # what a crashed plan left behind must not affect the next one
                    return replace(outcome, stage=outcome.stage or stage) if outcome.reason else outcome
        except OutOfTimeError:
            if scored is None:
                raise
            return scored
        except (StageTimeoutError, WorkerDiedError) as failure:
            if scored:
                logger.warning("the time of each scope could not be measured: %s", failure)
                return scored
            where = f"scope {scope}: " if scope else ""
            if isinstance(failure, StageTimeoutError):
                return Outcome(Reason.TIMEOUT, f"{where}{failure}", blamed=scope, log=log, stage=stage)
            detail = f"{where}{failure} during {stage}"
            return Outcome(Reason.CRASHED, detail, blamed=scope, log=log, stage=stage)
        raise BackendError(f"the worker's answer is incomplete; see {log}")

    def _explained(self, outcome: Outcome, plan: Plan) -> Outcome:
        """Add the cause of a failure, as found in the worker's CANN logs and the trial's log."""
        if outcome.reason not in LOGGED or self._work is None:
            return outcome
        logs = [*sorted(self._work.rglob("*.log")), self._folder / outcome.log]
        return explained(outcome, plan, logs)

    def _shortlist(self, job: Shortlist, report: Report) -> list[str]:
        self.open()
        return self._answer(job, self._starting_next(report))

    def _verify(self, job: Verify, report: Report) -> Verification | None:
        self.open()
        try:
            verification = self._answer(job, report)
        except BackendError as failure:
            return Verification(difference=str(failure), is_broken=True)
        if verification and verification.is_broken:
            self.close()  # what the plan left behind must not affect the next one
        return verification

    def _deliver(self, job: Deliver, report: Report) -> Delivery | None:
        self.open()
        return self._answer(replace(job, folder=real_path(job.folder)), report)  # the worker may be in another folder

    def _compare(self, job: Compare, report: Report) -> ProcessComparison:
        """Compare plans in a fresh process.

        If the process dies, each plan is compared with the baseline in a separate process, and a plan that kills that
        one too has a row without a speedup. The references are the uncompiled model and torch.compile.
        """
        if job.is_followed:
            report = self._starting_next(report)
        compared = self._compared(job, report)
        rows, noise = compared.rows, compared.noise
        if all(row.speedup is None for row in rows):
            alone = self._compared(replace(job, plans=(), references=False), report)
            rows, noise = [*alone.rows, *rows], alone.noise
        return ProcessComparison(sorted(rows, key=lambda row: row.speedup is None), noise)

    def _starting_next(self, report: Report) -> Report:
        """Return a report that also starts the next worker while plans are compiled, and stops it during measurements.

        Its imports take more than half of the time until it has opened a small model. If it cannot be started now,
        that is tried again when it is needed.
        """
        if self._backend.needs_fresh_process or self._backend.is_simulated:
            return report

        def starting(stage: str) -> None:
            if stage == Stage.COMPILE and self._next is None:
                with suppress(BackendError):
                    self._next = self._started()
            if self._next is not None:
                self._next.pause(is_paused=stage == Stage.MEASURE)
            report(stage)

        return starting

    def _compared(self, job: Compare, report: Report) -> ProcessComparison:
        if self._traits.measures_time:  # computed figures would be the same in a fresh process
            self._end_worker()
        self._yield_cores()
        self.open()
        try:
            compared = self._answer(job, report)
            return replace(compared, noise=self._noise(compared.noise))
        except BackendError as failure:
            if not job.plans and not job.references:
                raise
            reason = str(failure)
        if job.references:
            # The references are what the user has without sktune: their failure must not fail the comparison.
            logger.warning("%s; comparing again without torch.compile of the whole step", reason)
            return self._compared(replace(job, references=False), report)
        if len(job.plans) == 1:
            return ProcessComparison([FinalRow(job.plans[0][0], None, reason, None, "")])
        logger.warning("%s; comparing each plan in a separate process", reason)
        parts = [self._compared(replace(job, plans=[plan], alone=plan[0]), report) for plan in job.plans]
        rows: dict[str, FinalRow] = {}
        for row in (row for part in parts for row in part.rows):
            rows.setdefault(row.name, row)  # each process has a baseline
        return ProcessComparison(list(rows.values()), "; ".join(part.noise for part in parts if part.noise))

    def _start(self) -> None:
        self._worker, self._next = self._next, None
        if self._worker is None or self._worker.has_ended:
            self._end_worker()
            self._worker = self._started()
        self._worker.pause(is_paused=False)

    def _started(self) -> WorkerProcess:
        """Return a new worker, which begins with its imports."""
        self._work = work_folder(self._backend, self._folder, self._starts)
        placement = self._setup.placement
        environment = environment_of(self._spec, self._setup.cache, self._work)
        waiting = {"OMP_WAIT_POLICY": "passive"} if self._is_crowded else {}  # OpenMP 5.2, 21.7
        environment |= {**placement.environment, **waiting, **self._setup.variables}
        folder, log = self._work or Path.cwd(), self._log("worker.log")
        if self._starts == 0:
            trim(self._setup.cache)
        self._starts += 1
        try:
            with placement.applied():
                return WorkerProcess(self._spec.backend, folder, environment, log)
        except OSError as failure:
            raise BackendError(
                f"the worker cannot be started: {first_line(failure)}; "
                "see `ulimit -a` and `df`, free what is missing and run again"
            ) from failure

    def _load(self) -> Opened:
        setup = self._setup
        job = LoadModel(self._spec.to_dict(), setup.space, setup.delivered, is_first=self._starts == 1)
        try:
            for message in self._ask(job):
                if "answer" in message:
                    opened = decoded(Opened, message["answer"])
                    self._check_unchanged(opened.modules)
                    return replace(opened, traits=self._traits)
        except (StageTimeoutError, WorkerDiedError) as failure:
            raise BackendError(f"{failure} before the baseline was ready; see {self._log(job.log)}") from failure
        raise BackendError(f"the worker's answer is incomplete; see {self._log(job.log)}")

    def _check_unchanged(self, modules: Mapping[str, str]) -> None:
        """Refuse modules that have changed since the first worker imported them."""
        for name, digest in modules.items():
            if self._modules.setdefault(name, digest) != digest:
                self.close()
                raise TargetError(f"module {name} was changed while the search ran; restore it and run again")

    def _answer(self, job: Job[T], report: Report = silent) -> T:
        """Have the worker do a job, and return its answer.

        Raises:
            BackendError: the worker dies or takes too long.
            MachineError: the machine fails.
        """
        self._has_judged = True
        try:
            for message in self._ask(job):
                if "stage" in message:
                    report(message["stage"])
                if "answer" in message:
                    answer: T = decoded(job.answer, message["answer"])
                    return answer
        except (StageTimeoutError, WorkerDiedError) as failure:
            self._refuse_failure_of_machine(job.log)
            raise BackendError(f"the comparison failed: {failure}; see logs/{job.log}") from failure
        raise BackendError(f"the worker's answer is incomplete; see logs/{job.log}")

    def _ask(self, job: Job[Any] | LoadModel) -> Iterator[dict[str, Any]]:
        """Send a job and yield the answers; the worker is killed if it is too slow or reports an error."""
        assert self._worker is not None
        left_s = None if math.isinf(self.deadline_s) else self.deadline_s - time.monotonic()
        message = {
            "job": type(job).__name__, "values": encoded(job), "folder": str(real_path(self._folder)),
            "log": str(self._log(job.log)), "left_s": left_s,
        }  # fmt: skip
        is_loading = isinstance(job, LoadModel)

        def limit_s(stage: str) -> float:
            is_run = is_loading or isinstance(job, CheckMachine) or stage not in ("start", Stage.COMPILE)
            return max(MIN_RUN_TIMEOUT_S, self._compile_timeout_s) if is_run else self._compile_timeout_s

        try:
            yield from self._worker.ask(
                message, limit_s, lambda: self.deadline_s, OPEN_TIMEOUT_S if is_loading else 0.0
            )
        except Exception:
            self.close()
            raise

    def _log(self, name: str) -> Path:
        folder = self._folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return real_path(folder) / name
