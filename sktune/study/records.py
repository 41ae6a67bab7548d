"""Trials as a study knows them: plan, outcome, and who proposed it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from sktune.core.outcome import Outcome
from sktune.core.plan import Option, Plan
from sktune.learning.history import OUTCOME, PREFIX, PROBE


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial, as the study knows it.

    Attributes:
        number: from 0, in the order of proposal.
        plan: what was proposed.
        origin: name of the starting point, or of the sampler.
        outcome: None while it runs.
        values: the parameters.
        is_probe: whether it ran another plan than its parameters', to learn from it; it is never the incumbent.
    """

    number: int
    plan: Plan
    origin: str
    outcome: Outcome | None
    values: Mapping[str, Option]
    is_probe: bool = False

    @property
    def judged_plan(self) -> Plan:
        """The plan with what was added to rescue it."""
        plan = self.plan
        for name, value in (self.outcome.added if self.outcome else {}).items():
            plan = plan.with_option(name, value)
        return plan


def record_of(trial: FrozenTrial) -> TrialRecord:
    """Return a trial that was proposed as the study knows it."""
    attributes = trial.user_attrs
    proposal, stored = attributes[PREFIX + "proposal"], attributes.get(OUTCOME)
    return TrialRecord(
        trial.number,
        Plan.from_dict(proposal["plan"]),
        proposal["origin"],
        Outcome.from_dict(stored) if stored else None,
        trial.params,
        PROBE in attributes,
    )


def incumbent_first(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the complete trials, fastest first."""
    complete = [r for r in records if r.outcome and r.outcome.is_complete and not r.is_probe]
    distinct = {record.plan: record for record in reversed(complete)}

    def ratio(record: TrialRecord) -> float:
        assert record.outcome is not None
        return record.outcome.speedup.ratio if record.outcome.speedup else 0.0

    return sorted(distinct.values(), key=ratio, reverse=True)


def without_twins(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return ``records`` with one, the simplest, of those that become the same kernels and share one measurement."""
    found: dict[int, TrialRecord] = {}
    for record in records:
        assert record.outcome is not None
        measured = record.number if record.outcome.same_as is None else record.outcome.same_as
        known = found.get(measured, record)
        found[measured] = min(known, record, key=lambda one: one.plan.complexity)
    return list(found.values())
