"""The end of a search: the best plans are ranked, verified, and compared in fresh processes."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sktune.core.codec import fields_of_value
from sktune.core.errors import BackendError, OutOfTimeError
from sktune.core.events.base import Listener
from sktune.core.events.search import FinalStage, FinalStarted, PlanVerified
from sktune.core.outcome import FinalRow, Stage
from sktune.core.plan import Plan
from sktune.core.plan_file import ARTIFACTS, artifacts_of
from sktune.core.space import SearchSpace
from sktune.core.verification import Verification
from sktune.measure.final_comparison import FinalComparison
from sktune.study.facts import DeliveryRecord
from sktune.study.records import TrialRecord, feasible, without_twins
from sktune.study.result import result_of, verdict_of
from sktune.study.study import TuningStudy
from sktune.tuning.request import Request
from sktune.tuning.scheduler import Fleet
from sktune.tuning.time_budget import TimeBudget
from sktune.worker.jobs import Compare, Deliver, NamedPlan, Report, RunnerTraits, Shortlist, Verify

logger = logging.getLogger(__name__)

MIN_DIES = 3
"""On so many dies finalists are compared, if there are as many: two show little of how much dies differ."""
VERIFY_SHARE = 0.3
"""Share of the time left after the trials that later processes of a comparison leave for verifying the winner."""


class Finals:
    """The final comparison of one search.

    Args:
        request: what is searched.
        study: the source of the plans, and where results are stored.
        fleet, traits: compares the plans, and what its workers can do.
        budget: the time available.
        emit: called with each event.
        stop_if_asked: raises if the user wants to stop.
    """

    def __init__(
        self,
        request: Request,
        study: TuningStudy,
        fleet: Fleet,
        traits: RunnerTraits,
        budget: TimeBudget,
        emit: Listener,
        stop_if_asked: Callable[[], None],
    ) -> None:
        self._request, self._study, self._fleet, self._traits = request, study, fleet, traits
        self._budget, self._emit, self._stop_if_asked = budget, emit, stop_if_asked
        self._verifications: dict[str, Verification | None] = {}  # of this call, by trial
        self._seconds: dict[str, float] = {}
        self._stage, self._since_s = str(Stage.OPEN), 0.0

    @property
    def _processes(self) -> int:
        """Number of processes to compare in; simulated figures are the same on every die."""
        if not self._traits.measures_time:
            return self._traits.final_processes
        return max(self._traits.final_processes, min(MIN_DIES, len(self._fleet)))

    @property
    def _verify_steps(self) -> int:
        return self._request.verify_steps

    def _reporting(self, part: str, left_s: float | None = None) -> Report:
        """Return a report for a part of the final comparison; ``left_s`` is what it and those like it will take."""
        self._enter(Stage.OPEN)

        def report(stage: str) -> None:
            self._enter(stage.partition(",")[0])
            self._emit(FinalStage(part=part, stage=stage, left_s=left_s, worker=self._fleet.asked_die))

        return report

    def _enter(self, stage: str) -> None:
        now_s = time.perf_counter()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now_s - self._since_s
        self._stage, self._since_s = stage, now_s

    def run(self, space: SearchSpace, finalists: int, *, has_trials: bool) -> None:
        """Compare the best plans, and verify the one that wins; ``finalists`` is how many there is time to compare.

        A verification takes as long as many trials, so only the plan that would be recommended gets one. If it fails,
        the next of the plans that were compared is verified; if none of them is left, the next plans are compared.
        The request's own points come first, and each of them is verified as well.
        """
        if not finalists or not has_trials:
            raise OutOfTimeError
        is_short = finalists < self._traits.max_finalists
        references = not is_short and self._traits.has_references
        wanted = {space.plan(point.values) for point in self._request.points}
        asked = [record for record in feasible(self._study.records()) if record.plan in wanted]
        candidates = [record for record in without_twins(self._study.best_first(space)) if record.plan not in wanted]
        most = finalists if is_short else self._traits.max_shortlisted
        numbers = [record.number for record in (*asked, *candidates[:most])]
        self._emit(FinalStarted(simulated=not self._traits.measures_time, qualifiers=numbers, references=references))
        self._since_s = time.perf_counter()
        first, left = (
            [(str(record.number), record.judged_plan) for record in chosen] for chosen in (asked, candidates)
        )
        if len(numbers) > self._traits.max_finalists:
            left = self._shortlisted(left[:most]) + left[most:]
        records, final = self._study.records(), None
        is_rejected = False
        while final is None or (is_rejected and left and self._budget.remaining_s > 0):
            room = max(0, finalists - len(first))
            batch, left = first + left[:room], left[room:]
            try:
                final = self._compared(batch, references=references and final is None)
            except OutOfTimeError:
                if final is None:
                    raise
                break  # that all who would have won were rejected is an answer, too
            for name, plan in first:  # before the winner's: without one of them, another plan may win
                final = final.rejecting(name, problem) if (problem := self._problem(final, name, plan)) else final
            final, is_rejected = self._verified(final, dict(batch), records)
            rejected = {row.name for row in final.rows if row.speedup is None or row.bit_identical is False}
            first = [named for named in first if named[0] not in rejected]
        self._enter(Stage.OPEN)
        self._study.remember(is_complete=False)
        self._study.remember(
            final=final,
            uncompared=False,
            final_seconds=self._seconds,
            final_trials=self._study.finished(),
            gain_left=None,
        )

    def deliver(self, space: SearchSpace, folder: Path) -> None:
        """Write the compiled code of the winner, and of the points that hold, next to the plan file.

        If that fails, the plan comes without it.
        """
        result = result_of(self._study, folder)
        winner = result.winner
        if winner:
            report = self._reporting("writing the winner's code")
            self._study.remember(delivery=self._delivered(winner.number, winner.plan, folder / ARTIFACTS, report))
        if not self._request.points:
            return
        wanted = {space.plan(point.values) for point in self._request.points}
        rows = {row.name: row for row in result.final if row.speedup and row.bit_identical is not False}
        held = [
            record
            for record in result.trials
            if record.plan in wanted and str(record.number) in rows and not (winner and winner.number == record.number)
        ]
        self._study.remember(
            deliveries=tuple(
                self._delivered(
                    record.number,
                    record.judged_plan,
                    folder / artifacts_of(record.number),
                    self._reporting(f"writing the code of trial {record.number}"),
                )
                for record in held
            )
        )

    def _delivered(self, number: int, plan: Plan, folder: Path, report: Report) -> DeliveryRecord:
        stored = DeliveryRecord(number)
        try:
            return replace(stored, delivery=self._fleet.run(Deliver(plan, folder), report))
        except (BackendError, OutOfTimeError) as failure:
            logger.warning("the plan of trial %s comes without its compiled code: %s", number, failure)
            return replace(stored, problem=str(failure) or "the time budget ended first")

    def _shortlisted(self, plans: Sequence[NamedPlan]) -> list[NamedPlan]:
        """Return the plans, the fastest first; in their present order if measuring them again fails."""
        try:
            names = self._fleet.run(Shortlist(plans), self._reporting("choosing the finalists"))
        except BackendError as failure:
            logger.warning("%s; the plans that were best in the trials are compared", failure)
            return list(plans)
        return sorted(plans, key=lambda named: names.index(named[0]))

    def _compared(self, plans: Sequence[NamedPlan], *, references: bool) -> FinalComparison:
        """Compare the finalists in fresh processes, one after the other, as many as there is time for.

        One after the other also where they run on several dies: those of one host share its cores.
        """
        processes: list[tuple[Sequence[FinalRow], str]] = []
        dies: list[str] = []
        longest_s = 0.0
        enough_s = VERIFY_SHARE * self._budget.remaining_s
        for number in range(1, self._processes + 1):
            self._stop_if_asked()
            if processes and self._budget.remaining_s < longest_s + enough_s:
                break
            began = time.perf_counter()
            try:
                # References are shown for comparison only, and need no interval over processes.
                is_followed = number < self._processes and len(self._fleet) == 1
                request = Compare(plans, number, references=references and number == 1, is_followed=is_followed)
                left_s = longest_s * (self._processes + 1 - number) or None
                part = f"comparing, process {number} of {self._processes}"
                compared = self._fleet.run(request, self._reporting(part, left_s))
            except OutOfTimeError:
                if not processes:
                    raise
                break
            processes.append((compared.rows, compared.noise))
            dies += [compared.die] if compared.die and self._traits.measures_time else []
            longest_s = max(longest_s, time.perf_counter() - began)
            broken = {row.name for row in compared.rows if row.speedup is None}
            plans = [(name, plan) for name, plan in plans if name not in broken]
            if broken and not plans:
                break
        return FinalComparison.of(processes, self._study.facts.floor_looks, dies)

    def _verified(
        self, final: FinalComparison, plans: Mapping[str, Plan], records: Sequence[TrialRecord]
    ) -> tuple[FinalComparison, bool]:
        """Verify the plan that wins; while it fails, mark its row and verify the next one.

        Return the comparison, and whether all that would have won were rejected.

        Results are stored: the study drops a plan whose bits differ, and plans with a region whose bits differed are
        not tried.
        """
        is_rejected = False
        while (winner := verdict_of(final, records).winner) is not None:
            name = str(winner.number)
            if not (problem := self._problem(final, name, plans[name])):
                return final, False
            final, is_rejected = final.rejecting(name, problem), True
        return final, is_rejected

    def _problem(self, final: FinalComparison, name: str, plan: Plan) -> str:
        """Return why a plan that was compared cannot be used, once it is verified; empty if it can be."""
        row = next(row for row in final.rows if row.name == name)
        if row.speedup is None or row.bit_identical is False:
            return ""  # the comparison says so itself
        stored = self._study.facts.verifications.get(name)
        if name not in self._verifications:
            is_enough = (
                stored is not None and stored.suffices(self._verify_steps) and not _is_of_other_code(stored, row)
            )
            self._verifications[name] = stored if is_enough else self._verify(name, plan)
        known = self._verifications[name] or stored
        if known and not known.is_identical:
            return str(known)
        return "it compiles to other code than was verified" if known and _is_of_other_code(known, row) else ""

    def _verify(self, name: str, plan: Plan) -> Verification | None:
        self._stop_if_asked()
        left_s = None if math.isinf(self._budget.remaining_s) else max(1.0, self._budget.remaining_s)
        request = Verify(name, plan, self._verify_steps, left_s, self._study.banned_regions())
        try:
            verification = self._fleet.run(request, self._reporting(f"verifying trial {name}"))
        except OutOfTimeError:  # what the trial has compared stands
            return None
        if verification:
            if not verification.is_broken:  # a trial that ran once may run again: only bits that differ count for ever
                self._study.verified({name: verification})
            summary = fields_of_value(verification.summary)
            self._emit(PlanVerified(**summary, trial=int(name), identical=verification.is_identical))
        return verification


def _is_of_other_code(verification: Verification, row: FinalRow) -> bool:
    """Whether a plan that was compared has other code than was verified, as far as both are known."""
    return bool(verification.code_digest) and row.code_digest not in ("", verification.code_digest)
