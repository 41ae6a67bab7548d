"""What each rank of a run is asked, and what it reports: JSON in the run's folder.

``task.json`` is written before the command starts. A rank appends to ``rank-3.jsonl``: ``start``, then ``layout`` (when
asked for it) or ``compiled``, ``outputs`` of each step that is verified, ``state`` after the last of them, ``steps``
(seconds), ``error``, and at last ``end``.
"""

import json
import random
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
"""Decode steps whose outputs are compared, and after which the state is."""


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
        alternates: run the decode step with the plan's scopes and without them, in turn; see ``is_baselines_turn``.
    """

    inspects: bool
    backend: str
    model: str | None = None
    decode: DecodeCall | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    alternates: bool = False

    def write(self, folder: Path) -> None:
        """Write ``task.json``."""
        (folder / TASK).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Task":
        """Inverse of ``write``."""
        values = json.loads((folder / TASK).read_text())
        decode = DecodeCall(**values.pop("decode")) if values["decode"] else values.pop("decode")
        return cls(**values, decode=decode)


def is_baselines_turn(step: int) -> bool:
    """Return whether the decode step number ``step``, from 0, of an alternating run has no scopes.

    The verified steps all have them. Then come blocks of four, ABBA or BAAB; the order is drawn anew for each block,
    the same in all ranks.
    """
    block, place = divmod(step - VERIFIED_STEPS, 4)
    return block >= 0 and (place in (1, 2)) == bool(random.Random(block).getrandbits(1))  # noqa: S311 - no secret


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
        outputs: for each verified step, digests by the tensors' names.
        state: digests of the state after them.
        step_s: seconds of each later decode step, in order.
        error: the first failure's stage (``mark``, ``compile``, ``run``) and message.
        has_ended: whether it came to its end by itself.
    """

    rank: int
    pid: int = 0
    found: list[FoundStep] = field(default_factory=list)
    compile_s: float | None = None
    outputs: list[Mapping[str, str]] = field(default_factory=list)
    state: Mapping[str, str] | None = None
    step_s: list[float] = field(default_factory=list)
    error: tuple[str, str] | None = None
    has_ended: bool = False

    @property
    def all_s(self) -> list[float]:
        """Seconds of each decode step, the first included, which compiles."""
        return [] if self.compile_s is None else [self.compile_s, *self.step_s]

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
            report.outputs.append(event["digests"])
        case "state":
            report.state = event["digests"]
        case "steps":
            report.step_s += event["seconds"]
        case "error" if report.error is None:
            report.error = (event["stage"], event["message"])
        case "end":
            report.has_ended = True
