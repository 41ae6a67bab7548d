"""The reports of a run's ranks, as ``sktune_program.reporter`` writes them, and the random parts of their tasks."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sktune.core.codec import decoded
from sktune.core.files import open_regular
from sktune.program.sktune_program.calls import Calls
from sktune.program.sktune_program.module_times import StepTimes
from sktune.program.sktune_program.task import FORMAT, DecodeCall
from sktune.targets.module_tree import ModuleTree


def draw_turns() -> int:
    """Return a seed for the order of turns, drawn by the operating system."""
    return secrets.randbits(63)


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
        ran: the modules that one call ran.
        times: of further calls; empty if it was called too seldom for a decode step, and then ``ran`` is, too.
    """

    call: DecodeCall
    calls: int
    parameters: int
    ran: Calls
    times: tuple[StepTimes, ...]


@dataclass(slots=True)
class RankReport:
    """The report of one rank.

    Attributes:
        rank: number of the rank, unique on all hosts.
        pid: its process, on its host.
        host: number of its host.
        host_name: name of its host; empty if the program runs on one.
        versions: of its Python, torch, torch_npu and transformers, by name.
        trees: the module trees that were inspected, by the name of the function that runs them.
        functions: that were to be compiled while inspecting.
        stand_ins: names of the modules that were stand-ins then.
        inspected: the calls found while inspecting.
        clock_s: when the first of these calls began and the last ended, on the host's ``time.monotonic``.
        compile_s: seconds of the first decode step, which includes compilation.
        outputs: of each compared step; after ``VERIFIED_STEPS``, one digest for all tensors.
        states: by the number of steps after which the state was digested.
        is_written: whether any state changed; None if this was not checked.
        step_s: seconds of each decode step after the first, in order.
        baselines: for each of these, whether it was the baseline's turn.
        error: the first failure's stage (``mark``, ``compile``, ``run``, ``machine``) and message.
        has_ended: whether the rank ended normally.
    """

    rank: int
    pid: int = 0
    host: int = 0
    host_name: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    trees: dict[str, ModuleTree] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    stand_ins: set[str] = field(default_factory=set)
    inspected: list[InspectedCall] = field(default_factory=list)
    clock_s: dict[DecodeCall, tuple[float, float]] = field(default_factory=dict)
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
            _add(report, _checked(event))
        except (LookupError, ValueError) as failure:
            report.error = report.error or ("run", f"line {number} of its report {path.name} is damaged ({failure!r})")
    return report


_NAMED = list[tuple[str, int]]
"""Names of children or parameters of a module, with their numbers."""
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "start": {"pid": int, "host": int, "versions": dict[str, str] | None},
    "inspects": {"function": str, "stand_ins": set[str]},
    "tree": {"function": str, "classes": list[tuple[str, str, str]], "parameters": list[tuple[list[int], str]],
             "modules": list[tuple[int, _NAMED, _NAMED]]},
    "found": {"call": DecodeCall, "calls": int, "parameters": int, "times": list[tuple[float, dict[str, float]]],
              "ran": list[tuple[str, int | None, int | None, int | None, str, bool]]},
    "called": {"call": DecodeCall, "clock_s": tuple[float, float]},
    "compiled": {"seconds": float},
    "outputs": {"digests": dict[str, str], "kind": str},
    "state": {"after": int, "digests": dict[str, str]},
    "steps": {"seconds": list[float], "baselines": list[bool]},
    "error": {"stage": str, "message": str},
}  # fmt: skip
"""The types of an event's values, by their keys."""


def _checked(event: Any) -> dict[str, Any]:
    """Return an event with values of the types that its kind has.

    Raises:
        ValueError: it is no event, or a value has another type.
    """
    if not isinstance(event, dict):
        raise ValueError("it is no event")
    forms = _FORMS.get(str(event.get("event")), {})
    return event | {key: decoded(kind, event.get(key)) for key, kind in forms.items()}


def _add(report: RankReport, event: dict[str, Any]) -> None:
    match event["event"]:
        case "start":
            report.pid, report.host, report.versions = event["pid"], event["host"], event["versions"] or {}
            if event["format"] != FORMAT and report.error is None:
                problem = (
                    f"its report has the format {event['format']!r}, and this sktune knows {FORMAT}; "
                    "another sktune's folder is first on its PYTHONPATH, take it out"
                )
                report.error = ("run", problem)
        case "inspects":
            report.functions.append(event["function"])
            report.stand_ins |= event["stand_ins"]
        case "tree":
            report.trees[event["function"]] = ModuleTree(event)
        case "found":
            report.inspected.append(_inspected(event, report.trees))
        case "called":
            report.clock_s[event["call"]] = event["clock_s"]
        case "compiled":
            report.compile_s = event["seconds"]
        case "outputs":
            report.outputs.append(StepDigests(_digests(event), event["kind"]))
        case "state":
            report.states[event["after"]] = StepDigests(_digests(event))
        case "written":
            report.is_written = event["is_written"] is True
        case "steps":
            both = list(zip(event["seconds"], event["baselines"], strict=True))
            report.step_s += [step_s for step_s, _ in both]
            report.baselines += [is_baseline for _, is_baseline in both]
        case "error" if report.error is None:
            report.error = (event["stage"], event["message"])
        case "end":
            report.has_ended = True


def _inspected(event: dict[str, Any], trees: Mapping[str, ModuleTree]) -> InspectedCall:
    if any((began is None) != (ended is None) for _, began, ended, *_ in event["ran"]):
        raise ValueError("a call has begun or ended, not both")
    call, ran = event["call"], Calls.from_rows(event["ran"])
    for index, each in enumerate(ran.calls):
        if each.name not in trees[call.function].modules or not -1 < (each.caller or 0) <= index:
            raise ValueError(f"call {index} is of no module, or in a later one")
    times = tuple(StepTimes(total_s, modules_s) for total_s, modules_s in event["times"])
    return InspectedCall(call, event["calls"], event["parameters"], ran, times)


def _digests(event: dict[str, Any]) -> dict[str, str]:
    digests: dict[str, str] = event["digests"]
    for digest in digests.values():
        int(digest.partition("/")[2])  # the number of elements
    return digests
