"""Results: what a study has found, read from its record alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sktune.final import FinalComparison
from sktune.outcome import Reason
from sktune.plan import Plan
from sktune.study import TrialRecord, TuningStudy
from sktune.supervisor import FinalRow
from sktune.verdict import FinalPlan, Verdict, decide

BEST_PLAN = "best_plan.yaml"


@dataclass(frozen=True)
class SearchResult:
    """A study and its verdict.

    Attributes:
        study: name of the study.
        folder: where its files lie.
        trials: all trials that have ended, by number.
        verdict: what is recommended; None before the final comparison.
        comparison: the final comparison; None before it.
        facts: what else the study knows: description, fingerprint, seconds.
    """

    study: str
    folder: Path
    trials: Sequence[TrialRecord]
    verdict: Verdict | None
    comparison: FinalComparison | None
    facts: Mapping[str, Any]

    @property
    def final(self) -> Sequence[FinalRow]:
        """Rows of the final comparison, the baseline first."""
        return self.comparison.rows if self.comparison else ()

    @property
    def winner(self) -> FinalPlan | None:
        """The recommended plan; None where the answer is "no scope" or the search has not ended."""
        return self.verdict.winner if self.verdict else None

    @property
    def baseline_ms(self) -> float | None:
        """Median baseline latency of the final comparison; before it, of the first measured trial."""
        if self.final and self.final[0].speedup:
            return self.final[0].speedup.latency_ms
        value: float | None = self.facts.get("baseline_ms")
        return value

    @property
    def best_plan(self) -> Plan:
        """The recommended plan, the empty one where the answer is "no scope"."""
        return self.winner.plan if self.winner else Plan()

    @property
    def is_simulated(self) -> bool:
        """Whether the figures were computed from a model of the device."""
        return bool(self.facts.get("fingerprint", {}).get("backend") == "sim")

    @property
    def is_verified(self) -> bool:
        """Whether bits were compared."""
        return not self.final or self.final[0].bit_identical is not None

    def pruned(self) -> dict[str, int]:
        """Return how many trials were pruned, by reason."""
        counts = Counter(record.outcome.reason for record in self.trials if record.outcome and record.outcome.reason)
        return {str(reason): counts[reason] for reason in Reason}

    def blamed(self) -> dict[str, int]:
        """Return how many trials each scope is to blame for, by label, the worst first."""
        labels = (record.outcome.blamed for record in self.trials if record.outcome)
        return dict(Counter(filter(None, labels)).most_common())

    def summary(self) -> dict[str, Any]:
        """Return the closing event's values."""
        winner = self.winner
        return {
            "study": self.study,
            "trials": len(self.trials),
            "complete": sum(bool(record.outcome and record.outcome.is_complete) for record in self.trials),
            "pruned": self.pruned(),
            "baseline_ms": self.baseline_ms,
            "best_ms": winner.speedup.latency_ms if winner else None,
            "speedup": winner.speedup.ratio if winner else (1.0 if self.verdict else None),
            "ci95": list(winner.speedup.ci95) if winner and not self.is_simulated else None,
            # A plan that is known not to be never gets here, and the baseline is itself.
            "bit_identical": True if self.verdict and self.is_verified else None,
            **({"simulated": True} if self.is_simulated else {}),
            **({} if self.verdict else {"finished": False}),
            "plan": str(self.folder / BEST_PLAN) if winner else None,
        }


def result_of(study: TuningStudy, folder: Path) -> SearchResult:
    """Read the result of ``study`` from its record."""
    facts = study.facts
    trials = [record for record in study.records() if record.outcome]
    stored = facts.get("final")
    comparison = FinalComparison.from_dict(stored) if stored else None
    verdict = _verdict(comparison, trials) if comparison else None
    return SearchResult(study.name, folder, trials, verdict, comparison, facts)


def _verdict(comparison: FinalComparison, trials: Sequence[TrialRecord]) -> Verdict:
    plans = {str(record.number): record.judged_plan for record in trials}
    finalists = [
        FinalPlan(int(row.name), plans[row.name], comparison.speedups[row.name], row.speedup)
        for row in comparison.rows
        if row.name in plans and row.speedup and row.bit_identical is not False
    ]
    return decide(finalists, comparison.noise_floor)
