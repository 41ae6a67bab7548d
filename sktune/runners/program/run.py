"""One run of a recipe's program: a separate process group, watched until it ends, fails, hangs or loses a rank."""

import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import BackendError, OutOfTimeError, TargetError
from sktune.core.files import read_text, real_path, write_text
from sktune.core.outcome import Reason, Stage
from sktune.core.plain_data import load_yaml
from sktune.core.plan import Plan
from sktune.core.plan_file import write_plan
from sktune.launch import SITE
from sktune.runners.process_tree import ProcessTree, is_alive
from sktune.runners.program.latency_lines import step_latencies_ms
from sktune.runners.program.rank_reports import PLAN, PLAN_VARIABLE, RUN_VARIABLE, RankReport, Task, read_reports
from sktune.source.yaml_flag import FLAG
from sktune.targets.recipe import COPY_SUFFIX, LatencyLines, Recipe

logger = logging.getLogger(__name__)

POLL_S = 0.2
SHARED = "inductor"
"""Folder in the caches with the code compiled by all successful runs."""
COPY_HEAD = "# Written by sktune for one run, and deleted after it.\n"
"""Distinguishes a copy that a killed search left behind from a file of the user's."""
ORPHAN_S = 15.0
"""How long the other ranks may go on once one is gone: they may be about to report why. After a program has ended as it
should, what it has started may go on for as long."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run has no figures: a reason, one line for the user, and the stage if known."""

    reason: Reason
    detail: str
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run.

    Attributes:
        reports: of the ranks, by rank.
        failure: None if the program ended normally.
        step_ms: latencies of the decode steps in order, for each rank or log.
        seconds: duration of the run.
    """

    reports: tuple[RankReport, ...]
    failure: Failure | None
    step_ms: tuple[tuple[float, ...], ...]
    seconds: float

    @property
    def turns(self) -> list[bool]:
        """For each decode step, whether it was the baseline's turn; equal in all ranks."""
        return self.reports[0].turns


