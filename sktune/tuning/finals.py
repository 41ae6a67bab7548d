"""The end of a search: the best plans are ranked, verified, and compared in fresh processes."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sktune.core.errors import BackendError, OutOfTimeError
from sktune.core.events import Listener
from sktune.core.events.search import FinalStage, FinalStarted, PlanVerified
from sktune.core.outcome import FinalRow
from sktune.core.plan_file import ARTIFACTS
from sktune.core.space import SearchSpace
from sktune.core.verification import Verification
from sktune.measure.final_comparison import FinalComparison
from sktune.runners.base import CompareRequest, NamedPlan, Report, Runner, RunnerTraits, VerifyRequest
from sktune.study.facts import DeliveryRecord
from sktune.study.records import without_twins
from sktune.study.result import result_of
from sktune.study.study import TuningStudy
from sktune.tuning.request import Request
from sktune.tuning.time_budget import TimeBudget

logger = logging.getLogger(__name__)

MIN_DIES = 3
"""On so many dies finalists are compared, if there are as many: two show little of how much dies differ."""
VERIFY_SHARE = 0.3
"""Share of the time left after the trials that a batch of verifications may take."""


class Finals:
    """The final comparison of one search.

    Args:
        request: what is searched.
        study: the source of the plans, and where results are stored.
        runner, traits: compares the plans, and what it can do.
        budget: the time available.
        emit: called with each event.
        stop_if_asked: raises if the user wants to stop.
        workers: returns the number of workers, each with a die, over which ``runner`` spreads comparisons.
        die: returns the one that runs the present stage, if there can be several.
    """

    def __init__(
        self,
        request: Request,
        study: TuningStudy,
        runner: Runner,
        traits: RunnerTraits,
        budget: TimeBudget,
        emit: Listener,
        stop_if_asked: Callable[[], None],
        workers: Callable[[], int] = lambda: 1,
        die: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._request, self._study, self._runner, self._traits = request, study, runner, traits
        self._budget, self._emit, self._stop_if_asked = budget, emit, stop_if_asked
        self._workers, self._die = workers, die

    @property
    def _processes(self) -> int:
        """Number of processes to compare in; simulated figures are the same on every die."""
        if not self._traits.measures_time:
            return self._traits.final_processes
        return max(self._traits.final_processes, min(MIN_DIES, self._workers()))

    @property
    def _verify_steps(self) -> int:
        return self._request.verify_steps

    def run(self, space: SearchSpace, finalists: int, *, has_trials: bool) -> None:
        """Verify and compare the best plans; ``finalists`` is how many there is time to compare."""
        if not finalists or not has_trials:
            raise OutOfTimeError
        is_short = finalists < self._traits.max_finalists
        references = not is_short and self._traits.has_references
        candidates = without_twins(self._study.best_first(space))
        most = finalists if is_short else self._traits.max_shortlisted
        numbers = [record.number for record in candidates[:most]]
        self._emit(FinalStarted(simulated=not self._traits.measures_time, qualifiers=numbers, references=references))
        began = time.perf_counter()
        plans = [(str(record.number), record.judged_plan) for record in candidates]

        def report_stage(stage: str) -> None:
            self._emit(FinalStage(stage=stage, worker=self._die()))

        if len(numbers) > self._traits.max_finalists:
            plans = self._shortlisted(plans[:most], report_stage) + plans[most:]
        plans = self._verified(plans, finalists, report_stage)
        final = self._compared(plans, report_stage, references=references)
        self._study.remember(
            final=final,
            uncompared=False,
            final_seconds=time.perf_counter() - began,
            final_trials=self._study.finished(),
        )

    def deliver(self, folder: Path) -> None:
        """Write the winner's compiled code next to its plan file; if that fails, the plan comes without it."""
        winner = result_of(self._study, folder).winner
        if winner is None:
            return
        stored = DeliveryRecord(winner.number)
        try:
            self._emit(FinalStage(stage="deliver"))
            delivery = self._runner.deliver(winner.plan, folder / ARTIFACTS, lambda stage: None)
            stored = replace(stored, delivery=delivery)
        except (BackendError, OutOfTimeError) as failure:
            logger.warning("the winner comes without its compiled code: %s", failure)
            stored = replace(stored, problem=str(failure) or "the time budget ended first")
        self._study.remember(delivery=stored)

    def _shortlisted(self, plans: Sequence[NamedPlan], report_stage: Report) -> list[NamedPlan]:
        """Return the plans, the fastest first; in their present order if measuring them again fails."""
        try:
            names = self._runner.shortlist(plans, report_stage)
        except BackendError as failure:
            logger.warning("%s; the plans that were best in the trials are compared", failure)
            return list(plans)
        return sorted(plans, key=lambda named: names.index(named[0]))

    def _verified(self, plans: Sequence[NamedPlan], most: int, report_stage: Report) -> list[NamedPlan]:
        """Return the first ``most`` of ``plans`` that pass verification; where one fails, the next moves up.

        Results are stored: the study drops a plan whose bits differ, and plans with a region whose bits differed are
        not tried.
        """
        passed: list[NamedPlan] = []
        left = list(plans)
        while left and len(passed) < most:
            self._stop_if_asked()
            batch, left = left[: most - len(passed)], left[most - len(passed) :]
            known = self._study.facts.verifications
            unknown = [named for named in batch if not self._is_verified(known.get(named[0]))]
            seconds = None
            if not math.isinf(self._budget.remaining_s):
                seconds = max(1.0, VERIFY_SHARE * self._budget.remaining_s)
            request = VerifyRequest(unknown, self._verify_steps, seconds, self._study.banned_regions())
            verifications = self._runner.verify(request, report_stage)
            self._study.verified(verifications)
            for name, verification in verifications.items():
                summary = verification.summary()
                self._emit(PlanVerified(trial=int(name), identical=verification.is_identical, **summary))
            known = self._study.facts.verifications
            passed += [named for named in batch if named[0] not in known or known[named[0]].is_identical]
            if self._budget.remaining_s <= 0:
                break
        return passed

    def _is_verified(self, verification: Verification | None) -> bool:
        return verification is not None and verification.steps >= self._verify_steps

    def _compared(self, plans: Sequence[NamedPlan], report_stage: Report, *, references: bool) -> FinalComparison:
        """Compare the finalists in fresh processes, one after the other, as many as there is time for.

        One after the other also where they run on several dies: those of one host share its cores.
        """
        processes: list[tuple[list[FinalRow], str]] = []
        dies: list[str] = []
        longest_s = 0.0
        for number in range(1, self._processes + 1):
            self._stop_if_asked()
            if processes and self._budget.remaining_s < longest_s:
                break
            began = time.perf_counter()
            try:
                # References are shown for comparison only, and need no interval over processes.
                request = CompareRequest(plans, number, references=references and number == 1)
                compared = self._runner.compare(request, report_stage)
            except OutOfTimeError:
                if not processes:
                    raise
                break
            rows = [self._of_verified_code(row) for row in compared.rows]
            processes.append((rows, compared.noise))
            dies += [compared.die] if compared.die and self._traits.measures_time else []
            longest_s = max(longest_s, time.perf_counter() - began)
            broken = {row.name for row in rows if row.speedup is None}
            plans = [(name, plan) for name, plan in plans if name not in broken]
            if broken and not plans:
                break
        return FinalComparison.of(processes, self._study.facts.floor_looks, dies)

    def _of_verified_code(self, row: FinalRow) -> FinalRow:
        """Return ``row``, marked as different if its code is not the code that was verified."""
        verified = self._study.facts.verifications.get(row.name)
        if verified and verified.code_digest and row.code_digest not in ("", verified.code_digest):
            return replace(row, verdict="it compiles to other code than was verified", bit_identical=False)
        return row
