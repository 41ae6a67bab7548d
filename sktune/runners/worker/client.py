"""The supervisor: keeps a worker alive, watches its deadlines, and turns its end into an outcome."""

import json
import logging
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from sktune.ascend.cann_log import cause, explain_files
from sktune.backends import backend_info
from sktune.core import errors
from sktune.core.delivery import Delivery
from sktune.core.errors import BackendError, OutOfTimeError, SktuneError, TargetError
from sktune.core.layout import Layout
from sktune.core.outcome import FinalRow, Outcome, Reason
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.core.verification import Verification
from sktune.measure import samples
from sktune.measure.noise_floor import Bar, FloorLook
from sktune.runners.base import Opened
from sktune.targets import TargetSpec

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 3600.0
"""Loading a large checkpoint takes long; a worker that is not ready after an hour never will be."""
LOGGED = (Reason.COMPILE_FAILED, Reason.TIMEOUT, Reason.CRASHED)
"""Failures that a compiler's and a runtime's logs may explain."""
LEAST_RUN_TIMEOUT_S = 60.0
"""Verifying and measuring take seconds; a step that hangs is ended after this, or the compile timeout."""


class _WorkerDiedError(Exception):
    """The worker's process ended in the middle of a request."""


class _DeadlineError(Exception):
    """A stage took longer than it may."""


