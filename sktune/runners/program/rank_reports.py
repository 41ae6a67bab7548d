"""The task of a run's ranks and their reports: JSON files in the run's folder.

``task.json`` is written before the command starts. Rank 3 appends to ``rank-3.jsonl``, or on the second host of a
program to ``rank-3-host-1.jsonl``: ``start``, then ``found`` (when inspecting) or ``compiled``, ``outputs`` of each
compared step, ``state`` after ``VERIFIED_STEPS`` steps and after the last compared one, ``written``, ``steps``
(seconds, and which were the baseline's), ``error``, and finally ``end``.
"""

import json
import os
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sktune.core.files import open_regular
from sktune.core.layout import Layout

RUN_VARIABLE = "SKTUNE_RUN"
"""Environment variable: the run's folder, which also identifies the processes of the run."""
PLAN_VARIABLE = "SKTUNE_PLAN"
"""Environment variable: the plan file."""
HOSTS_VARIABLE, HOST_RANK_VARIABLE = "SKTUNE_HOSTS", "SKTUNE_HOST_RANK"
"""Environment variables of a program on several hosts: all addresses, and this host's number among them."""
TASK = "task.json"
PLAN = "plan.yaml"
VERIFIED_STEPS = 8
"""Decode steps whose outputs are compared in every run; the state is compared after the last of them."""


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """Identifies the decode step among a program's compiled calls.

    Attributes:
        function: the compiled function, e.g. ``DeepseekV3ForCausalLM.decode``.
        signature: types and shapes of its tensors; empty if every call of the function is a decode step.
    """

    function: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Instructions to the ranks of a run.

    Attributes:
        inspects: run eagerly, and report the layout of each function that would be compiled.
        backend: which backend's scopes the plan has, ``inductor`` or ``npu``.
        model: class of the module tree; None for the tree that the compiled function belongs to.
        decode: the decode step; None until it is known.
        space: the search space's document, which defines the units.
        turns: seed of the order in which steps run with and without the plan's scopes, drawn for each run; see
            ``is_baselines_turn``. None if the run does not alternate.
        steps: decode steps whose outputs are compared, at least ``VERIFIED_STEPS``.
        watches_state: report whether any state changes from the first to the last of ``VERIFIED_STEPS``.
    """

    inspects: bool
    backend: str
    model: str | None = None
    decode: DecodeCall | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    turns: int | None = None
    steps: int = VERIFIED_STEPS
    watches_state: bool = False

    def write(self, folder: Path) -> None:
        """Write ``task.json``."""
        (folder / TASK).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Task":
        """Inverse of ``write``."""
        values = json.loads((folder / TASK).read_text())
        decode = DecodeCall(**values.pop("decode")) if values["decode"] else values.pop("decode")
        return cls(**values, decode=decode)


def draw_turns() -> int:
    """Return a seed for the order of turns, drawn by the operating system."""
    return secrets.randbits(63)


def is_baselines_turn(step: int, turns: int) -> bool:
    """Return whether decode step ``step``, counted from 0, of an alternating run has no scopes.

    The verified steps all have scopes. Then come blocks of four, ABBA or BAAB, by a fair coin for each block. The coins
    follow from the seed ``turns``, so they are equal in all ranks, which communicate within a step.
    """
    block, place = divmod(step - VERIFIED_STEPS, 4)
    coin = random.Random(f"{turns}-{block}").getrandbits(1)  # noqa: S311 - no secret
    return block >= 0 and (place in (1, 2)) == bool(coin)


@dataclass(frozen=True, slots=True)
class StepDigests:
    """Digests of a rank's outputs or state after one step.

    Attributes:
        digests: by tensor name, each followed by the number of elements: ``0a1b2c/4096``.
        kind: type of the step's output; empty for the state.
    """

    digests: Mapping[str, str]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class InspectedCall:
    """A call that would be compiled, as inspected by a rank.

    Attributes:
        call: which call.
        calls: how often it was made.
        parameters: number of parameters of the module tree that it runs.
        layout: from ``Layout.to_dict``; None if there is none.
        problem: why there is no layout.
    """

    call: DecodeCall
    calls: int
    parameters: int
    layout: Mapping[str, Any] | None
    problem: str = ""


@dataclass(slots=True)
class RankReport:
    """The report of one rank.

    Attributes:
        rank: number of the rank, unique on all hosts.
        pid: its process, on its host.
        host: number of its host.
        host_name: name of its host; empty if the program runs on one.
        inspected: the calls found while inspecting.
        compile_s: seconds of the first decode step, which includes compilation.
        outputs: of each compared step; after ``VERIFIED_STEPS``, one digest for all tensors.
        states: by the number of steps after which the state was digested.
        is_written: whether any state changed; None if this was not checked.
        step_s: seconds of each decode step after the first, in order.
        baselines: for each of these, whether it was the baseline's turn.
        error: the first failure's stage (``mark``, ``compile``, ``run``) and message.
        has_ended: whether the rank ended normally.
    """

    rank: int
    pid: int = 0
    host: int = 0
    host_name: str = ""
    inspected: list[InspectedCall] = field(default_factory=list)
    compile_s: float | None = None
    outputs: list[StepDigests] = field(default_factory=list)
    states: dict[int, StepDigests] = field(default_factory=dict)
    is_written: bool | None = None
    step_s: list[float] = field(default_factory=list)
    baselines: list[bool] = field(default_factory=list)
    error: tuple[str, str] | None = None
    has_ended: bool = False

    @property
    def all_s(self) -> list[float]:
        """Seconds of each decode step, including the first, which compiles."""
        return [] if self.compile_s is None else [self.compile_s, *self.step_s]

    @property
    def turns(self) -> list[bool]:
        """For each decode step, including the first, whether it was the baseline's turn."""
        return [] if self.compile_s is None else [False, *self.baselines]

    @property
    def name(self) -> str:
        """The rank, with its host if there are several."""
        return f"rank {self.rank}{f' on {self.host_name}' if self.host_name else ''}"

    @property
    def progress(self) -> str:
        """How far the rank got, in a few words."""
        if self.compile_s is None:
            return "before its first decode step"
        return f"after decode step {max(len(self.outputs), len(self.step_s) + 1)}"


