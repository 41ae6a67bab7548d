"""A runner whose jobs go to any worker of a fleet: for what comes before, between and after the trials."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from sktune.engines.base import Engine
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.tuning.fleet import Fleet
from sktune.worker.jobs import Compare, DurationEstimates, Job, Opened, ProcessComparison, Report, silent

T = TypeVar("T")


class AnyWorker:
    """Passes each job on to a worker, and waits for its answer; a ``Runner``.

    Args:
        engine: ends the workers.
        fleet: chooses one of them.
    """

    def __init__(self, engine: Engine, fleet: Fleet) -> None:
        self._engine, self._fleet = engine, fleet
        self._compared: Counter[str] = Counter()

    @property
    def deadline_s(self) -> float:
        """See ``Runner``."""
        return self._fleet.deadline_s

    @deadline_s.setter
    def deadline_s(self, deadline_s: float) -> None:
        self._fleet.deadline_s = deadline_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: the engine ends its workers."""

    def open(self) -> Opened:
        """See ``Runner.open``."""
        return self._fleet.open()

    def run(self, job: Job[T], report: Report = silent, /) -> T:
        """See ``Runner.run``; comparisons go to one of the dies that have compared least."""
        least = min((self._compared[die] for die in self._fleet.dies), default=0)
        avoid = [die for die, count in self._compared.items() if count > least] if isinstance(job, Compare) else ()
        answer, worker = self._fleet.ask(job, report, avoid)
        self._compared[worker.die] += isinstance(job, Compare)
        if self._fleet.is_shared and isinstance(answer, ProcessComparison | NoiseFloorSample):
            answer = replace(answer, die=worker.die)
        return answer

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Runner.pace``."""
        return self._engine.pace(opened, trials)