class Launcher:
    """Starts a recipe's program, one run after the other.

    Args:
        recipe: with absolute paths.
        folder: gets one folder for each run.
        caches: folder of the compilers' caches, with one folder for each plan.
    """

    def __init__(self, recipe: Recipe, folder: Path, caches: Path) -> None:
        self._recipe, self._folder, self._caches = recipe, real_path(folder), real_path(caches)
        self._tree: ProcessTree | None = None
        self._run_folder: Path | None = None

    def run(self, task: Task, plan: Plan, log: Path, deadline_s: float) -> Run:
        """Start the program with ``plan`` and wait for it to end; its output goes to ``log``.

        An old log of that name, from before a resume, is renamed, so that its latencies are not read again.

        Raises:
            BackendError: another inference does not end, or the command cannot be started.
            TargetError: the YAML cannot be changed, or its copy would overwrite a file of the user's.
            OutOfTimeError: at ``deadline_s``, on the clock of ``time.monotonic``.
        """
        self._wait_for_others(deadline_s)
        folder = self._new_folder()
        task.write(folder)
        (folder / PLAN).write_text(write_plan(plan, {}, task.backend), encoding="utf-8")
        _rename_old(log)
        began, earlier = time.monotonic(), self._log_files()
        try:
            with self._command() as argv, log.open("wb") as output:
                self._start(argv, self._environment(folder, plan), output)
                failure = self._watch(folder, began, deadline_s)
        finally:
            self.stop()
        reports = tuple(read_reports(folder))
        failure = _reported_failure(reports) or failure or self._incomplete(reports, log)
        if failure is None:
            _link_missing(self._inductor_cache(plan), self._caches / SHARED)
        logs = self._logs(log, earlier)
        self._copy_logs(logs, log)
        step_ms = () if failure or task.inspects else self._latencies(reports, logs)
        return Run(reports, failure, step_ms, time.monotonic() - began)

    def stop(self) -> None:
        """Kill every process of the current run, and no other."""
        if self._tree is None:
            return
        self._tree.stop()
        for pid in self._members():  # started by a service, or left over because somebody has killed the keeper
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._tree = None

    def device_logs(self) -> list[Path]:
        """Return CANN's logs of the last run."""
        return sorted((self._run_folder / "log").rglob("*.log")) if self._run_folder else []

    def _new_folder(self) -> Path:
        names = [path.name.removeprefix("run-") for path in self._folder.glob("run-*")]
        number = max((int(name) for name in names if name.isdigit()), default=0) + 1
        self._run_folder = self._folder / f"run-{number:04d}"
        self._run_folder.mkdir(parents=True)
        return self._run_folder

    def _environment(self, folder: Path, plan: Plan) -> dict[str, str]:
        cache = self._caches / plan.digest[:16]
        _link_missing(self._caches / SHARED, self._inductor_cache(plan))
        folders = {
            "TORCHINDUCTOR_CACHE_DIR": str(self._inductor_cache(plan)),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "ASCEND_CACHE_PATH": str(cache / "ascend"),
            "ASCEND_WORK_PATH": str(folder / "work"),
            "ASCEND_PROCESS_LOG_PATH": str(folder / "log"),
        }
        for path in folders.values():
            Path(path).mkdir(parents=True, exist_ok=True)
        inherited = os.environ.get("PYTHONPATH")
        sites = os.pathsep.join(filter(None, (str(SITE), self._recipe.environment.get("PYTHONPATH"), inherited)))
        variables = {RUN_VARIABLE: str(folder), PLAN_VARIABLE: str(folder / PLAN), "PYTHONPATH": sites}
        return {**os.environ, **self._recipe.environment, **folders, **variables}

    def _inductor_cache(self, plan: Plan) -> Path:
        return self._caches / plan.digest[:16] / "inductor"

    @contextmanager
    def _command(self) -> Iterator[list[str]]:
        """Yield the command's arguments; the YAML's copy exists until the context is left."""
        if self._recipe.yaml is None:
            yield self._recipe.argv()
            return
        file = self._recipe.yaml.file
        copy = file.with_stem(file.stem + COPY_SUFFIX)
        if os.path.lexists(copy) and (copy.is_symlink() or not _is_copy(copy)):
            raise TargetError(
                f"{copy} was not written by sktune, and the copy of {file.name} would overwrite it; rename it"
            )
        write_text(copy, COPY_HEAD + varied_yaml(file, self._recipe.yaml.set))
        try:
            yield self._recipe.argv(copy)
        finally:
            copy.unlink(missing_ok=True)

    def _start(self, argv: Sequence[str], environment: Mapping[str, str], output: Any) -> None:
        try:
            self._tree = ProcessTree(argv, self._recipe.directory, environment, output, lingers=True)
        except OSError as failure:
            raise BackendError(
                f"the recipe's command cannot be started: {failure}; fix command or directory"
            ) from failure

    def _watch(self, folder: Path, began: float, deadline_s: float) -> Failure | None:
        assert self._tree is not None
        lost_since: float | None = None
        done_since: float | None = None
        while self._tree.poll() is None:
            now = time.monotonic()
            if now >= deadline_s:
                raise OutOfTimeError
            reports = read_reports(folder)
            if now - began > self._recipe.timeout_s:
                return Failure(
                    Reason.TIMEOUT,
                    f"the run did not end within {self._recipe.timeout_s:g} s{_unfinished_text(reports)}",
                )
            lost = [report for report in reports if not report.has_ended and not is_alive(report.pid)]
            lost_since = (lost_since or now) if lost else None
            if lost and lost_since and now - lost_since > ORPHAN_S:
                return Failure(Reason.CRASHED, f"rank {lost[0].rank} died {lost[0].progress}, and the others went on")
            done_since = (done_since or now) if self._is_done(reports) else None
            if done_since and now - done_since > ORPHAN_S:
                logger.warning("the program has ended, but not all that it started: killing the rest")
                self._tree.stop()
            time.sleep(POLL_S)
        if code := self._tree.poll():
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Failure(Reason.CRASHED, f"the command ended with {name}")
        return None

    def _is_done(self, reports: Sequence[RankReport]) -> bool:
        """Whether command and ranks have ended, whatever else still runs."""
        assert self._tree is not None
        have_ended = len(reports) == self._recipe.ranks and all(report.has_ended for report in reports)
        return have_ended and not is_alive(self._tree.pid)

    def _members(self) -> list[int]:
        """Return the processes of this run, in whatever session they are."""
        mark = f"{RUN_VARIABLE}={self._run_folder}".encode()
        return [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]

    def _incomplete(self, reports: Sequence[RankReport], log: Path) -> Failure | None:
        """Return why the reports of a run that ended are not complete."""
        if not reports:
            return Failure(
                Reason.CRASHED,
                "no rank has reported: its Python needs sktune installed, and the program must call torch.compile"
                + _last_line_text(log),
            )
        if len(reports) != self._recipe.ranks:
            return Failure(
                Reason.CRASHED,
                f"{len(reports)} ranks have reported, but the recipe says {self._recipe.ranks}; fix ranks",
            )
        died = next((report for report in reports if not report.has_ended), None)
        return Failure(Reason.CRASHED, f"rank {died.rank} died {died.progress}") if died else None

    def _log_files(self) -> dict[Path, int]:
        """Return the program's log files with the time in ns when each was last changed."""
        paths = sorted(self._recipe.directory.glob(self._recipe.logs)) if self._recipe.logs else []
        return {path: path.stat().st_ctime_ns for path in paths}

    def _logs(self, log: Path, earlier: Mapping[Path, int]) -> list[Path]:
        """Return the files with the latencies: the log files that this run has written, or its output."""
        if self._recipe.logs is None:
            return [log]
        # Not those changed since its start: the clock may have been set back.
        return [path for path, changed_ns in self._log_files().items() if earlier.get(path) != changed_ns]

    def _copy_logs(self, logs: Sequence[Path], log: Path) -> None:
        for path in logs:
            if path != log:
                shutil.copy(path, log.with_name(f"{log.stem}.{path.name}"))

    def _latencies(self, reports: Sequence[RankReport], logs: Sequence[Path]) -> tuple[tuple[float, ...], ...]:
        wanted = self._recipe.latency
        if wanted == "steps":
            return tuple(tuple(1e3 * seconds for seconds in report.all_s) for report in reports)
        pattern = wanted.pattern if isinstance(wanted, LatencyLines) else None
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in logs)
        step_ms = (tuple(step_latencies_ms(text, pattern)) for text in texts)
        return tuple(steps for steps in step_ms if steps)

    def _wait_for_others(self, deadline_s: float) -> None:
        until = time.monotonic() + self._recipe.wait_s
        has_warned = False
        while other := _other_inference(self._recipe.other_inference):
            now = time.monotonic()
            if now >= deadline_s:
                raise OutOfTimeError
            if now >= until:
                raise BackendError(
                    f"process {other[0]} runs another inference ({other[1][:80]}), which would disturb every "
                    "measurement; end it, or give the recipe a longer wait_s"
                )
            if not has_warned:
                logger.warning("waiting for process %d, another inference: %s", other[0], other[1][:80])
                has_warned = True
            time.sleep(POLL_S)


