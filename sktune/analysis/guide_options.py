"""The guide's options in a study: each with its trial, or the reason why there is none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sktune.analysis.decision import ScopeOption
from sktune.core.events.analysis import Figures, OptionResultShown
from sktune.core.outcome import Outcome, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace, guide_points, is_attention
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.noise_floor import Threshold
from sktune.study.records import TrialRecord, incumbent_first
from sktune.study.result import SearchResult

NAMES: Mapping[ScopeOption, str] = {
    ScopeOption.ATTENTION: "attention only",
    ScopeOption.MOE: "MoE only",
    ScopeOption.ATTENTION_MOE: "attention + MoE",
    ScopeOption.LAYER: "each layer",
    ScopeOption.ALL_LAYERS: "all layers",
}
"""Names of the starting points that are options of the guide."""


class OptionStatus(StrEnum):
    """The result of an option."""

    PASSED = "passed"
    SLOWER = "slower"
    MISMATCH = "mismatch"
    COMPILE_FAILED = "compile_failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    NOT_REACHED = "not_reached"
    NONE_PASSED = "none_passed"
    NO_MOE = "no_moe"
    NO_ATTENTION = "no_attention"
    NO_LAYERS = "no_layers"


_OF_REASON: Mapping[Reason | None, OptionStatus] = {
    None: OptionStatus.PASSED,
    **{reason: OptionStatus(reason.value) for reason in Reason},
}


@dataclass(frozen=True, slots=True)
class OptionResult:
    """An option and its trial.

    Attributes:
        trial: None if there is none; then ``status`` says why.
        speedup: measured in the trial; None if it failed.
        final: measured in the final comparison; None if the plan was not in it.
        detail: the outcome's detail, in one line.
    """

    option: ScopeOption
    status: OptionStatus
    trial: int | None = None
    plan: Plan | None = None
    speedup: Speedup | None = None
    final: Speedup | None = None
    comparison: str = ""
    detail: str = ""

    @property
    def exists(self) -> bool:
        """Whether the model has the modules that the option covers."""
        return self.status not in (OptionStatus.NO_MOE, OptionStatus.NO_ATTENTION, OptionStatus.NO_LAYERS)

    @property
    def is_faster(self) -> bool:
        """Whether it passed, and beats the baseline by more than the noise."""
        return self.status is OptionStatus.PASSED and self.comparison == Comparison.FASTER

    def shown(self, name: str) -> OptionResultShown:
        """Return what is told of it; ``name`` is that of the option for people."""
        return OptionResultShown(
            **figures(self.speedup),
            option=self.option,
            name=name,
            exists=self.exists,
            status=self.status,
            detail=self.detail,
            trial=self.trial,
            scopes=len(self.plan.scopes) if self.plan else None,
            final=Figures(**figures(self.final)) if self.final else None,
        )


def figures(speedup: Speedup | None) -> dict[str, Any]:
    """Return the fields of ``Figures`` for a speedup, all None without one."""
    return {
        "baseline_ms": speedup.baseline_ms if speedup else None,
        "latency_ms": speedup.latency_ms if speedup else None,
        "speedup": speedup.ratio if speedup else None,
        "ci95": speedup.ci95 if speedup else None,
        "improvement_percent": improvement_percent(speedup) if speedup else None,
    }


def improvement_percent(speedup: Speedup) -> float:
    """Return the improvement as the skill defines it: (base - new) / base, in percent."""
    return 100 * (speedup.baseline_ms - speedup.latency_ms) / speedup.baseline_ms


def option_results(result: SearchResult, space: SearchSpace) -> tuple[OptionResult, ...]:
    """Return the results of all options of the guide in the study ``result``, the narrowest first."""
    plans = {point.name: space.plan(point.values) for point in guide_points(space)}
    has_attention = any(is_attention(key) for keys in space.layout.kinds.values() for key in keys)
    results: list[OptionResult] = []
    records: list[TrialRecord] = []
    for option, name in NAMES.items():
        # The trial of the plan, a failed repeat first; if there is none, that of a starting point of this name.
        candidates = [record for record in result.trials if not record.is_probe]
        exact = [record for record in candidates if name in plans and record.plan == plans[name]]
        failed = [record for record in exact if record.is_repeat and record.outcome and not record.outcome.is_feasible]
        if found := failed or exact or [record for record in candidates if record.origin == name]:
            records.append(found[0])
            results.append(_of_trial(option, found[0], result))
        elif name in plans:
            results.append(OptionResult(option, OptionStatus.NOT_REACHED))
        elif not space.layout.kinds:
            results.append(OptionResult(option, OptionStatus.NO_LAYERS))
        else:
            is_without_moe = has_attention or option is ScopeOption.MOE
            results.append(OptionResult(option, OptionStatus.NO_MOE if is_without_moe else OptionStatus.NO_ATTENTION))
    # The best of all other plans: the winner if it is one of them.
    tried = {record.plan for record in records}
    others = [record for record in result.trials if record.plan not in tried]
    best = incumbent_first(others)
    winner = [record for record in best if result.winner and record.number == result.winner.number]
    if best:
        return (*results, _of_trial(ScopeOption.CUSTOM, (winner or best)[0], result))
    none = OptionStatus.NONE_PASSED if others else OptionStatus.NOT_REACHED
    return (*results, OptionResult(ScopeOption.CUSTOM, none))


def option_of(trial: int, options: Sequence[OptionResult]) -> ScopeOption:
    """Return the option whose trial ``trial`` is."""
    return next((row.option for row in options if row.trial == trial), ScopeOption.CUSTOM)


def _of_trial(option: ScopeOption, record: TrialRecord, result: SearchResult) -> OptionResult:
    outcome = record.outcome or Outcome()
    row = next((row for row in result.final if row.name == str(record.number)), None)
    status, comparison, detail = _OF_REASON[outcome.reason], outcome.comparison, outcome.detail
    final = result.final_speedup(row) if row else None
    if row and row.bit_identical is False:  # only the fresh process found this
        status, detail = (OptionStatus.MISMATCH if row.speedup else OptionStatus.COMPILE_FAILED), row.verdict
    elif final and result.comparison:
        comparison = Threshold(result.comparison.noise_floor).comparison(final)
    return OptionResult(
        option, status, record.number, record.judged_plan, outcome.speedup, final, comparison,
        " ".join(detail.split())[:200],
    )  # fmt: skip
