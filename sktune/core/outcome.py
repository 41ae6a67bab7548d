"""Outcomes: what became of one plan. A trial's failure is a value, never an exception."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from sktune.core.codec import AsList
from sktune.core.fused_scopes import FusedScope
from sktune.core.plan import Option
from sktune.core.verification import Verification


class Reason(StrEnum):
    """Why a trial was pruned."""

    COMPILE_FAILED = "compile_failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    MISMATCH = "mismatch"
    SLOWER = "slower"


class Stage(StrEnum):
    """The stages of a trial."""

    OPEN = "open"
    COMPILE = "compile"
    VERIFY = "verify"
    MEASURE = "measure"
    OBSERVE = "observe"


FARTHEST = 3.0
"""Largest log ratio that an interval considers, a factor of 20: one that ends there excludes nothing."""


def bracketed(ratio: float, ci95: Sequence[float] | None) -> str:
    """Return the interval of a speedup in brackets; that there is none if it excludes nothing."""
    if ci95 is None:
        return "simulated"
    return "[{:.3f}, {:.3f}]".format(*ci95) if excludes_any(ratio, ci95) else "no interval: too few rounds"


def excludes_any(ratio: float, ci95: Sequence[float]) -> bool:
    """Whether an interval excludes any ratio: with too few rounds, and for a single average, it does not."""
    return math.log(ci95[1] / ratio) <= 0.99 * FARTHEST


Measured = Annotated[float, Field(gt=0)]
"""A time or a ratio of times; a stored one that is not above zero is damaged."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Baseline latency over candidate latency, from interleaved runs of both.

    Attributes:
        baseline_ms, latency_ms: medians over the same rounds.
        ratio: the speedup; the centre of the rounds' ratios, not the ratio of the medians.
        ci95: 95% interval of ``ratio``, valid at every look; see ``sktune.measure.confidence_sequence``. None for a
            simulated figure.
        rounds: number of runs of each.
    """

    baseline_ms: Measured
    latency_ms: Measured
    ratio: Measured
    ci95: tuple[Measured, Measured] | None
    rounds: int

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; for a simulated figure, both ends are the ratio."""
        return self.ci95 or (self.ratio, self.ratio)

    def with_measurement(self, other: "Speedup") -> "Speedup":
        """Return the mean of two measurements of the same plan, weighted by the inverse square of their intervals.

        It is that of the logarithms, as an interval is a factor; one that excludes nothing adds nothing.
        """
        if self.ci95 is None or other.ci95 is None:
            return self
        widths = [math.log(high / low) for low, high in (self.ci95, other.ci95)]
        if not (excludes_any(self.ratio, self.ci95) and excludes_any(other.ratio, other.ci95)):
            return self if widths[0] <= widths[1] else other
        share = widths[1] ** 2 / (widths[0] ** 2 + widths[1] ** 2) if any(widths) else 0.5
        ratio = self.ratio**share * other.ratio ** (1 - share)
        factor = math.exp(0.5 * math.hypot(share * widths[0], (1 - share) * widths[1]))
        return Speedup(
            baseline_ms=share * self.baseline_ms + (1 - share) * other.baseline_ms,
            latency_ms=share * self.latency_ms + (1 - share) * other.latency_ms,
            ratio=ratio,
            ci95=(ratio / factor, ratio * factor),
            rounds=self.rounds + other.rounds,
        )


@dataclass(frozen=True, slots=True)
class ScopeTime:
    """The time of one piece of a plan: for the sampler to learn from, never part of a result.

    Attributes:
        first, last: the piece's first and last unit.
        in_scope: whether it is a scope; otherwise it is a gap between scopes.
        baseline_ms, latency_ms: medians for these units, in the baseline and under the plan.
    """

    first: str
    last: str
    in_scope: bool
    baseline_ms: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one trial.

    Attributes:
        reason: why it was pruned; None where it is complete.
        detail: one line for people: the compiler's message, or the position of the first wrong bit.
        speedup: the measurement; None if the trial ended before it.
        seconds: time spent, by stage: ``compile``, ``verify``, ``measure``, ``observe``.
        regions, reused: number of distinct regions of the plan, and how many of them had been compiled before.
        code_digest: digest of the generated code.
        fusion: what each scope was compiled to, in lines for people, if the compiler reports it.
        fused: the same as counts, scope by scope.
        fusion_digest: equal for plans that were compiled to the same kernels.
        blamed: label of the scope that caused the failure; empty if unknown.
        changes_bits: labels of all scopes that change bits on their own, if each was compared; the others keep them.
        same_as: number of the trial that was compiled to the same kernels and whose figures these are.
        added: options that sktune set in every scope to rescue the plan.
        scope_times: the time of each scope and each gap, in execution order, if the backend reports it.
        comparison: ``faster``, ``slower``, ``same`` or ``undecided``, against the baseline and beyond the noise floor.
        noise_floor: relative difference between the baseline and itself.
        noise: what disturbed the measurement; empty if nothing did.
        peak_memory_bytes: peak device memory while the steps ran; None on the CPU.
        log: path of the trial's log, relative to the study's folder.
        verification: what was compared with the baseline; None if nothing was.
        stage: the stage at which it was pruned; None if it was not, and if the stage is unknown.
        die: that it was measured on, if the search had several; empty otherwise.
    """

    reason: Reason | None = None
    detail: str = ""
    speedup: Speedup | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    regions: int = 0
    reused: int = 0
    code_digest: str = ""
    fusion: tuple[str, ...] = ()
    fused: tuple[FusedScope, ...] = ()
    fusion_digest: str = ""
    blamed: str = ""
    changes_bits: tuple[str, ...] = ()
    same_as: int | None = None
    added: Mapping[str, Option] = field(default_factory=dict)
    scope_times: tuple[Annotated[ScopeTime, AsList()], ...] = ()
    comparison: str = ""
    noise_floor: float = 0.0
    noise: str = ""
    peak_memory_bytes: int | None = None
    log: str = ""
    verification: Verification | None = None
    stage: Stage | None = None
    die: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the plan compiled, kept every bit, and was measured."""
        return self.reason is None

    @property
    def is_feasible(self) -> bool:
        """Whether the plan may be used at all, fast or slow."""
        return self.reason in (None, Reason.SLOWER)

    def after(self, verification: Verification) -> "Outcome":
        """Return this outcome after a further verification: a mismatch if that found a difference, or a crash."""
        if verification.is_identical:
            return replace(self, verification=verification)
        return replace(
            self,
            reason=Reason.CRASHED if verification.is_broken else Reason.MISMATCH,
            detail=str(verification),
            blamed=next(iter(verification.changes_bits), ""),
            changes_bits=verification.changes_bits,
            verification=verification,
            stage=Stage.VERIFY,
        )


MAX_FINALISTS = 5
MAX_SHORTLISTED = 12
"""Most trials, chosen by expected saving, that are measured again to select the finalists."""
BASELINE, BASELINE_REPEAT = "baseline", "baseline again"
"""Names of two rows of the final comparison: the second is another copy of the baseline, and shows the noise floor."""


@dataclass(frozen=True, slots=True)
class FinalRow:
    """One row of the final comparison.

    Attributes:
        name: ``baseline``, ``baseline again``, ``uncompiled``, ``plan 12``, ...
        speedup: against the baseline; None if it does not run.
        verdict: ``identical``, or where the bits differ, or why it does not run.
        bit_identical: whether every bit equals the baseline's; None if unknown.
        code_digest: digest of a plan's generated code.
    """

    name: str
    speedup: Speedup | None
    verdict: str
    bit_identical: bool | None
    code_digest: str = ""