def varied_yaml(file: Path, values: Mapping[str, Any]) -> str:
    """Return the text of a YAML file with the values at dotted paths replaced and the program's own scopes turned off.

    Raises:
        TargetError: the file is not a mapping, or a path leads through something else.
    """
    data = load_yaml(read_text(file, TargetError, "fix yaml.file"), str(file), TargetError)
    if not isinstance(data, dict):
        raise TargetError(f"{file} is not a mapping of keys; name the program's configuration in yaml.file")
    _turn_scopes_off(data)
    for path, value in values.items():
        inner = data
        *parents, last = path.split(".")
        for key in parents:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise TargetError(
                    f"yaml.set: {path} leads through {key}, which is not a mapping in {file.name}; fix the path"
                )
        inner[last] = value
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _turn_scopes_off(data: dict[str, Any]) -> None:
    for key, value in data.items():
        if key == FLAG:
            data[key] = False
        elif isinstance(value, dict):
            _turn_scopes_off(value)


def _is_copy(path: Path) -> bool:
    """Return whether a file is a copy that a killed search left behind."""
    return read_text(path, TargetError, "rename it").startswith(COPY_HEAD)


def _link_missing(source: Path, target: Path) -> None:
    """Hard-link into ``target`` the files of ``source`` that it lacks.

    Inductor names its files after their content and replaces them atomically, so runs can share compiled code without
    damaging it. GE's caches cannot be shared like this: every plan has its own.
    """
    for path in source.rglob("*"):
        linked = target / path.relative_to(source)
        if path.is_file() and not linked.exists():
            linked.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, linked)


def _rename_old(log: Path) -> None:
    if log.exists():
        runs = len(list(log.parent.glob(f"{log.stem}.before-*")))
        log.rename(log.with_name(f"{log.stem}.before-{runs + 1}{log.suffix}"))


def _reported_failure(reports: Sequence[RankReport]) -> Failure | None:
    """Return the failure that the first failed rank has reported."""
    for report in reports:
        if report.error:
            stage, message = report.error
            if stage == "run":
                return Failure(Reason.CRASHED, f"rank {report.rank}: {message}")
            return Failure(Reason.COMPILE_FAILED, f"rank {report.rank}: {message}", Stage.COMPILE)
    return None


def _last_line_text(log: Path) -> str:
    """Return a log's last line, as the end of a message; empty if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its last line: {last[:200]}" if last else ""


def _unfinished_text(reports: Sequence[RankReport]) -> str:
    """Return how far each rank got that has not ended, as the end of a message."""
    unfinished = [report for report in reports if not report.has_ended]
    return "".join(f"; rank {report.rank} is stuck {report.progress}" for report in unfinished)


def _other_inference(pattern: str) -> tuple[int, str] | None:
    compiled = re.compile(pattern)
    for pid in _pids():
        line = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        if pid != os.getpid() and compiled.search(line):
            return pid, line
    return None


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to someone else
