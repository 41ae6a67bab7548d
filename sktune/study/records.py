"""Records of trials: plan, outcome and origin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from optuna.trial import FrozenTrial

from sktune.core.codec import decoded
from sktune.core.outcome import Outcome
from sktune.core.plan import Option, Plan
from sktune.learning.attributes import OUTCOME, PREFIX, PROBE, REPEAT


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial of a study.

    Attributes:
        number: from 0, in the order of proposal.
        plan: that was proposed.
        origin: name of the starting point, or of the sampler.
        outcome: None while it runs.
        values: the parameters.
        is_probe: whether it ran a plan other than that of its parameters, to learn from; it is never the incumbent.
        is_repeat: whether it measured the plan of an earlier trial again.
        began, ended: by the clock of the machine that ran it, without a time zone.
        worker: host and process that ran it.
        claim: token of the search that ran it; empty in studies of 0.1.0.
    """

    number: int
    plan: Plan
    origin: str
    outcome: Outcome | None
    values: Mapping[str, Option]
    is_probe: bool = False
    is_repeat: bool = False
    began: datetime | None = None
    ended: datetime | None = None
    worker: str = ""
    claim: str = ""

    @property
    def may_win(self) -> bool:
        """Whether it is complete and the first trial of a plan that may be the result."""
        is_complete = self.outcome is not None and self.outcome.is_complete
        return is_complete and not (self.is_probe or self.is_repeat)

    @property
    def judged_plan(self) -> Plan:
        """The plan with the options that were added to rescue it."""
        plan = self.plan
        for name, value in (self.outcome.added if self.outcome else {}).items():
            plan = plan.with_option(name, value)
        return plan


def record_again(trial: FrozenTrial, before: tuple[FrozenTrial, TrialRecord] | None) -> tuple[FrozenTrial, TrialRecord]:
    """Return a trial with its record, which is that of ``before`` if it has not been read again since."""
    return before if before and before[0] is trial else (trial, record_of(trial))


def record_of(trial: FrozenTrial) -> TrialRecord:
    """Return the record of a trial that was proposed."""
    attributes = trial.user_attrs
    proposal, stored = attributes[PREFIX + "proposal"], attributes.get(OUTCOME)
    return TrialRecord(
        trial.number,
        Plan.from_dict(proposal["plan"]),
        proposal["origin"],
        decoded(Outcome, stored) if stored else None,
        trial.params,
        PROBE in attributes,
        REPEAT in attributes,
        trial.datetime_start,
        trial.datetime_complete,
        ":".join(str(proposal[part]) for part in ("host", "pid") if part in proposal),
        proposal.get("claim", ""),
    )


def incumbent_first(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the complete trials, fastest first.

    A plan that was measured again has the figure of all its measurements; one that failed then is left out.
    """
    distinct = {record.plan: record for record in reversed(records) if record.may_win}
    for repeat in (record for record in records if record.is_repeat and record.outcome):
        assert repeat.outcome is not None
        if first := distinct.get(repeat.plan):
            if repeat.outcome.is_feasible:
                distinct[repeat.plan] = _with_speedup_of(first, repeat.outcome)
            else:
                del distinct[repeat.plan]

    def ratio(record: TrialRecord) -> float:
        assert record.outcome is not None
        return record.outcome.speedup.ratio if record.outcome.speedup else 0.0

    return sorted(distinct.values(), key=ratio, reverse=True)


def _with_speedup_of(record: TrialRecord, repeat: Outcome) -> TrialRecord:
    outcome = record.outcome
    if outcome is None or outcome.speedup is None or repeat.speedup is None:
        return record
    return replace(record, outcome=replace(outcome, speedup=outcome.speedup.with_measurement(repeat.speedup)))


def banned_regions(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return the difference of each region that differs from its kernels, by the region's key."""
    verifications = [record.outcome.verification for record in records if record.outcome]
    regions = [region for each in verifications if each for region in each.differing_regions]
    return {region.key: region.difference for region in regions if region.key}


def without_twins(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return ``records`` with only the simplest of those that compile to the same kernels and share a measurement."""
    simplest: dict[int, TrialRecord] = {}
    for record in records:
        assert record.outcome is not None
        measured = record.number if record.outcome.same_as is None else record.outcome.same_as
        twin = simplest.get(measured, record)
        simplest[measured] = min(twin, record, key=lambda record: record.plan.complexity)
    return list(simplest.values())
