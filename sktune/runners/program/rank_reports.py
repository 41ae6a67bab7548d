"""What each rank of a run is asked, and what it reports: JSON in the run's folder.

``task.json`` is written before the command starts. A rank appends to ``rank-3.jsonl``: ``start``, then ``layout`` (when
asked for it) or ``compiled``, ``outputs`` of each step that is verified, ``state`` after the first steps and after the
last that is verified, ``steps`` (seconds, and which of them were the baseline's), ``error``, and at last ``end``.
"""

import json
import random
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RUN_VARIABLE = "SKTUNE_RUN"
"""Environment variable: the run's folder. Also how the processes of a run are known from all others."""
PLAN_VARIABLE = "SKTUNE_PLAN"
"""Environment variable: the plan file."""
TASK = "task.json"
PLAN = "plan.yaml"
VERIFIED_STEPS = 8
"""Decode steps whose outputs are compared in every run, and after which the state is."""


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """Which of a program's compiled calls is the decode step.

    Attributes:
        function: the compiled function, e.g. ``DeepseekV3ForCausalLM.decode``.
        signature: types and shapes of its tensors; empty where every call is a decode step.
    """

    function: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """What the ranks of a run do.

    Attributes:
        inspects: run eagerly, and report the layout of what would be compiled.
        backend: whose scopes a plan has, ``inductor`` or ``npu``.
        model: class of the module tree; None for the one that the compiled function belongs to.
        decode: the decode step; None while it is not known.
        space: the search space's document, which says what is a unit.
        turns: run the decode step with the plan's scopes and without them, in an order that follows from this number,
            drawn anew for each run; see ``is_baselines_turn``. None where a run holds its plan alone.
        steps: decode steps whose outputs are compared, at least ``VERIFIED_STEPS``.
        watches_state: tell whether any state changes from the first to the last of ``VERIFIED_STEPS``.
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
    """Return what an order of turns follows from, drawn by the operating system."""
    return secrets.randbits(63)


def is_baselines_turn(step: int, turns: int) -> bool:
    """Return whether the decode step number ``step``, from 0, of an alternating run has no scopes.

    The verified steps all have them. Then come blocks of four, ABBA or BAAB: for each block a fair coin decides, the
    same in all ranks, which communicate within a step. The coins follow from ``turns``.
    """
    block, place = divmod(step - VERIFIED_STEPS, 4)
    coin = random.Random(f"{turns}-{block}").getrandbits(1)  # noqa: S311 - no secret
    return block >= 0 and (place in (1, 2)) == bool(coin)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a rank has digested after one step.

    Attributes:
        digests: by the tensors' names, each followed by the number of elements: ``0a1b2c/4096``.
        kind: type of the step's output; empty for the state.
    """

    digests: Mapping[str, str]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A compiled call that a rank has met while inspecting.

    Attributes:
        call: which.
        calls: how often it was made.
        parameters: of the module tree that it runs.
        layout: as ``Layout.to_dict`` gives it; None where it was called too seldom.
        problem: why there is no layout.
    """

    call: DecodeCall
    calls: int
    parameters: int
    layout: Mapping[str, Any] | None
    problem: str = ""


@dataclass(slots=True)
class RankReport:
    """What one rank has reported.

    Attributes:
        rank: its number.
        pid: its process.
        found: what was met while inspecting.
        compile_s: of the first decode step, which compiles.
        outputs: of each verified step. Of those after ``VERIFIED_STEPS`` there is one digest for all tensors.
        states: by the number of steps after which the state was looked at.
        is_written: whether any state was seen to change; None where nobody looked.
        step_s: seconds of each decode step after the first, in order.
        baselines: for each of these, whether it was the baseline's turn.
        error: the first failure's stage (``mark``, ``compile``, ``run``) and message.
        has_ended: whether it came to its end by itself.
    """

    rank: int
    pid: int = 0
    found: list[FoundStep] = field(default_factory=list)
    compile_s: float | None = None
    outputs: list[Compared] = field(default_factory=list)
    states: dict[int, Compared] = field(default_factory=dict)
    is_written: bool | None = None
    step_s: list[float] = field(default_factory=list)
    baselines: list[bool] = field(default_factory=list)
    error: tuple[str, str] | None = None
    has_ended: bool = False

    @property
    def all_s(self) -> list[float]:
        """Seconds of each decode step, the first included, which compiles."""
        return [] if self.compile_s is None else [self.compile_s, *self.step_s]

    @property
    def turns(self) -> list[bool]:
        """For each decode step, the first included, whether it was the baseline's."""
        return [] if self.compile_s is None else [False, *self.baselines]

    @property
    def progress(self) -> str:
        """How far it came, in a few words."""
        if self.compile_s is None:
            return "before its first decode step"
        return f"after decode step {max(len(self.outputs), len(self.step_s) + 1)}"


def read_reports(folder: Path) -> list[RankReport]:
    """Return the reports of a run's ranks so far, by rank."""
    reports = [_read(path) for path in sorted(folder.glob("rank-*.jsonl"))]
    return sorted(reports, key=lambda report: report.rank)


def _read(path: Path) -> RankReport:
    report = RankReport(int(path.stem.partition("-")[2]))
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the end of a line is still being written
        _take(report, event)
    return report


def _take(report: RankReport, event: dict[str, Any]) -> None:
    match event.pop("event"):
        case "start":
            report.pid = event["pid"]
        case "found":
            report.found.append(FoundStep(**{**event, "call": DecodeCall(**event["call"])}))
        case "compiled":
            report.compile_s = event["seconds"]
        case "outputs":
            report.outputs.append(Compared(event["digests"], event["kind"]))
        case "state":
            report.states[event["after"]] = Compared(event["digests"])
        case "written":
            report.is_written = event["is_written"]
        case "steps":
            report.step_s += event["seconds"]
            report.baselines += event["baselines"]
        case "error" if report.error is None:
            report.error = (event["stage"], event["message"])
        case "end":
            report.has_ended = True
