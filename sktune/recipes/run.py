"""One run of a recipe's program on each of its hosts, watched until it ends, fails, hangs or loses a rank."""

import glob
import logging
import math
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sktune.core.errors import MEND_MACHINE, BackendError, MachineError, OutOfTimeError, PeerLostError
from sktune.core.files import real_path
from sktune.core.outcome import Reason, Stage
from sktune.core.plan import Plan
from sktune.program.sktune_program.launch import RUN_VARIABLE
from sktune.program.sktune_program.task import HOST_RANK_VARIABLE, HOSTS_VARIABLE, RankTask
from sktune.recipes.peers import HostCommand, HostState, LocalPeer, Peer
from sktune.recipes.rank_reports import RankReport, read_reports
from sktune.recipes.yaml_copy import copy_paths, written_copies
from sktune.targets.recipe import COPY_SUFFIX, LatencyLines, Recipe
from sktune.worker.machine import BEFORE, rename_old

logger = logging.getLogger(__name__)

POLL_S = 0.2
SHARED = "inductor"
"""Folder in the caches with the code compiled by all successful runs."""
NO_REPORT = (
    "the program must call torch.compile on a module or its method, in Python 3.9 or later, and the launch script must "
    "pass PYTHONPATH on, whose first folder must exist where the program runs"
)
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
class ProgramRun:
    """The result of one run.

    Attributes:
        reports: of the ranks, by rank.
        failure: None if the program ended normally.
        step_ms: latencies of the decode steps in order, for each rank or log.
        began_s: when it began, on the host's ``time.monotonic``: after the wait for another inference.
        seconds: duration of the run.
    """

    reports: tuple[RankReport, ...]
    failure: Failure | None
    step_ms: tuple[tuple[float, ...], ...]
    began_s: float
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
        hosts: on which it runs, this one first; they share all folders.
        host: the name of this one, if others may run the program in the same folder meanwhile.

    Attributes:
        deadline_s: time by which a run must end, on the clock of ``time.monotonic``; another thread may move it.
    """

    def __init__(self, recipe: Recipe, folder: Path, caches: Path, hosts: Sequence[Peer] = (), host: str = "") -> None:
        self._recipe, self._folder, self._caches = recipe, real_path(folder), real_path(caches)
        self._hosts: Sequence[Peer] = hosts or (LocalPeer(),)
        self._names = [host.name for host in hosts] if len(hosts) > 1 else []
        self._group = self._names or [host] * bool(host)
        self._copies = copy_paths(recipe.yaml.file, self._group) if recipe.yaml else []
        self._run_folder: Path | None = None
        self.deadline_s = math.inf

    def run(self, task: RankTask, plan: Plan, log: Path) -> ProgramRun:
        """Start the program with ``plan`` and wait for it to end; its output goes to ``log``.

        That of other hosts goes to ``NAME.host-1.log`` beside it. An old log of that name, from before a resume, is
        renamed, so that its latencies are not read again.

        Raises:
            BackendError: another inference does not end, or the command cannot be started.
            TargetError: the YAML cannot be changed, or its copy would overwrite a file of the user's.
            OutOfTimeError: at ``deadline_s``.
            MachineError: a rank says that the machine fails.
            PeerLostError: another host is lost.
        """
        self._wait_for_others()
        names = [path.name.removeprefix("run-") for path in self._folder.glob("run-*")]
        number = max((int(name) for name in names if name.isdigit()), default=0) + 1
        folder = self._run_folder = self._folder / f"run-{number:04d}"
        folder.mkdir(parents=True)
        replace(task, scopes=plan.marked, options=dict(plan.options)).write(folder)
        outputs = [log, *(log.with_suffix(f".host-{host}.log") for host in range(1, len(self._hosts)))]
        copies = [path for path in log.parent.glob(f"{log.stem}.*") if BEFORE not in path.name]
        for old in dict.fromkeys((*outputs, *copies)):
            rename_old(old)
        began, earlier, are_others = time.monotonic(), self._log_files(), self._has_others()
        program = self._recipe.yaml
        try:
            with written_copies(program, self._copies) if program else nullcontext():
                for number, host in enumerate(self._hosts):
                    host.start(self._command(number, folder, plan, outputs[number]))
                failure = self._watch(folder, began)
        finally:
            self.stop()
        reports = tuple(read_reports(folder, self._names))
        failure = _reported_failure(reports) or failure or self._incomplete(reports, outputs)
        if failure is None:
            for number in range(len(self._hosts)):
                _link_missing(self._cache(plan, number) / SHARED, self._caches / SHARED)
        logs = self._logs(outputs, earlier, are_others=are_others or self._has_others())
        for path, before in logs.items() if self._recipe.logs else ():
            of_hosts = [f"host-{host}." for host, copy in enumerate(self._copies) if host and copy.stem in str(path)]
            log.with_name(f"{log.stem}.{''.join(of_hosts)}{path.name}").write_bytes(path.read_bytes()[before:])
        step_ms = () if failure else self._latencies(reports, logs)
        return ProgramRun(reports, failure, step_ms, began, time.monotonic() - began)

    def stop(self) -> None:
        """Kill every process of the current run, and no other."""
        for host in self._hosts:
            with suppress(PeerLostError):  # its processes end with the one that has started them
                host.stop()

    def device_logs(self) -> list[Path]:
        """Return CANN's logs of the last run."""
        folder = self._run_folder
        logs = [_of_host(folder, host) / "log" for host in range(len(self._hosts))] if folder else []
        return sorted(file for log in logs for file in log.rglob("*.log"))

    def _command(self, host: int, folder: Path, plan: Plan, log: Path) -> HostCommand:
        """Return the command for one of the hosts, whose folders exist then."""
        addresses = [each.address for each in self._hosts]
        places = self._recipe.places(addresses, host) if self._names else {}
        own = {HOSTS_VARIABLE: places["hosts"], HOST_RANK_VARIABLE: places["host_rank"]} if places else {}
        master = {"MASTER_ADDR": places["master"]} if places else {}
        cache, work = self._cache(plan, host), _of_host(folder, host)
        _link_missing(self._caches / SHARED, cache / SHARED)
        folders = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / SHARED),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "ASCEND_CACHE_PATH": str(cache / "ascend"),
            "ASCEND_WORK_PATH": str(work / "work"),
            "ASCEND_PROCESS_LOG_PATH": str(work / "log"),
        }
        for path in folders.values():
            Path(path).mkdir(parents=True, exist_ok=True)
        run = {RUN_VARIABLE: str(folder), **own}
        variables = {**master, **self._recipe.variables(places), **folders, **run}
        argv = self._recipe.argv(self._copies[host] if self._copies else None, places)
        return HostCommand(argv, self._recipe.directory, variables, log)

    def _cache(self, plan: Plan, host: int) -> Path:
        """Return the folder of a host's compiler caches: hosts that compile the same plan do not share files."""
        return _of_host(self._caches / plan.digest[:16], host)

    def _watch(self, folder: Path, began: float) -> Failure | None:
        lost_since: float | None = None
        done_since: float | None = None
        while True:
            now = time.monotonic()
            reports = read_reports(folder, self._names)
            running = [report for report in reports if not report.has_ended]
            states = [
                host.poll([report.pid for report in running if report.host == number])
                for number, host in enumerate(self._hosts)
            ]
            if all(state.exit_code is not None for state in states):
                failed = next((self._exit_text(number, state) for number, state in enumerate(states)
                               if state.exit_code), "")  # fmt: skip
                return Failure(Reason.CRASHED, failed) if failed else None
            if now >= self.deadline_s:
                raise OutOfTimeError
            if now - began > self._recipe.timeout_s:
                stuck = "".join(f"; {report.name} is stuck {report.progress}" for report in running)
                return Failure(Reason.TIMEOUT, f"the run did not end within {self._recipe.timeout_s:g} s{stuck}")
            lost = self._loss(reports, states)
            lost_since = (lost_since or now) if lost else None
            if lost_since and now - lost_since > ORPHAN_S:
                return Failure(Reason.CRASHED, f"{lost}, and the others went on")
            # Command and ranks may have ended while something else still runs.
            is_done = not running and len(reports) == self._recipe.all_ranks
            is_done &= not any(state.is_running for state in states)
            done_since = (done_since or now) if is_done else None
            if done_since and now - done_since > ORPHAN_S:
                logger.warning("the program has ended, but not all that it started: killing the rest")
                self.stop()
            time.sleep(POLL_S)

    def _exit_text(self, host: int, state: HostState) -> str:
        code = state.exit_code or 0
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the command{f' on {self._names[host]}' if self._names else ''} ended with {name}"

    def _loss(self, reports: Sequence[RankReport], states: Sequence[HostState]) -> str:
        """Return which rank or host has ended without a proper end; empty if none has."""
        alive = {(host, pid) for host, state in enumerate(states) for pid in state.alive}
        for report in reports:
            if not report.has_ended and (report.host, report.pid) not in alive:
                return f"{report.name} died {report.progress}"
        failed = (self._exit_text(number, state) for number, state in enumerate(states) if state.exit_code)
        return next(failed, "")

    def _incomplete(self, reports: Sequence[RankReport], outputs: Sequence[Path]) -> Failure | None:
        """Return why the reports of a run that ended are not complete."""
        if not reports:
            return Failure(
                Reason.CRASHED,
                f"no rank has reported: {NO_REPORT}" + next(filter(None, map(last_line_text, outputs)), ""),
            )
        if len(reports) != self._recipe.all_ranks:
            on_each = f" on each of {len(self._hosts)} hosts" if self._names else ""
            return Failure(
                Reason.CRASHED,
                f"{len(reports)} ranks have reported, but the recipe says {self._recipe.ranks}{on_each}; fix ranks",
            )
        died = next((report for report in reports if not report.has_ended), None)
        return Failure(Reason.CRASHED, f"{died.name} died {died.progress}") if died else None

    def _log_files(self) -> dict[Path, "_LogState"]:
        """Return the log files in the program's folder as they are, whoever has written them."""
        paths = sorted(self._recipe.directory.glob(self._recipe.logs)) if self._recipe.logs else []
        return {path: _LogState.of(path) for path in paths if path.is_file()}

    def _has_others(self) -> bool:
        """Whether another group of hosts has a copy of the YAML in the folder, so that it may run there."""
        program = self._recipe.yaml
        name = program and f"{glob.escape(program.file.stem)}{COPY_SUFFIX}_*{program.file.suffix}"
        return bool(program and name and set(program.file.parent.glob(name)) - set(self._copies))

    def _is_own(self, path: Path, *, are_others: bool) -> bool:
        """Whether this group may have written a log, which has the name of its copy, or of none if it is alone."""
        if any(copy.stem in str(path) for copy in self._copies):
            return True
        of_groups = f"{self._recipe.yaml.file.stem}{COPY_SUFFIX}_" if self._recipe.yaml else None
        return not are_others and (of_groups is None or of_groups not in str(path))

    def _logs(
        self, outputs: Sequence[Path], earlier: Mapping[Path, "_LogState"], *, are_others: bool
    ) -> dict[Path, int]:
        """Return the files with the latencies: the log files that this run has written, or its output.

        Each has the number of bytes that earlier runs have written, if this one has appended to it.
        """
        if self._recipe.logs is None:
            return dict.fromkeys(outputs, 0)
        # Not those changed since its start: the clock may have been set back.
        changed = {path: earlier.get(path) for path, now in self._log_files().items() if now != earlier.get(path)}
        return {
            path: before.size if before and before.begins(path) else 0
            for path, before in changed.items()
            if self._is_own(path, are_others=are_others)
        }

    def _latencies(self, reports: Sequence[RankReport], logs: Mapping[Path, int]) -> tuple[tuple[float, ...], ...]:
        wanted = self._recipe.latency
        if wanted == "steps":
            return tuple(tuple(1e3 * seconds for seconds in report.all_s) for report in reports)
        pattern = wanted.pattern if isinstance(wanted, LatencyLines) else None
        texts = (path.read_bytes()[before:].decode("utf-8", errors="replace") for path, before in logs.items())
        step_ms = (tuple(step_latencies_ms(text, pattern)) for text in texts)
        return tuple(steps for steps in step_ms if steps)

    def _wait_for_others(self) -> None:
        until = time.monotonic() + self._recipe.wait_s
        has_warned = False
        while other := self._other_inference():
            now = time.monotonic()
            if now >= self.deadline_s:
                raise OutOfTimeError
            if now >= until:
                raise BackendError(
                    f"{other}, which would disturb every measurement; end it, or give the recipe a longer wait_s"
                )
            if not has_warned:
                logger.warning("waiting: %s", other)
                has_warned = True
            time.sleep(POLL_S)

    def _other_inference(self) -> str:
        """Return which other inference runs on one of the hosts; empty if there is none."""
        for host in self._hosts:
            if other := host.other_inference(self._recipe.other_inference):
                on_host = f" on {host.name}" if self._names else ""
                return f"process {other[0]}{on_host} runs another inference ({other[1][:80]})"
        return ""


TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _LogState:
    """A log file at some time: when it was last changed, in ns, its size in bytes, and its last ``TAIL_BYTES``."""

    changed_ns: int
    size: int
    tail: bytes

    @classmethod
    def of(cls, path: Path) -> "_LogState":
        state = path.stat()
        return cls(state.st_ctime_ns, state.st_size, _bytes_before(path, state.st_size))

    def begins(self, path: Path) -> bool:
        """Whether a file has what was in it then, and more: a logger appends to it."""
        return path.stat().st_size > self.size and _bytes_before(path, self.size) == self.tail


def _bytes_before(path: Path, place: int) -> bytes:
    """Return at most ``TAIL_BYTES`` before a place in a file: logs of all runs may lie in the folder."""
    with path.open("rb") as file:
        file.seek(max(0, place - TAIL_BYTES))
        return file.read(min(place, TAIL_BYTES))


def _of_host(folder: Path, host: int) -> Path:
    """Return the part of a folder that belongs to a host: all of it to the first one."""
    return folder / f"host-{host}" if host else folder


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


def _reported_failure(reports: Sequence[RankReport]) -> Failure | None:
    """Return the failure that the first failed rank has reported.

    Raises:
        MachineError: it is the machine's.
    """
    for report in reports:
        if report.error:
            stage, message = report.error
            if stage == "machine":
                raise MachineError(f"the machine fails, not the plan: {report.name}: {message}; {MEND_MACHINE}")
            if stage == "run":
                return Failure(Reason.CRASHED, f"{report.name}: {message}")
            return Failure(Reason.COMPILE_FAILED, f"{report.name}: {message}", Stage.COMPILE)
    return None


