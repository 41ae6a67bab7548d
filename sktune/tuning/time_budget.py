"""Time budgets: whether a search may start another trial and still end in time with a verified answer.

Estimates come from the study itself: how long opening the model and its trials took. Before each trial the time of the
final comparison is set aside; if there is not enough, fewer plans are compared.
"""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from sktune.worker.jobs import DurationEstimates

CLOSING_S = 2.0
"""For storing results, reports, and ending the worker."""
MARGIN = 2
"""How many times longer than expected a plan in the final comparison may take if time is short."""
MAX_SHARE = 1 / 3
"""Largest share of the budget that is set aside for the final comparison."""


def process_began_s() -> float:
    """Return when this process began, on the clock of ``time.monotonic`` (starttime of proc_pid_stat(5))."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def _least_final_s(estimates: DurationEstimates) -> float:
    """Return the least seconds that a final comparison needs: one plan and the baseline."""
    return estimates.opening_s + MARGIN * estimates.finalist_s


class TimeBudget:
    """The time of one call.

    Args:
        seconds: in total; infinite without a budget.
        began_s: when the call began, on ``clock``.
        clock: monotonic time in seconds.
    """

    def __init__(self, seconds: float, began_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._began_s, self._clock = seconds, began_s, clock

    @property
    def deadline_s(self) -> float:
        """When everything except reports must be done, on the clock."""
        return self._began_s + self.seconds - CLOSING_S

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline_s - self._clock()

    def allows_trial(self, estimates: DurationEstimates, has_plan: bool) -> bool:
        """Whether another trial can end before the time that is set aside for the final comparison.

        Until a plan has passed there is nothing to compare, and trials may take all the time.
        """
        set_aside_s = max(_least_final_s(estimates), min(estimates.final_s, MAX_SHARE * self.seconds))
        return self.remaining_s >= set_aside_s * has_plan + estimates.trial_s

    def trial_deadline_s(self, estimates: DurationEstimates, has_plan: bool) -> float:
        """When a trial must be cut off, so that the best plan can still be compared."""
        return self.deadline_s - _least_final_s(estimates) * has_plan

    def finalists(self, estimates: DurationEstimates) -> int:
        """How many plans there is time to compare."""
        if self.remaining_s >= estimates.final_s:
            return estimates.max_finalists
        left_s = self.remaining_s - estimates.opening_s
        if left_s < estimates.finalist_s:
            return 0
        return max(1, min(estimates.max_finalists, int(left_s / (MARGIN * estimates.finalist_s))))

    def expected_left_s(self, trials: float, estimates: DurationEstimates) -> float | None:
        """Return how long ``trials`` more trials and the final comparison will take; None if neither is limited."""
        left_s = min(trials * estimates.trial_s + estimates.final_s, self.remaining_s)
        return None if math.isinf(left_s) else left_s
