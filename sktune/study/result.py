"""Results of studies, read from their trials and facts alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from optuna.trial import FrozenTrial

from sktune.backends import backend_info
from sktune.backends.info import BackendInfo
from sktune.core.delivery import Delivery
from sktune.core.errors import PlanError, StudyError
from sktune.core.events.base import ABSENT
from sktune.core.events.search import StudyFinished, StudyResult
from sktune.core.events.studies import FinalRowShown, Incumbent
from sktune.core.files import real_path
from sktune.core.outcome import MAX_SHORTLISTED, FinalRow, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.verification import Verification
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.verdict import FinalPlan, Verdict, decide, pooled
from sktune.study.facts import StudyFacts
from sktune.study.records import TrialRecord, incumbent_first
from sktune.study.storage import translated
from sktune.study.study import TuningStudy, folder_name, sqlite_url
from sktune.study.workers import Workers, workers_of
from sktune.targets import TargetSpec, Usage

BEST_PLAN = "best_plan.yaml"
ResultEvent = TypeVar("ResultEvent", bound=StudyResult)


@dataclass(frozen=True)
class SearchResult:
    """A study and its verdict.

    Attributes:
        study: name of the study.
        folder: of its files.
        trials: all finished trials, by number.
        verdict: the recommendation; None before the final comparison.
        comparison: the final comparison; None before it, and if there was no time for one.
        facts: about the study as a whole.
        history: the trials as Optuna stores them, for reports on what was learned.
        workers: that ran the trials, if there could be several.
    """

    study: str
    folder: Path
    trials: Sequence[TrialRecord]
    verdict: Verdict | None
    comparison: FinalComparison | None
    facts: StudyFacts
    history: Sequence[FrozenTrial] = field(default=(), repr=False)
    workers: Workers = field(default_factory=Workers)

    @property
    def final(self) -> Sequence[FinalRow]:
        """Rows of the final comparison, the baseline first."""
        return self.comparison.rows if self.comparison else ()

    def final_speedup(self, row: FinalRow) -> Speedup | None:
        """Return the speedup of a row of the final comparison; the winner's is corrected for selection bias."""
        return self.winner.speedup if self.winner and row.name == str(self.winner.number) else row.speedup

    @property
    def winner(self) -> FinalPlan | None:
        """The recommended plan; None if the answer is "no scope" or the search has not ended."""
        return self.verdict.winner if self.verdict else None

    @property
    def baseline_ms(self) -> float | None:
        """Median baseline latency of the final comparison; before it, of the first measured trial."""
        if self.final and self.final[0].speedup:
            return self.final[0].speedup.latency_ms
        return self.facts.baseline_ms

    @property
    def speedup(self) -> float | None:
        """Speedup of the recommended plan; 1.0 if that is "no scope", None before the final comparison."""
        if self.winner:
            return self.winner.speedup.ratio
        return 1.0 if self.verdict else None

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95% interval of ``speedup``; None without a winner, and for simulated figures."""
        return self.winner.speedup.ci95 if self.winner else None

    @property
    def repeatability(self) -> float | None:
        """Relative difference that another search's figure of the winner would stay within, in 95% of cases.

        None without a winner, without a final comparison, and for simulated figures.
        """
        if self.winner is None or self.comparison is None or self.is_simulated:
            return None
        of_dies: dict[str, list[float]] = {}
        for record in self.trials:
            if record.outcome and record.outcome.speedup:
                of_dies.setdefault(record.outcome.die, []).append(record.outcome.speedup.baseline_ms)
        limit = self.comparison.repeatability_of(str(self.winner.number), list(of_dies.values()))
        return limit if isfinite(limit) else None

    @property
    def latency_ms(self) -> float | None:
        """Decode step latency of the recommended plan; the baseline's if that is "no scope"."""
        if self.winner:
            return self.winner.speedup.latency_ms
        return self.baseline_ms if self.verdict else None

    @property
    def best_plan(self) -> Plan:
        """The recommended plan; the empty plan if the answer is "no scope"."""
        return self.winner.plan if self.winner else Plan()

    @property
    def backend(self) -> BackendInfo | None:
        """See ``backend_of``."""
        return backend_of(self.facts)

    @property
    def usage(self) -> Usage:
        """How plans for the target are used, and what their figures apply to."""
        stored = self.facts.target
        return TargetSpec.from_dict(stored["spec"]).usage if stored else Usage()

    @property
    def is_simulated(self) -> bool:
        """Whether the figures come from a model of the device."""
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
    def has_figures(self) -> bool:
        """Whether any trial was measured."""
        return any(record.outcome and record.outcome.speedup for record in self.trials)

    @property
    def processes(self) -> int:
        """Number of fresh processes in the final comparison; 0 before it, and if there was no time for one."""
        return len(self.comparison.noise) if self.comparison else 0

    @property
    def dies(self) -> tuple[str, ...]:
        """The different dies of the final comparison, in its order; empty if the search had a single worker."""
        return tuple(dict.fromkeys(self.comparison.dies)) if self.comparison else ()

    @property
    def wanted_processes(self) -> int:
        """Number of processes that a final comparison uses if there is time; 1 before the first search."""
        return self.backend.final_processes if self.backend else 1

    @property
    def verification(self) -> Verification | None:
        """The verification of the winner; None without a winner, and if nothing was compared."""
        return self.verification_of(self.winner.number) if self.winner else None

    def verification_of(self, number: int) -> Verification | None:
        """Return the verification of a trial's plan; None if nothing was compared."""
        outcomes = (record.outcome for record in self.trials if record.number == number and record.outcome)
        return next((outcome.verification for outcome in outcomes), None)

    @property
    def delivery(self) -> Delivery | None:
        """The winner's compiled code; None if none was written."""
        stored = self.facts.delivery
        return stored.delivery if stored and self.winner and stored.trial == self.winner.number else None

    @property
    def model_difference(self) -> str | None:
        """Where the baseline differs from the uncompiled model; empty if it does not, None if not compared."""
        return self.facts.model_difference

    @property
    def has_failed(self) -> bool:
        """Whether no plan could be used, fast or slow: then nothing was measured, and there is no answer."""
        outcomes = [record.outcome for record in self.trials if record.outcome]
        return bool(outcomes) and not any(outcome.is_feasible for outcome in outcomes)

    @property
    def is_compared(self) -> bool:
        """Whether the verdict is from a final comparison instead of trials alone."""
        return bool(self.verdict and self.final)

    @property
    def gain_left(self) -> float | None:
        """With 95% probability no plan of the space saves more than this share of the baseline step beyond the answer.

        None before a search has ended, and if nothing was measured.
        """
        return self.facts.gain_left

    def pruned(self) -> dict[Reason, int]:
        """Return the number of pruned trials by reason."""
        counts = Counter(record.outcome.reason for record in self.trials if record.outcome and record.outcome.reason)
        return {reason: counts[reason] for reason in Reason}

    def blamed(self) -> dict[str, int]:
        """Return the number of failed trials by the label of the blamed scope, the worst first."""
        labels = (record.outcome.blamed for record in self.trials if record.outcome)
        return dict(Counter(filter(None, labels)).most_common())

    def incumbent(self) -> Incumbent | None:
        """Return the best trial so far; None before a plan has passed."""
        for record in incumbent_first(self.trials)[:1]:
            if record.outcome and (speedup := record.outcome.speedup):
                scopes, latency_ms, baseline_ms = (
                    len(record.judged_plan.scopes),
                    speedup.latency_ms,
                    speedup.baseline_ms,
                )
                return Incumbent(
                    record.number, record.origin, scopes, latency_ms, baseline_ms, speedup.ratio, speedup.ci95
                )
        return None

    def final_rows(self) -> list[FinalRowShown]:
        """Return the rows of the final comparison as they are shown; empty before it."""
        return [
            FinalRowShown(
                name=row.name,
                latency_ms=speedup.latency_ms if speedup else None,
                speedup=speedup.ratio if speedup else None,
                ci95=speedup.ci95 if speedup else None,
                bit_identical=row.bit_identical if self.is_verified else None,
            )
            for row, speedup in ((row, self.final_speedup(row)) for row in self.final)
        ]

    @property
    def complete(self) -> int:
        """Number of trials that compiled, kept every bit and were measured."""
        return sum(bool(record.outcome and record.outcome.is_complete) for record in self.trials)

    def told_as(self, kind: type[ResultEvent], **others: Any) -> ResultEvent:
        """Return the event of the class ``kind`` that tells the result; ``others`` are keys of its own."""
        return kind(
            study=self.study,
            trials=len(self.trials),
            complete=self.complete,
            pruned=self.pruned(),
            baseline_ms=self.baseline_ms,
            best_ms=self.winner.speedup.latency_ms if self.winner else None,
            speedup=self.speedup,
            ci95=self.ci95,
            repeatability=ABSENT if self.repeatability is None else self.repeatability,
            # A plan known to differ never gets here, and the baseline equals itself.
            bit_identical=True if self.verdict and self.is_verified else None,
            processes=self.processes,
            dies=self.dies,
            verification=self.verification.summary if self.verification else None,
            model_difference=self.model_difference,
            simulated=self.is_simulated,
            finished=self.verdict is not None,
            compared=self.is_compared or self.verdict is None,
            gain_left=self.gain_left,
            plan=str(self.folder / BEST_PLAN) if self.winner else None,
            **others,
        )

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values: the keys of ``study_finished``."""
        values = self.told_as(StudyFinished).to_dict()
        del values["event"]
        return values


def backend_of(facts: StudyFacts) -> BackendInfo | None:
    """Return the backend of a study; None before its first search.

    Raises:
        BadInputError: the package that provides it is not installed here.
    """
    name: str | None = facts.fingerprint.get("backend")
    return backend_info(name) if name else None


def result_of(study: TuningStudy, folder: Path) -> SearchResult:
    """Read the result of ``study``."""
    facts = study.facts
    records = study.records()
    for record in records:
        try:
            if facts.layout:
                facts.layout.check(record.plan)
        except PlanError as failure:
            raise StudyError(
                f"study {study.name!r}: the plan of trial {record.number} does not fit its model ({failure}); restore "
                "the study, or name another with --study"
            ) from failure
    trials = [record for record in records if record.outcome]
    history = study.trials()
    with translated(study.name):
        workers = workers_of(study.storage.engine, study.name, records)
    comparison = facts.final
    verdict = verdict_of(comparison, trials) if comparison else None
    if facts.uncompared:
        newer = verdict_of_trials(_not_compared(trials, verdict, facts.final_trials), facts.noise_floor)
        if verdict is None or (newer and newer.winner and newer.winner.number != _winner_number(verdict)):
            return SearchResult(study.name, folder, trials, newer, None, facts, history, workers)
    return SearchResult(study.name, folder, trials, verdict, comparison, facts, history, workers)


def _not_compared(
    trials: Sequence[TrialRecord], verdict: Verdict | None, final_trials: int | None
) -> list[TrialRecord]:
    """Return the trials after the stored final comparison, and that of its winner, which they have to beat."""
    judged = (final_trials or 0) if verdict else 0
    return [record for record in trials if record.number >= judged or record.number == _winner_number(verdict)]


def _winner_number(verdict: Verdict | None) -> int | None:
    return verdict.winner.number if verdict and verdict.winner else None


def stored_result(name: str, runs: Path, storage: str | None = None) -> SearchResult:
    """Read the result of the study ``name``, whose folder is in ``runs``.

    Raises:
        StudyError: the study does not exist, or cannot be read.
    """
    folder = runs / folder_name(name)
    study = TuningStudy.open(name, storage or sqlite_url(real_path(folder)), create=False)
    return result_of(study, folder)


def verdict_of_trials(trials: Sequence[TrialRecord], noise_floor: float) -> Verdict | None:
    """Return the verdict on the fastest trial by its own measurement, for when no time was left to measure it again.

    It is the best of many, with the luck of one process: its interval accounts for selecting it from all complete
    trials, though from ``MAX_SHORTLISTED`` at most (benchmarks/results/final-luck.md shows the effect for 40 trials).
    """
    if not trials:
        return None
    complete = incumbent_first(trials)
    best = [(record, record.outcome.speedup) for record in complete[:1] if record.outcome and record.outcome.speedup]
    candidates = min(len(complete), MAX_SHORTLISTED)
    plans = [
        FinalPlan(record.number, record.judged_plan, (speedup,), pooled([speedup], candidates=candidates))
        for record, speedup in best
    ]
    return decide(plans, noise_floor)


def verdict_of(comparison: FinalComparison, trials: Sequence[TrialRecord]) -> Verdict:
    plans = {str(record.number): record.judged_plan for record in trials}
    finalists = [
        FinalPlan(
            int(row.name), plans[row.name], comparison.speedups[row.name], row.speedup, comparison.dies_of(row.name)
        )
        for row in comparison.rows
        if row.name in plans and row.speedup and row.bit_identical is not False
    ]
    return decide(finalists, comparison.noise_floor)
