"""The end of a search: the best plans are put in order, verified, and compared in fresh processes."""

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

VERIFY_SHARE = 0.3
"""Of what is left of a time budget after the trials, what verification may take."""


class Finals:
    """The final comparison of one search.

    Args:
        request: what is searched.
        study: where plans come from and results go to.
        runner, traits: what compares them.
        budget: what time there is.
        emit: called with each event.
        stop_if_asked: raises where the user wants to stop.
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
    ) -> None:
        self._request, self._study, self._runner, self._traits = request, study, runner, traits
        self._budget, self._emit, self._stop_if_asked = budget, emit, stop_if_asked

    @property
    def _verify_steps(self) -> int:
        return self._request.verify_steps

    def run(self, space: SearchSpace, finalists: int, *, has_trials: bool) -> None:
        """Verify and compare the best plans; ``finalists`` is how many there is time for."""
        if not finalists or not has_trials:
            raise OutOfTimeError
        is_short = finalists < self._traits.most_finalists
        references = not is_short and self._traits.has_references
        candidates = without_twins(self._study.best_first(space))
        most = finalists if is_short else self._traits.most_shortlisted
        numbers = [record.number for record in candidates[:most]]
        self._emit(FinalStarted(simulated=not self._traits.measures_time, qualifiers=numbers, references=references))
        began = time.perf_counter()
        plans = [(str(record.number), record.judged_plan) for record in candidates]

        def report_stage(stage: str) -> None:
            self._emit(FinalStage(stage=stage))

        if len(numbers) > self._traits.most_finalists:
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
        """Have the winner's compiled code written where its plan file will be: a plan without it is a plan still."""
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
            stored = replace(stored, problem=str(failure) or "the time budget ended before")
        self._study.remember(delivery=stored)

    def _shortlisted(self, plans: Sequence[NamedPlan], report_stage: Report) -> list[NamedPlan]:
        """Return the plans, the fastest first; in their present order where measuring all again fails."""
        try:
            names = self._runner.shortlist(plans, report_stage)
        except BackendError as failure:
            logger.warning("%s; those that the trials so far speak for are compared", failure)
            return list(plans)
        return sorted(plans, key=lambda named: names.index(named[0]))

    def _verified(self, plans: Sequence[NamedPlan], most: int, report_stage: Report) -> list[NamedPlan]:
        """Return the first ``most`` of ``plans`` that pass verification; where one does not, the next moves up.

        What was compared is stored: a plan that is found to differ is no plan of the study's any more, and one that
        holds a region that differed is not tried.
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
            found = self._runner.verify(request, report_stage)
            self._study.verified(found)
            for name, own in found.items():
                self._emit(PlanVerified(trial=int(name), identical=own.is_identical, **own.summary()))
            known = self._study.facts.verifications
            passed += [named for named in batch if named[0] not in known or known[named[0]].is_identical]
            if self._budget.remaining_s <= 0:
                break
        return passed

    def _is_verified(self, verification: Verification | None) -> bool:
        return verification is not None and verification.steps >= self._verify_steps

    def _compared(self, plans: Sequence[NamedPlan], report_stage: Report, *, references: bool) -> FinalComparison:
        """Compare the finalists in one fresh process after the other, as many as there is time for."""
        processes: list[tuple[list[FinalRow], str]] = []
        longest_s = 0.0
        for number in range(1, self._traits.final_processes + 1):
            self._stop_if_asked()
            if processes and self._budget.remaining_s < longest_s:
                break
            began = time.perf_counter()
            try:
                # What sktune does not tune is shown for comparison, and needs no interval over processes.
                request = CompareRequest(plans, number, references=references and number == 1)
                found = self._runner.compare(request, report_stage)
            except OutOfTimeError:
                if not processes:
                    raise
                break
            rows = [self._of_verified_code(row) for row in found.rows]
            processes.append((rows, found.noise))
            longest_s = max(longest_s, time.perf_counter() - began)
            broken = {row.name for row in rows if row.speedup is None}
            plans = [(name, plan) for name, plan in plans if name not in broken]
            if broken and not plans:
                break
        return FinalComparison.of(processes, self._study.facts.floor_looks)

    def _of_verified_code(self, row: FinalRow) -> FinalRow:
        """Return ``row``, as one that differs where its code is not what was verified."""
        verified = self._study.facts.verifications.get(row.name)
        if verified and verified.code_digest and row.code_digest not in ("", verified.code_digest):
            return replace(row, verdict="it compiles to other code than what was verified", bit_identical=False)
        return row
