"""A runner whose requests go to any worker of a fleet: for what comes before, between and after the trials."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from sktune.core.delivery import Delivery
from sktune.core.outcome import Outcome
from sktune.core.plan import Plan
from sktune.core.verification import Verification
from sktune.engines.base import Engine
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.tuning.fleet import Fleet
from sktune.worker.jobs import (
    CompareRequest,
    Deliver,
    DurationEstimates,
    JudgeRequest,
    NamedPlan,
    Opened,
    ProcessComparison,
    Report,
    SampleNoiseFloor,
    Shortlist,
    VerifyRequest,
)


class AnyWorker:
    """Passes each request on to a worker, and waits for its answer; a ``Runner``.

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

    def judge(self, request: JudgeRequest, report: Report, /) -> Outcome:
        """See ``Runner.judge``."""
        return self._fleet.ask(request, report)[0]

    def sample_noise_floor(self, before_trial: int, /) -> NoiseFloorSample | None:
        """See ``Runner.sample_noise_floor``."""
        sample, worker = self._fleet.ask(SampleNoiseFloor(before_trial))
        return replace(sample, die=worker.die) if sample and self._fleet.is_shared else sample

    def shortlist(self, plans: Sequence[NamedPlan], report: Report, /) -> list[str]:
        """See ``Runner.shortlist``."""
        return self._fleet.ask(Shortlist(plans), report)[0]

    def verify(self, request: VerifyRequest, report: Report, /) -> Verification | None:
        """See ``Runner.verify``."""
        return self._fleet.ask(request, report)[0]

    def compare(self, request: CompareRequest, report: Report, /) -> ProcessComparison:
        """See ``Runner.compare``; each request goes to one of the dies that have compared least."""
        least = min((self._compared[die] for die in self._fleet.dies), default=0)
        avoid = [die for die, count in self._compared.items() if count > least]
        comparison, worker = self._fleet.ask(request, report, avoid)
        self._compared[worker.die] += 1
        return replace(comparison, die=worker.die) if self._fleet.is_shared else comparison

    def deliver(self, plan: Plan, folder: Path, report: Report, /) -> Delivery | None:
        """See ``Runner.deliver``."""
        return self._fleet.ask(Deliver(plan, folder), report)[0]

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Runner.pace``."""
        return self._engine.pace(opened, trials)
