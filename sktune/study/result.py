"""Results: what a study has found, read from its record alone."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sktune.backends import backend_info
from sktune.backends.info import BackendInfo
from sktune.core.delivery import Delivery
from sktune.core.outcome import FinalRow, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.verification import Verification
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.winner import MOST_SHORTLISTED, FinalPlan, Verdict, decide, pooled
from sktune.study.facts import ProxyFindings, StudyFacts
from sktune.study.records import TrialRecord, incumbent_first
from sktune.study.study import TuningStudy, folder_name, sqlite_url
from sktune.targets import TargetSpec, Usage

BEST_PLAN = "best_plan.yaml"


@dataclass(frozen=True)
class SearchResult:
    """A study and its verdict.

    Attributes:
        study: name of the study.
        folder: where its files lie.
        trials: all trials that have ended, by number.
        verdict: what is recommended; None before the final comparison.
        comparison: the final comparison; None before it, and where the time did not suffice for one.
        facts: what else the study knows.
    """

    study: str
    folder: Path
    trials: Sequence[TrialRecord]
    verdict: Verdict | None
    comparison: FinalComparison | None
    facts: StudyFacts

    @property
    def final(self) -> Sequence[FinalRow]:
        """Rows of the final comparison, the baseline first."""
        return self.comparison.rows if self.comparison else ()

    def final_speedup(self, row: FinalRow) -> Speedup | None:
        """Return the figure of a row of the final comparison: the winner's is freed of the selection bias."""
        return self.winner.speedup if self.winner and row.name == str(self.winner.number) else row.speedup

    @property
    def winner(self) -> FinalPlan | None:
        """The recommended plan; None where the answer is "no scope" or the search has not ended."""
        return self.verdict.winner if self.verdict else None

    @property
    def baseline_ms(self) -> float | None:
        """Median baseline latency of the final comparison; before it, of the first measured trial."""
        if self.final and self.final[0].speedup:
            return self.final[0].speedup.latency_ms
        return self.facts.baseline_ms

    @property
    def best_plan(self) -> Plan:
        """The recommended plan, the empty one where the answer is "no scope"."""
        return self.winner.plan if self.winner else Plan()

    @property
    def backend(self) -> BackendInfo | None:
        """See ``backend_of``."""
        return backend_of(self.facts)

    @property
    def usage(self) -> Usage:
        """How plans for what was searched are used, and what their figures hold for."""
        stored = self.facts.target
        return TargetSpec.from_dict(stored["spec"]).usage if stored else Usage()

    @property
    def is_simulated(self) -> bool:
        """Whether the figures were computed from a model of the device."""
        return self.backend is not None and self.backend.is_simulated

    @property
    def is_of_npu(self) -> bool:
        """Whether the figures were measured on an NPU."""
        return self.backend is not None and self.backend.runs_superkernels

    @property
    def is_verified(self) -> bool:
        """Whether bits were compared."""
        return not self.is_simulated

    @property
    def processes(self) -> int:
        """Fresh processes that the final comparison was made in; 0 before it, and where there was no time for one."""
        return len(self.comparison.noise) if self.comparison else 0

    @property
    def wanted_processes(self) -> int:
        """In how many processes the final comparison is made where there is time; 1 before the first search."""
        return self.backend.final_processes if self.backend else 1

    @property
    def verification(self) -> Verification | None:
        """What was compared between the winner and the baseline; None without a winner, and where nothing was."""
        return self.verification_of(self.winner.number) if self.winner else None

    def verification_of(self, number: int) -> Verification | None:
        """What was compared between a trial's plan and the baseline; None where nothing was."""
        found = [record.outcome.verification for record in self.trials if record.number == number and record.outcome]
        return found[0] if found else None

    @property
    def delivery(self) -> Delivery | None:
        """The compiled code that was written for the winner; None where there is none."""
        stored = self.facts.delivery
        return stored.delivery if stored and self.winner and stored.trial == self.winner.number else None

    @property
    def model_difference(self) -> str | None:
        """Where the baseline differs from the uncompiled model; empty where it does not, None where nobody looked."""
        return self.facts.model_difference

    @property
    def is_compared(self) -> bool:
        """Whether the verdict is that of a final comparison, and not of trials alone."""
        return bool(self.verdict and self.final)

    @property
    def proxy(self) -> ProxyFindings | None:
        """Where the plans were found on fewer layers: what was found there."""
        return self.facts.proxy

    def proxy_ranking(self) -> list[tuple[float, float]]:
        """Return speedups on fewer layers and on the whole model of each carried plan that passed there."""
        pairs = []
        for plan in self.proxy.carried if self.proxy else ():
            for record in self.trials:
                is_plan = plan.values.items() <= record.values.items() and not record.is_probe
                if is_plan and record.outcome and record.outcome.is_complete and record.outcome.speedup:
                    pairs.append((plan.speedup, record.outcome.speedup.ratio))
                    break
        return pairs

    @property
    def proxy_rank_correlation(self) -> float | None:
        """Spearman's rank correlation of ``proxy_ranking``; None for fewer than three plans, or all alike."""
        pairs = self.proxy_ranking()
        if len(pairs) < 3:
            return None
        ranks = pd.DataFrame(pairs).rank()
        found = float(ranks[0].corr(ranks[1]))
        return None if math.isnan(found) else found

    def pruned(self) -> dict[str, int]:
        """Return how many trials were pruned, by reason."""
        counts = Counter(record.outcome.reason for record in self.trials if record.outcome and record.outcome.reason)
        return {str(reason): counts[reason] for reason in Reason}

    def blamed(self) -> dict[str, int]:
        """Return how many trials each scope is to blame for, by label, the worst first."""
        labels = (record.outcome.blamed for record in self.trials if record.outcome)
        return dict(Counter(filter(None, labels)).most_common())

    def incumbent(self) -> dict[str, Any] | None:
        """Return the best trial so far, ready for JSON; None before a plan has passed."""
        for record in incumbent_first(self.trials)[:1]:
            if record.outcome and (found := record.outcome.speedup):
                return {
                    "trial": record.number,
                    "origin": record.origin,
                    "scopes": len(record.judged_plan.scopes),
                    "latency_ms": found.latency_ms,
                    "baseline_ms": found.baseline_ms,
                    "speedup": found.ratio,
                    "ci95": ci95_list(found),
                }
        return None

    def final_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the final comparison, ready for JSON; none before it."""
        return [
            {
                "name": row.name,
                "latency_ms": speedup.latency_ms if speedup else None,
                "speedup": speedup.ratio if speedup else None,
                "ci95": ci95_list(speedup),
                "bit_identical": row.bit_identical if self.is_verified else None,
            }
            for row, speedup in ((row, self.final_speedup(row)) for row in self.final)
        ]

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
            "ci95": ci95_list(winner.speedup if winner else None),
            # A plan that is known not to be never gets here, and the baseline is itself.
            "bit_identical": True if self.verdict and self.is_verified else None,
            "processes": self.processes,
            "verification": self.verification.summary() if self.verification else None,
            "model_difference": self.model_difference,
            **({"simulated": True} if self.is_simulated else {}),
            **({} if self.verdict else {"finished": False}),
            **({"compared": False} if self.verdict and not self.is_compared else {}),
            **({"proxy_rank_correlation": self.proxy_rank_correlation} if self.proxy else {}),
            "plan": str(self.folder / BEST_PLAN) if winner else None,
        }


def backend_of(facts: StudyFacts) -> BackendInfo | None:
    """Return the backend that a study's figures are of; None before its first search has begun.

    Raises:
        BadInputError: the package that has it is not installed here.
    """
    name: str | None = facts.fingerprint.get("backend")
    return backend_info(name) if name else None


def ci95_list(speedup: Speedup | None) -> list[float] | None:
    """Return a speedup's interval, ready for JSON; None where there is none."""
    return list(speedup.ci95) if speedup and speedup.ci95 else None