class Supervisor:
    """Runs requests in a worker process, which is started when needed and replaced when it ends.

    A context manager: leaving it ends the worker and everything that it has started.

    Args:
        spec, space: what the worker loads and traces.
        folder: the study's folder; logs go to ``logs/`` in it.
        cache: folder of the compiler's caches.
        compile_timeout_s: most time for one compile.
        delivered: compiled code that a worker loads when it starts, and the folder that it lies in.

    Attributes:
        deadline_s: when every request has to be over, on the clock of ``time.monotonic``; one that is not ends with
            its worker, in an ``OutOfTimeError``.
        starts: how many workers were started.
    """

    def __init__(
        self,
        spec: TargetSpec,
        space: SpaceSpec,
        folder: Path,
        cache: Path,
        compile_timeout_s: float,
        delivered: tuple[Path, Delivery] | None = None,
    ) -> None:
        self._spec, self._space, self._folder, self._cache = spec, space, folder, cache
        self._backend = backend_info(spec.backend)
        self._compile_timeout_s, self._delivered = compile_timeout_s, delivered
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = -1
        self._answers = -1
        self._buffer = b""
        self._opened: Opened | None = None
        self._has_judged = False
        self._work: Path | None = None
        self.deadline_s = math.inf
        self.starts = 0
        self._modules: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def has_run(self) -> bool:
        """Whether a worker was ever started in this study's folder."""
        return (self._folder / "logs").exists()

    def open(self) -> Opened:
        """Load the model and record the baseline, unless a worker is ready.

        One that has judged a plan is not, where each plan needs a process of its own.

        Raises:
            SktuneError: of the class that the worker raised.
            BackendError: the worker dies, or takes longer than an hour.
            OutOfTimeError: at ``deadline_s``; so do all other requests.
        """
        if self._has_judged and self._backend.needs_fresh_process:
            self.stop()
        if self._process is None:
            self.start()
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def judge(
        self,
        plan: Plan,
        log: str,
        report: Callable[[str], None],
        known: Mapping[str, int] | None = None,
        bar: Bar | None = None,
        banned: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run one trial. Whatever happens to the worker becomes the outcome.

        Args:
            plan: what to judge.
            known: numbers of finished trials by the digest of what they became.
            log: file name of the trial's log; its samples' file is named after it.
            report: told the stage that begins.
            bar: what the plan has to beat; one that cannot is measured only until that is certain.
            banned: what differs in each region that was found to differ from its kernels, by the region's key.

        Raises:
            SktuneError: no worker can be started any more.
        """
        self.open()
        self._has_judged = True
        request = {
            "plan": plan.to_dict(), "known": dict(known or {}), "bar": asdict(bar or Bar()),
            "banned": dict(banned or {}), "samples": self._samples(log),
        }  # fmt: skip
        return self._explained(self._judge(request, log, report), plan)

    def _judge(self, request: Mapping[str, Any], log: str, report: Callable[[str], None]) -> Outcome:
        stage, scope = "compile", ""
        scored: Outcome | None = None
        try:
            for message in self._ask(do="trial", **request, log=str(self._log(log))):
                if "stage" in message:
                    stage, scope = message["stage"], ""
                    report(stage)
                scope = message.get("scope", scope)
                if "scored" in message:
                    scored = Outcome.from_dict({**message["scored"], "log": f"logs/{log}"})
                if "outcome" in message:
                    outcome = Outcome.from_dict({**message["outcome"], "log": f"logs/{log}"})
                    if outcome.reason is Reason.CRASHED:
                        self.stop()  # what a crashed plan left behind must not meet the next one
                    return outcome
        except OutOfTimeError:
            if scored is None:
                raise
            return scored
        except (_DeadlineError, _WorkerDiedError) as failure:
            self.stop()
            if scored:
                logger.warning("what each scope takes could not be observed: %s", failure)
                return scored
            where = f"scope {scope}: " if scope else ""
            if isinstance(failure, _DeadlineError):
                return Outcome(Reason.TIMEOUT, f"{where}{failure}", blamed=scope, log=f"logs/{log}")
            detail = f"{where}the worker {failure} during {stage}"
            return Outcome(Reason.CRASHED, detail, blamed=scope, log=f"logs/{log}")
        raise BackendError("the worker ended its answer early; see its log")

    def _explained(self, outcome: Outcome, plan: Plan) -> Outcome:
        """Add to a failure what CANN's logs of this worker, and the trial's own, say about it."""
        if outcome.reason not in LOGGED or self._work is None:
            return outcome
        logs = [*sorted(self._work.rglob("*.log")), self._folder / outcome.log]
        found = explain_files([path for path in logs if path.is_file()], [scope.label for scope in plan.scopes])
        told = cause(found)
        if told is None:
            return outcome
        return replace(outcome, detail=f"{outcome.detail}; {told.message}", blamed=told.scope or outcome.blamed)

    def floor_look(self, before_trial: int) -> FloorLook | None:
        """Compare the baseline, compiled once more, with itself; None where nothing is measured.

        Raises:
            BackendError: the worker does not survive it.
        """
        self.open()
        log = f"floor-{before_trial:04d}.log"
        found = self._answer("floor", do="floor", before_trial=before_trial, log=log)["floor"]
        return FloorLook.from_dict(found) if found else None

    def qualify(self, plans: Sequence[tuple[str, Plan]], report: Callable[[str], None]) -> list[str]:
        """Return the names of the plans, the fastest first, as measured again in one process.

        Raises:
            BackendError: the worker does not survive it.
        """
        self.open()
        answer = self._answer("qualified", report, log="qualifying.log", do="qualify", plans=_entries(plans))
        names: list[str] = answer["qualified"]
        return names

    def verify(
        self,
        plans: Sequence[tuple[str, Plan]],
        report: Callable[[str], None],
        *,
        steps: int,
        seconds: float | None = None,
        banned: Mapping[str, str] | None = None,
    ) -> dict[str, Verification]:
        """Compare plans with the baseline far more than their trials did; see ``Judge.verify``.

        Where the worker does not survive that, each plan is verified in a process of its own, and one that ends even
        that has this for its difference.

        Returns:
            what was compared, by name; nothing for a simulation.

        Raises:
            BackendError: no worker can be started.
        """
        self.open()
        names = "-".join(name for name, _ in plans)
        request = {"do": "verify", "plans": _entries(plans), "steps": steps, "seconds": seconds,
                   "banned": dict(banned or {})}  # fmt: skip
        try:
            answer = self._answer("verified", report, log=f"verify-{names}.log", **request)
        except BackendError as failure:
            if len(plans) == 1:
                return {plans[0][0]: Verification(difference=str(failure), is_broken=True)}
            logger.warning("%s; verifying each plan in a process of its own", failure)
            share = None if seconds is None else seconds / len(plans)
            parts = [self.verify([plan], report, steps=steps, seconds=share, banned=banned) for plan in plans]
            return {name: own for part in parts for name, own in part.items()}
        return {name: Verification.from_dict(own) for name, own in answer["verified"].items()}

    def final(
        self, plans: Sequence[tuple[str, Plan]], report: Callable[[str], None], *, number: int = 1, references: bool
    ) -> tuple[list[FinalRow], str]:
        """Compare plans in a fresh process; returns the rows, and what else the machine did meanwhile.

        Where the process does not survive that, each plan is compared with the baseline in a process of its own, and
        one that ends even that has a row without a speedup.

        Args:
            plans: names and plans.
            report: told the stage that begins.
            number: of the process, from 1; its log and its samples are named after it.
            references: adds what a user has without sktune: the model uncompiled, and torch.compile.

        Raises:
            BackendError: the baseline alone does not survive it, or no worker can be started.
        """
        log = f"final-{number}"
        rows, noise = self._compared(plans, report, log, references)
        if all(row.speedup is None for row in rows):
            alone, noise = self._compared((), report, log, references=False)
            rows = [*alone, *rows]
        return sorted(rows, key=lambda row: row.speedup is None), noise

    def _compared(
        self, plans: Sequence[tuple[str, Plan]], report: Callable[[str], None], log: str, references: bool
    ) -> tuple[list[FinalRow], str]:
        if not self._backend.is_simulated:  # a simulation has no luck to be drawn again
            self.stop()
        self.open()
        request = {"do": "final", "plans": _entries(plans), "references": references}
        try:
            answer = self._answer("final", report, log=f"{log}.log", **request)
            return [FinalRow.from_dict(row) for row in answer["final"]], answer["noise"]
        except BackendError as failure:
            if not plans and not references:
                raise
            reason = str(failure)
        if references:
            # Compiling the whole step is the user's alternative, not ours: its failure must not cost the answer.
            logger.warning("%s; comparing again without torch.compile of the whole step", reason)
            return self._compared(plans, report, log, references=False)
        if len(plans) == 1:
            return [FinalRow(plans[0][0], None, reason, None, "")], ""
        logger.warning("%s; comparing each plan in a process of its own", reason)
        parts = [self._compared([plan], report, f"{log}-{plan[0]}", references=False) for plan in plans]
        return [row for rows, _ in parts for row in rows], "; ".join(noise for _, noise in parts if noise)

    def deliver(self, plan: Plan, folder: Path, report: Callable[[str], None]) -> Delivery | None:
        """Write the compiled code of ``plan`` into ``folder``; see ``sktune.runners.worker.judge.Judge.deliver``.

        Raises:
            BackendError: also where the worker does not survive it.
        """
        self.open()
        request = {"do": "deliver", "plan": plan.to_dict(), "folder": str(folder.resolve())}
        found = self._answer("delivered", report, log="deliver.log", **request)["delivered"]
        return Delivery.from_dict(found) if found else None

    def _answer(
        self, key: str, report: Callable[[str], None] = lambda stage: None, *, log: str, **request: Any
    ) -> dict[str, Any]:
        """Send a request and return the answer that has ``key``; a worker that dies of it is a ``BackendError``."""
        self._has_judged = True
        try:
            for message in self._ask(**request, samples=self._samples(log), log=str(self._log(log))):
                if "stage" in message:
                    report(message["stage"])
                if key in message:
                    return message
        except (_DeadlineError, _WorkerDiedError) as failure:
            self.stop()
            raise BackendError(f"the comparison failed: the worker {failure}; see logs/{log}") from failure
        raise BackendError(f"the worker ended its answer early; see logs/{log}")

    def stop(self) -> None:
        """End the worker and its compilers at once."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # it may be gone already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._requests)
        os.close(self._answers)
        self._process, self._opened, self._buffer, self._has_judged = None, None, b"", False

    def start(self) -> None:
        """Start a worker, which imports what it needs while we go on."""
        requests_in, self._requests = os.pipe()
        self._answers, answers_out = os.pipe()
        environment = {
            **os.environ,
            **self._backend.worker_environment(self._spec.device),
            "TORCHINDUCTOR_CACHE_DIR": str(self._cache),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            # With torch_npu installed and no CANN, torch itself would not import; the npu backend imports it.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        work = self._work_folder()
        for name, part in self._backend.worker_folders.items():
            environment[name] = str(work / part)
            (work / part).mkdir(parents=True)
        with self._log("worker.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [
                    sys.executable,
                    "-m",
                    "sktune.runners.worker.server",
                    str(requests_in),
                    str(answers_out),
                    self._spec.backend,
                ],
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(requests_in, answers_out),
                start_new_session=True,  # a group of its own, to be ended as one; Ctrl-C is ours to handle
                env=environment,
            )
        os.close(requests_in)
        os.close(answers_out)
        self.starts += 1
        logger.info("started worker %d", self._process.pid)

    def _work_folder(self) -> Path:
        """Return where the worker that is started now runs."""
        if not self._backend.needs_fresh_process:
            return Path.cwd()
        above = self._folder.resolve() / "work"
        above.mkdir(parents=True, exist_ok=True)
        self._work = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{self.starts}-", dir=above))
        return self._work

    def _open(self) -> Opened:
        delivered = [str(self._delivered[0]), self._delivered[1].to_dict()] if self._delivered else None
        space = self._space.model_dump(mode="json")
        request = {"do": "open", "spec": asdict(self._spec), "space": space, "delivered": delivered}
        try:
            for message in self._ask(**request, log=str(self._log("worker.log"))):
                if "opened" in message:
                    values = message["opened"]
                    layout, modules = Layout.from_dict(values["layout"]), values["modules"]
                    self._check_unchanged(modules)
                    return Opened(layout, values["description"], values["seconds"], values["facts"], modules)
        except (_DeadlineError, _WorkerDiedError) as failure:
            self.stop()
            raise BackendError(
                f"the worker {failure} before the baseline was ready; see {self._log('worker.log')}"
            ) from failure
        raise BackendError(f"the worker ended its answer early; see {self._log('worker.log')}")

    def _check_unchanged(self, modules: Mapping[str, str]) -> None:
        """Refuse modules that are no longer those that the first worker imported."""
        for name, digest in modules.items():
            if self._modules.setdefault(name, digest) != digest:
                self.stop()
                raise TargetError(f"module {name} was changed while the search ran; restore it and run again")

    def _log(self, name: str) -> Path:
        folder = self._folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve() / name

    def _samples(self, log: str) -> str:
        return str(self._folder.resolve() / samples.FOLDER / Path(log).with_suffix(".npz"))

    def _ask(self, **request: Any) -> Iterator[dict[str, Any]]:
        """Send a request and yield the answers, while each stage keeps to its deadline."""
        allowed_s = OPEN_TIMEOUT_S if request["do"] == "open" else self._compile_timeout_s
        deadline = time.monotonic() + allowed_s
        stage = "start"
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError as failure:
            raise _WorkerDiedError(self._end()) from failure
        while True:
            line = self._line(min(deadline, self.deadline_s))
            if line is None and time.monotonic() >= self.deadline_s:
                self.stop()
                raise OutOfTimeError
            if line is None:
                raise _DeadlineError(f"{stage} did not end within {allowed_s:g} s")
            message = json.loads(line)
            if "error" in message:
                self.stop()
                raise _rebuilt(message["error"], message["message"])
            if "alive" in message:
                deadline = time.monotonic() + allowed_s
                continue
            if "stage" in message and request["do"] != "open":
                stage = message["stage"]
                allowed_s = self._compile_timeout_s
                if stage != "compile":
                    allowed_s = max(LEAST_RUN_TIMEOUT_S, allowed_s)
                deadline = time.monotonic() + allowed_s
            yield message

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line, or None when the deadline passes."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                raise _WorkerDiedError(self._end())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _entries(plans: Sequence[tuple[str, Plan]]) -> list[list[Any]]:
    return [[name, plan.to_dict()] for name, plan in plans]


def _rebuilt(name: str, message: str) -> SktuneError:
    """Return the error that the worker raised."""
    kind = getattr(errors, name, SktuneError)
    error: SktuneError = kind(message) if issubclass(kind, SktuneError) else SktuneError(message)
    return error