def report_file(folder: Path, rank: int) -> tuple[Path, int]:
    """Return this process's report and the number of its host; no two hosts write to the same file."""
    host = int(os.environ.get(HOST_RANK_VARIABLE, "0"))
    return folder / f"rank-{rank}{f'-host-{host}' if host else ''}.jsonl", host


def read_reports(folder: Path, hosts: Sequence[str] = ()) -> list[RankReport]:
    """Return the reports of a run's ranks so far, by rank.

    Args:
        folder: of the run.
        hosts: names of the hosts, if there are several.
    """
    files = ((path, _FILE.fullmatch(path.name)) for path in folder.glob("rank-*.jsonl"))
    reports = [_read(path, int(match[1])) for path, match in files if match]
    reports.sort(key=lambda report: (report.rank, report.host))
    for report in reports:
        report.host_name = hosts[report.host] if report.host < len(hosts) else ""
    for one, other in pairwise(reports):
        if one.rank == other.rank:
            other.error = ("run", f"{one.name} has the same number; set RANK to the number among all hosts")
    return reports


_FILE = re.compile(r"rank-([0-9]+)(?:-host-[0-9]+)?\.jsonl")


def _read(path: Path, rank: int) -> RankReport:
    report = RankReport(rank)
    with open_regular(path) as file:
        lines = file.read().decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the line is still being written
        try:
            _add(report, event)
        except (KeyError, TypeError, ValueError, AttributeError) as failure:
            report.error = report.error or ("run", f"line {number} of its report {path.name} is damaged ({failure!r})")
    return report


def _add(report: RankReport, event: dict[str, Any]) -> None:
    match event.pop("event"):
        case "start":
            report.pid, report.host = int(event["pid"]), int(event.get("host", 0))
        case "found":
            found = InspectedCall(**{**event, "call": DecodeCall(**event["call"])})
            if found.layout is not None:
                Layout.from_dict(found.layout)
            report.inspected.append(found)
        case "compiled":
            report.compile_s = float(event["seconds"])
        case "outputs":
            report.outputs.append(StepDigests(_digests(event), str(event["kind"])))
        case "state":
            report.states[int(event["after"])] = StepDigests(_digests(event))
        case "written":
            report.is_written = event["is_written"] is True
        case "steps":
            seconds, baselines = map(float, event["seconds"]), map(bool, event["baselines"])
            both = list(zip(seconds, baselines, strict=True))
            report.step_s += [step_s for step_s, _ in both]
            report.baselines += [is_baseline for _, is_baseline in both]
        case "error" if report.error is None:
            report.error = (str(event["stage"]), str(event["message"]))
        case "end":
            report.has_ended = True


def _digests(event: dict[str, Any]) -> dict[str, str]:
    digests = {str(name): str(digest) for name, digest in event["digests"].items()}
    for digest in digests.values():
        int(digest.partition("/")[2])  # the number of elements
    return digests