def result_of(study: TuningStudy, folder: Path) -> SearchResult:
    """Read the result of ``study`` from its record."""
    facts = study.facts
    trials = [record for record in study.records() if record.outcome]
    comparison = facts.final
    verdict = _verdict(comparison, trials) if comparison else None
    if facts.uncompared:
        own = verdict_of_trials(_not_compared(trials, verdict, facts.final_trials), facts.noise_floor)
        if verdict is None or (own and own.winner and own.winner.number != _winner_number(verdict)):
            return SearchResult(study.name, folder, trials, own, None, facts)
    return SearchResult(study.name, folder, trials, verdict, comparison, facts)


def _not_compared(
    trials: Sequence[TrialRecord], verdict: Verdict | None, final_trials: int | None
) -> list[TrialRecord]:
    """Return the trials that the stored final comparison has not judged, and its winner's, which they have to beat."""
    judged = (final_trials or 0) if verdict else 0
    return [record for record in trials if record.number >= judged or record.number == _winner_number(verdict)]


def _winner_number(verdict: Verdict | None) -> int | None:
    return verdict.winner.number if verdict and verdict.winner else None


def stored_result(name: str, runs: Path, storage: str | None = None) -> SearchResult:
    """Read the result of the study ``name``, whose files lie below ``runs``.

    Raises:
        StudyError: there is no such study, or it cannot be read.
    """
    folder = runs / folder_name(name)
    return result_of(TuningStudy.open(name, storage or sqlite_url(folder.resolve()), create=False), folder)


def verdict_of_trials(trials: Sequence[TrialRecord], noise_floor: float) -> Verdict | None:
    """Return the best verified trial by its own figure, where no time was left to compare it again.

    It is the best of many, with the luck of one process: its interval is that of the best of so many, though of
    ``MOST_SHORTLISTED`` at most (benchmarks/results/final-luck.md holds what 40 trials make of it).
    """
    if not trials:
        return None
    complete = incumbent_first(trials)
    best = [(record, record.outcome.speedup) for record in complete[:1] if record.outcome and record.outcome.speedup]
    candidates = min(len(complete), MOST_SHORTLISTED)
    plans = [
        FinalPlan(record.number, record.judged_plan, (own,), pooled([own], candidates=candidates))
        for record, own in best
    ]
    return decide(plans, noise_floor)


def _verdict(comparison: FinalComparison, trials: Sequence[TrialRecord]) -> Verdict:
    plans = {str(record.number): record.judged_plan for record in trials}
    finalists = [
        FinalPlan(int(row.name), plans[row.name], comparison.speedups[row.name], row.speedup)
        for row in comparison.rows
        if row.name in plans and row.speedup and row.bit_identical is not False
    ]
    return decide(finalists, comparison.noise_floor)
