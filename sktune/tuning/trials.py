"""One trial: a proposal is judged, retried with a safer option if it hangs, and stored in the study with its value."""

from dataclasses import replace
from typing import Any

from sktune.backends.info import BackendInfo
from sktune.core.errors import OutOfTimeError
from sktune.core.events import Listener
from sktune.core.events.search import TimeBudgetSpent, TrialFinished, TrialStage, TrialStarted
from sktune.core.fused_scopes import SeenTypes
from sktune.core.layout import Layout
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace
from sktune.measure.noise_floor import Threshold
from sktune.reports.plan_names import plan_name, plan_options, spans_and_options
from sktune.runners.base import DurationEstimates, JudgeRequest, Opened, Runner
from sktune.study.records import banned_regions, incumbent_first
from sktune.study.strategy import Strategy
from sktune.study.study import Proposal, TuningStudy
from sktune.tuning.request import Request
from sktune.tuning.time_budget import TimeBudget

PACE_TRIALS = 8
"""Durations are estimated from the last trials: later trials find more of their code in the cache."""


class Trials:
    """Runs the trials of one search; reads the study's records once for each.

    Args:
        request: what is searched.
        backend: compiles the plans.
        study: the source of proposals, and where outcomes are stored.
        budget: the time available.
        emit: called with each event.
        runner, opened: judges the plans, and what it found when it first opened the target.
    """

    def __init__(
        self,
        request: Request,
        backend: BackendInfo,
        study: TuningStudy,
        budget: TimeBudget,
        emit: Listener,
        runner: Runner,
        opened: Opened,
    ) -> None:
        self._request, self._backend, self._study = request, backend, study
        self._budget, self._emit, self._runner, self._opened = budget, emit, runner, opened
        self._records = study.records()

    @property
    def measures_time(self) -> bool:
        """Whether figures are measured rather than simulated."""
        return self._opened.traits.measures_time

    def estimates(self) -> DurationEstimates:
        """Return how long trials and the final comparison take, estimated from this study's records."""
        seconds = [record.outcome.seconds for record in self._records if record.outcome]
        recent = [each for each in seconds if each][-PACE_TRIALS:] or [{"compile": self._opened.seconds["baseline"]}]
        return self._runner.pace(self._opened, recent)

    def has_plan(self) -> bool:
        """Whether a plan has passed."""
        return bool(incumbent_first(self._records))

    def threshold(self) -> Threshold:
        """Return what a plan has to beat at this point."""
        complete = incumbent_first(self._records)  # without probes, which can never win
        bounds = [record.outcome.speedup.bounds[0] for record in complete if record.outcome and record.outcome.speedup]
        floor = self._study.facts.noise_floor if self.measures_time else 0.0
        return Threshold(floor, max(bounds, default=1.0))

    def run(self, space: SearchSpace, strategy: Strategy) -> bool:
        """Run one trial, and return whether it finished within its time."""
        proposal = self._study.ask(space, strategy, self._request.seed)
        number, layout = proposal.number, space.layout
        values = _plan_values(proposal, layout)
        self._emit(TrialStarted(**values, spans=spans_and_options(proposal.plan, layout)))
        outcome = proposal.known
        if outcome is None and proposal.plan.is_baseline:
            outcome = Outcome(Reason.SLOWER, "the plan has no scope: it is the baseline")
        outcome = outcome or self._blocked(proposal.plan) or self._foreseen(proposal.plan, layout)
        if outcome is None:
            self._runner.deadline_s = self._budget.trial_deadline_s(self.estimates(), self.has_plan())
            try:
                outcome = self._try(proposal)
            except OutOfTimeError:
                self._emit(TimeBudgetSpent(trials=self._study.finished(), unfinished=number))
                return False
        name = "; ".join(filter(None, (values["shape"], plan_options(proposal.plan))))
        self._study.tell(proposal, outcome, self._value(outcome), name)
        self._records = self._study.records()
        left = self._request.max_trials - self._study.finished()
        self._emit(TrialFinished(**values, known=proposal.known is not None, probe=proposal.is_probe,
                                 simulated=not self.measures_time, **_event_values(outcome),
                                 expected_left_s=self._budget.expected_left_s(left, self.estimates())))  # fmt: skip
        return True

    def _try(self, proposal: Proposal) -> Outcome:
        """Judge a plan; on a failure that is not the plan's, postpone it to a later search."""
        try:
            self._runner.open()
        except BaseException:  # a full disk, a device that is taken, Ctrl-C: no plan has run yet
            self._study.postpone(proposal)
            raise
        try:
            return self._judge(proposal)
        except (OutOfTimeError, KeyboardInterrupt):
            self._study.postpone(proposal)
            raise

    def _judge(self, proposal: Proposal) -> Outcome:
        plan, number = proposal.plan, proposal.number
        records = [record for record in self._records if record.outcome and record.outcome.fusion_digest]
        twins = {record.outcome.fusion_digest: record for record in reversed(records) if record.outcome}
        # Not for a repeat, which would only be told its own first figure.
        known = {} if proposal.is_repeat else {digest: record.number for digest, record in twins.items()}

        def report_stage(stage: str) -> None:
            self._emit(TrialStage(trial=number, stage=stage))

        banned = banned_regions(self._records)
        request = JudgeRequest(plan, f"trial-{number:04d}.log", known, self.threshold(), banned)
        outcome = self._runner.judge(request, report_stage)
        if rescue := self._backend.rescue(outcome, plan):
            name, value = rescue
            rescued = self._runner.judge(replace(request, plan=plan.with_option(name, value), known={}), report_stage)
            if self._backend.rescue(rescued, plan):
                detail = f"{outcome.detail}; it also hangs with {name}={value}"
                return replace(outcome, detail=detail, added={name: value})
            return replace(rescued, added={name: value})
        twin = twins.get(outcome.fusion_digest) if outcome.same_as is not None else None
        if twin and twin.outcome:
            detail = f"the same SuperKernels as trial {twin.number}"
            # Scope times were observed once, under the twin's own scopes.
            return replace(twin.outcome, detail=detail, same_as=twin.number, seconds=outcome.seconds, scope_times=())
        return outcome

    def _blocked(self, plan: Plan) -> Outcome | None:
        """Return a timeout for a plan with a scope that hung even with the safer option, without running it."""
        labels = {scope.label for scope in plan.scopes}
        for record in self._records:
            outcome = record.outcome
            if outcome and outcome.reason is Reason.TIMEOUT and outcome.added and outcome.blamed in labels:
                detail = f"scope {outcome.blamed} hung in trial {record.number}"
                return Outcome(Reason.TIMEOUT, detail, blamed=outcome.blamed)
        return None

    def _foreseen(self, plan: Plan, layout: Layout) -> Outcome | None:
        """Return the failure of a plan that the compiler is certain to refuse, without compiling it."""
        seen = SeenTypes.of(scope for record in self._records if record.outcome for scope in record.outcome.fused)
        scope = self._backend.foresee(plan, layout, seen)
        if scope is None:
            return None
        detail = f"not compiled: scope {scope.label!r} would be refused: {scope.refusal}"
        return Outcome(Reason.COMPILE_FAILED, detail, blamed=scope.label, stage=Stage.COMPILE)

    def _value(self, outcome: Outcome) -> float | None:
        """Return the decode step latency in ms, corrected for the machine's drift by the paired baseline."""
        if outcome.speedup is None:
            return None
        reference = self._study.facts.baseline_ms
        if reference is None:
            reference = outcome.speedup.baseline_ms
            self._study.remember(baseline_ms=reference)
        return reference / outcome.speedup.ratio


def _plan_values(proposal: Proposal, layout: Layout) -> dict[str, Any]:
    plan = proposal.plan
    return {
        "trial": proposal.number,
        "origin": proposal.origin,
        "scopes": len(plan.scopes),
        "shape": plan_name(plan, layout),
    }


def _event_values(outcome: Outcome) -> dict[str, Any]:
    values = outcome.to_dict()
    speedup = values.pop("speedup") or {}
    return {
        "state": "complete" if outcome.is_complete else "pruned",
        "reason": outcome.reason,
        "detail": outcome.detail,
        "blamed": outcome.blamed,
        "latency_ms": speedup.get("latency_ms"),
        "baseline_ms": speedup.get("baseline_ms"),
        "speedup": speedup.get("ratio"),
        "ci95": speedup.get("ci95"),
        "comparison": outcome.comparison,
        "verified_steps": outcome.verification.steps if outcome.verification else 0,
        "noise": outcome.noise,
        "seconds": values["seconds"],
        "regions": outcome.regions,
        "reused": outcome.reused,
        "log": outcome.log,
    }
