"""Records of trials: plan, outcome and origin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from optuna.trial import FrozenTrial

from sktune.core.outcome import Outcome
from sktune.core.plan import Option, Plan
from sktune.core.verification import Verification
from sktune.learning.attributes import OUTCOME, PREFIX, PROBE, REPEAT
from sktune.study.facts import stored_value

PROPOSAL = PREFIX + "proposal"
"""Attribute of a trial that sktune has proposed."""


@dataclass(frozen=True, slots=True)
class StoredProposal:
    """How a trial was proposed.

    Attributes:
        plan: to try.
        origin: name of the starting point, or of the sampler.
        host, pid: of the process that runs it.
        claim: token of its search.
        attempts: number of processes that have begun it.
    """

    plan: Plan
    origin: str
    host: str | None = None
    pid: int | None = None
    claim: str = ""
    attempts: int = 0


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


def record_of(study: str, trial: FrozenTrial, verifications: Mapping[str, Verification] | None = None) -> TrialRecord:
    """Return the record of a trial of ``study`` that was proposed: here alone its stored values are checked.

    ``verifications``, by trial number, were made after their trials had ended.

    Raises:
        StudyError: a value is damaged; the message says which.
    """
    attributes, what = trial.user_attrs, f"study {study!r}: trial {trial.number}: {{!r}}".format
    proposal = stored_value(StoredProposal, attributes[PROPOSAL], what(PROPOSAL))
    if PROBE in attributes:
        stored_value(Plan, attributes[PROBE], what(PROBE))
    outcome = stored_value(Outcome, attributes[OUTCOME], what(OUTCOME)) if attributes.get(OUTCOME) else None
    if outcome and (later := (verifications or {}).get(str(trial.number))):
        outcome = outcome.after(later)
    params: dict[str, Option] = stored_value(dict[str, Option], trial.params, what("parameters"))
    stored_value(tuple[float, ...], trial.values or (), what("values"))
    stored_value(dict[int, float], trial.intermediate_values, what("intermediate values"))
    return TrialRecord(
        trial.number,
        proposal.plan,
        proposal.origin,
        outcome,
        params,
        PROBE in attributes,
        REPEAT in attributes,
        trial.datetime_start,
        trial.datetime_complete,
        ":".join(str(part) for part in (proposal.host, proposal.pid) if part is not None),
        proposal.claim,
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


def feasible(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the first trial of each plan that has worked whenever it was tried, fast or slow."""
    tried = [record for record in records if record.outcome and not record.is_probe]
    failed = {record.plan for record in tried if record.outcome and not record.outcome.is_feasible}
    first = {record.plan: record for record in reversed(tried) if not record.is_repeat}
    return [record for plan, record in first.items() if plan not in failed]


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
