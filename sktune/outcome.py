"""Outcomes: what became of one plan. A trial's failure is a value, never an exception."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Why a trial was pruned."""

    COMPILE_FAILED = "compile_failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    MISMATCH = "mismatch"
    SLOWER = "slower"


@dataclass(frozen=True, slots=True)
class Speedup:
    """Baseline latency over candidate latency, measured in turn.

    Attributes:
        baseline_ms, latency_ms: medians over the same rounds.
        ratio: how many times as fast as the baseline.
        ci95: bootstrap 95% interval of ``ratio``.
        rounds: how often each was run.
    """

    baseline_ms: float
    latency_ms: float
    ratio: float
    ci95: tuple[float, float]
    rounds: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Speedup":
        """Inverse of ``dataclasses.asdict``, from JSON."""
        return cls(**{**data, "ci95": (data["ci95"][0], data["ci95"][1])})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one trial.

    Attributes:
        reason: why it was pruned; None where it is complete.
        detail: one line for people: the compiler's message, or where the first wrong bit is.
        speedup: the measurement, where it came to one.
        seconds: time spent, by stage: ``compile``, ``verify``, ``measure``.
        regions, reused: distinct regions of the plan, and how many of them were compiled before.
        code_digest: identity of the generated code.
        peak_memory_bytes: most device memory while the steps ran; None on the CPU.
        log: path of the trial's log, relative to the study's folder.
    """

    reason: Reason | None = None
    detail: str = ""
    speedup: Speedup | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    regions: int = 0
    reused: int = 0
    code_digest: str = ""
    peak_memory_bytes: int | None = None
    log: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the plan compiled, kept every bit, and was measured."""
        return self.reason is None

    @property
    def is_feasible(self) -> bool:
        """Whether the plan may be used at all, be it fast or slow."""
        return self.reason in (None, Reason.SLOWER)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Outcome":
        """Inverse of ``to_dict``."""
        values = dict(data)
        values["reason"] = Reason(data["reason"]) if data["reason"] else None
        values["speedup"] = Speedup.from_dict(data["speedup"]) if data["speedup"] else None
        return cls(**values)
