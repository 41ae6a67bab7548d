"""The end of a search: the best plans are put in order, verified, and compared in fresh processes."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sktune.backends import FRESH_PROCESS
from sktune.core.errors import BackendError, OutOfTimeError
from sktune.core.events import Listener
from sktune.core.events.search import FinalStage, FinalStarted, PlanVerified
from sktune.core.outcome import FinalRow
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace
from sktune.core.verification import Verification
from sktune.measure.final_comparison import FinalComparison, floor_looks
from sktune.measure.winner import MOST_FINALISTS, MOST_QUALIFIERS
from sktune.runners.program.runner import RecipeSupervisor
from sktune.runners.worker.client import Supervisor
from sktune.study.study import TuningStudy, without_twins
from sktune.targets import TargetSpec
from sktune.tuning.request import Request
from sktune.tuning.time_budget import TimeBudget

logger = logging.getLogger(__name__)

PROCESSES = {"inductor": 3, "npu": 3}
"""Fresh processes of the final comparison. On an NPU each has to compile everything; a simulation needs one."""
MOST_RECIPE_FINALISTS = 3
"""Each is a run of the user's program in each of the processes."""
VERIFY_SHARE = 0.3
"""Of what is left of a time budget after the trials, what verification may take."""

AnySupervisor = Supervisor | RecipeSupervisor
NamedPlan = tuple[str, Plan]
"""A plan by the number of its trial."""


def processes_of(backend: str) -> int:
    """Return in how many fresh processes the plans of ``backend`` are compared."""
    return PROCESSES.get(backend, 1)


class Finals:
    """The final comparison of one search.

    Args:
        request, spec: what is searched.
        study: where plans come from and results go to.
        budget: what time there is.
        emit: called with each event.
        stop_if_asked: raises where the user wants to stop.
    """

    def __init__(
        self,
        request: Request,
        spec: TargetSpec,
        study: TuningStudy,
        budget: TimeBudget,
        emit: Listener,
        stop_if_asked: Callable[[], None],
    ) -> None:
        self._request, self._spec, self._study = request, spec, study
        self._budget, self._emit, self._stop_if_asked = budget, emit, stop_if_asked

    @property
    def _verify_steps(self) -> int:
        return self._request.verify_steps

    def run(self, supervisor: AnySupervisor, space: SearchSpace, finalists: int, *, has_trials: bool) -> None:
        """Verify and compare the best plans; ``finalists`` is how many there is time for."""
        if not finalists or not has_trials:
            raise OutOfTimeError
        is_recipe = self._spec.kind == "recipe"
        most_finalists = MOST_RECIPE_FINALISTS if is_recipe else MOST_FINALISTS
        is_short = finalists < most_finalists
        references = not is_short and not is_recipe
        # Graphs on an NPU keep their memory: as few as possible in one process. A recipe's program holds one plan.
        is_costly = self._spec.backend in FRESH_PROCESS or is_recipe
        candidates = without_twins(self._study.best_first(space))
        most = finalists if is_short or is_costly else MOST_QUALIFIERS
        numbers = [record.number for record in candidates[:most]]
        self._emit(FinalStarted(simulated=self._spec.backend == "sim", qualifiers=numbers,
                                references=references))  # fmt: skip
        began = time.perf_counter()
        plans = [(str(record.number), record.judged_plan) for record in candidates]

        def report_stage(stage: str) -> None:
            self._emit(FinalStage(stage=stage))

        if len(numbers) > MOST_FINALISTS:
            plans = self._qualified(supervisor, plans[:most], report_stage) + plans[most:]
        plans = self._verified(supervisor, plans, min(finalists, most_finalists), report_stage)
        final = self._compared(supervisor, plans, report_stage, references=references)
        self._study.remember(
            final=final.to_dict(),
            uncompared=False,
            final_seconds=time.perf_counter() - began,
            final_trials=self._study.finished(),
        )

    def _qualified(
        self, supervisor: AnySupervisor, plans: Sequence[NamedPlan], report_stage: Callable[[str], None]
    ) -> list[NamedPlan]:
        """Return the plans, the fastest first; in their present order where measuring all again fails."""
        try:
            names = supervisor.qualify(plans, report_stage)
        except BackendError as failure:
            logger.warning("%s; those that the trials so far speak for are compared", failure)
            return list(plans)
        return sorted(plans, key=lambda named: names.index(named[0]))

    def _verified(
        self,
        supervisor: AnySupervisor,
        plans: Sequence[NamedPlan],
        most: int,
        report_stage: Callable[[str], None],
    ) -> list[NamedPlan]:
        """Return the first ``most`` of ``plans`` that pass verification; where one does not, the next moves up.

        What was compared is stored: a plan that is found to differ is no plan of the study's any more, and one that
        holds a region that differed is not tried.
        """
        passed: list[NamedPlan] = []
        left = list(plans)
        while left and len(passed) < most:
            self._stop_if_asked()
            batch, left = left[: most - len(passed)], left[most - len(passed) :]
            known = self._study.verifications()
            unknown = [named for named in batch if not self._is_verified(known.get(named[0]))]
            seconds = None
            if not math.isinf(self._budget.remaining_s):
                seconds = max(1.0, VERIFY_SHARE * self._budget.remaining_s)
            found = supervisor.verify(
                unknown, report_stage, steps=self._verify_steps, seconds=seconds,
                banned=self._study.banned_regions(),
            )  # fmt: skip
            self._study.verified(found)
            for name, own in found.items():
                self._emit(PlanVerified(trial=int(name), identical=own.is_identical,
                                        **own.summary()))  # fmt: skip
            known = self._study.verifications()
            passed += [named for named in batch if named[0] not in known or known[named[0]].is_identical]
            if self._budget.remaining_s <= 0:
                break
        return passed

    def _is_verified(self, verification: Verification | None) -> bool:
        return verification is not None and verification.steps >= self._verify_steps

    def _compared(
        self,
        supervisor: AnySupervisor,
        plans: Sequence[NamedPlan],
        report_stage: Callable[[str], None],
        *,
        references: bool,
    ) -> FinalComparison:
        """Compare the finalists in one fresh process after the other, as many as there is time for."""
        processes: list[tuple[list[FinalRow], str]] = []
        longest_s = 0.0
        for number in range(1, processes_of(self._spec.backend) + 1):
            self._stop_if_asked()
            if processes and self._budget.remaining_s < longest_s:
                break
            began = time.perf_counter()
            try:
                # What sktune does not tune is shown for comparison, and needs no interval over processes.
                found = supervisor.final(plans, report_stage, number=number, references=references and number == 1)
            except OutOfTimeError:
                if not processes:
                    raise
                break
            found = [self._of_verified_code(row) for row in found[0]], found[1]
            processes.append(found)
            longest_s = max(longest_s, time.perf_counter() - began)
            broken = {row.name for row in found[0] if row.speedup is None}
            plans = [(name, plan) for name, plan in plans if name not in broken]
            if broken and not plans:
                break
        return FinalComparison.of(processes, floor_looks(self._study.facts))

    def _of_verified_code(self, row: FinalRow) -> FinalRow:
        """Return ``row``, as one that differs where its code is not what was verified."""
        verified = self._study.verifications().get(row.name)
        if verified and verified.code_digest and row.code_digest not in ("", verified.code_digest):
            return replace(row, verdict="it compiles to other code than what was verified", bit_identical=False)
        return row