def last_line_text(log: Path) -> str:
    """Return a log's last line, as the end of a message; empty if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its last line: {last[:200]}" if last else ""


_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_MAIN = re.compile(rf"\[Main\] Inference time \(decode\): {_NUMBER} ms")
_DRAFT = re.compile(rf"\[MTP \d+\] Inference time \(decode\): {_NUMBER} ms")
_OTHERS = [
    re.compile(rf"inference time cost of decode is {_NUMBER} ms"),
    re.compile(rf"\[decode\] inference time cost {_NUMBER} ms"),
    re.compile(rf"main and mtp model average inference time cost is {_NUMBER} ms"),
    re.compile(rf"(?:decode )?average inference time cost is {_NUMBER} ms"),
]
"""Lines for single steps come first: each average leaves out other steps."""


def step_latencies_ms(text: str, pattern: str | None = None) -> list[float]:
    """Return the latencies in a log, in order; a lone average counts as one latency.

    The known formats are those of cann-recipes-infer: executor/core/scheduler/scheduler.py (one line per step) and
    executor/offline/infer.py (averages) of hicann/cann-recipes-infer, and the runners that some of its models have.
    A draft model's part (``[MTP 0]``) belongs to the step before it.

    Args:
        text: the log.
        pattern: the user's regular expression, whose first group is milliseconds, NaN if it is not a number; None for
            the known formats.
    """
    if pattern is not None:
        return [_milliseconds(match.group(1)) for match in re.finditer(pattern, text)]
    steps: list[float] = []
    for line in text.splitlines():
        if main := _MAIN.search(line):
            steps.append(float(main.group(1)))
        elif steps and (draft := _DRAFT.search(line)):
            steps[-1] += float(draft.group(1))
    if steps:
        return steps
    for line_format in _OTHERS:
        if latencies := [float(number) for number in line_format.findall(text)]:
            return latencies
    return []


def _milliseconds(text: str | None) -> float:
    """Parse a number that may have thousands separators; NaN, which no run accepts, if it is not a number."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return math.nan
