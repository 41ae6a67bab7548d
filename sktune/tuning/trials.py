"""The trials of a search: their proposals, what is known without running them, and their outcomes with their values."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sktune.backends.info import BackendInfo
from sktune.core.codec import encoded
from sktune.core.events.base import Listener
from sktune.core.events.search import TrialFinished, TrialStarted
from sktune.core.fused_scopes import SeenTypes
from sktune.core.layout import Layout
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Option, Plan
from sktune.core.space import SearchSpace
from sktune.measure.noise_floor import Threshold
from sktune.reports.plan_names import plan_name, plan_options, spans_and_options
from sktune.study.records import banned_regions, incumbent_first
from sktune.study.strategy import Strategy
from sktune.study.study import Proposal, TuningStudy
from sktune.tuning.request import Request
from sktune.tuning.time_budget import TimeBudget
from sktune.worker.jobs import DurationEstimates, Judge, Opened

PACE_TRIALS = 8
"""Durations are estimated from the last trials: later trials find more of their code in the cache."""


class Trials:
    """Proposes and stores the trials of one search; reads the study's records once for each.

    Args:
        request: what is searched.
        backend: compiles the plans.
        study: the source of proposals, and where outcomes are stored.
        budget: the time available.
        emit: called with each event.
        opened: what was found when the target was first opened.
        layout: of the space.
        workers: returns how many trials can run at the same time.
    """

    def __init__(
        self,
        request: Request,
        backend: BackendInfo,
        study: TuningStudy,
        budget: TimeBudget,
        emit: Listener,
        opened: Opened,
        layout: Layout,
        workers: Callable[[], int],
    ) -> None:
        self._request, self._backend, self._study = request, backend, study
        self._budget, self._emit, self._opened = budget, emit, opened
        self._layout, self._workers = layout, workers
        self._records = study.records()

    @property
    def measures_time(self) -> bool:
        """Whether figures are measured rather than simulated."""
        return self._opened.traits.measures_time

    def estimates(self) -> DurationEstimates:
        """Return how long trials and the final comparison take, estimated from this study's records."""
        seconds = [record.outcome.seconds for record in self._records if record.outcome]
        recent = [each for each in seconds if each][-PACE_TRIALS:] or [{"compile": self._opened.seconds["baseline"]}]
        return self._opened.traits.estimate(self._opened, recent)

    def has_plan(self) -> bool:
        """Whether a plan has passed."""
        return bool(incumbent_first(self._records))

    def threshold(self) -> Threshold:
        """Return what a plan has to beat at this point."""
        complete = incumbent_first(self._records)  # without probes, which can never win
        bounds = [record.outcome.speedup.bounds[0] for record in complete if record.outcome and record.outcome.speedup]
        floor = self._study.facts.noise_floor if self.measures_time else 0.0
        return Threshold(floor, max(bounds, default=1.0))

    @property
    def finished(self) -> int:
        """Number of finished trials."""
        return self._study.finished()

    def deadline_s(self) -> float:
        """Return when a trial that begins now must be cut off, on the clock of ``time.monotonic``."""
        return self._budget.trial_deadline_s(self.estimates(), self.has_plan())

    def propose(self, space: SearchSpace, strategy: Strategy) -> Proposal | None:
        """Begin a trial; None if its outcome is known without running it, and stored."""
        proposal = self._study.ask(space, strategy, self._request.seed)
        layout = self._layout
        values = _plan_values(proposal, layout)
        self._emit(TrialStarted(**values, spans=spans_and_options(proposal.plan, layout)))
        outcome = proposal.known
        if outcome is None and proposal.plan.is_baseline:
            outcome = Outcome(Reason.SLOWER, "the plan has no scope: it is the baseline")
        outcome = outcome or self._blocked(proposal.plan) or self._foreseen(proposal.plan, layout)
        if outcome is None:
            return proposal
        self.end(proposal, outcome)
        return None

    def request(self, proposal: Proposal) -> Judge:
        """Return what a runner needs to judge a proposal at this moment."""
        records = [record for record in self._records if record.outcome and record.outcome.fusion_digest]
        twins = {record.outcome.fusion_digest: record for record in reversed(records) if record.outcome}
        # Not for a repeat, which would only be told its own first figure.
        known = {} if proposal.is_repeat else {digest: record.number for digest, record in twins.items()}
        log = f"trial-{proposal.number:04d}.log"
        return Judge(proposal.plan, log, known, self.threshold(), banned_regions(self._records))

    def rescue(self, outcome: Outcome, plan: Plan) -> tuple[str, Option] | None:
        """Return an option that may help a plan that failed."""
        return self._backend.rescue(outcome, plan)

    def after_rescue(self, outcome: Outcome, rescued: Outcome, plan: Plan) -> Outcome:
        """Return the outcome of a plan that failed with ``outcome``, and had ``rescued`` with a safer option."""
        rescue = self._backend.rescue(outcome, plan)
        assert rescue is not None
        name, value = rescue
        if self._backend.rescue(rescued, plan):
            detail = f"{outcome.detail}; it also hangs with {name}={value}"
            return replace(outcome, detail=detail, added={name: value})
        return replace(rescued, added={name: value})

    def end(self, proposal: Proposal, outcome: Outcome) -> None:
        """Store the outcome of a trial, with the figures of its twin if it was compiled to the same kernels."""
        outcome = self._with_figures(outcome)
        values = _plan_values(proposal, self._layout)
        name = "; ".join(filter(None, (values["shape"], plan_options(proposal.plan))))
        self._study.tell(proposal, outcome, self._value(outcome), name)
        self._records = self._study.records()
        left = (self._request.max_trials - self.finished) / max(1, self._workers())
        self._emit(TrialFinished(**values, known=proposal.known is not None, probe=proposal.is_probe,
                                 simulated=not self.measures_time, **_event_values(outcome),
                                 expected_left_s=self._budget.expected_left_s(left, self.estimates())))  # fmt: skip

    def postpone(self, proposal: Proposal) -> None:
        """Leave a trial to a later search."""
        self._study.postpone(proposal)

    def _with_figures(self, outcome: Outcome) -> Outcome:
        twins = (record for record in self._records if record.number == outcome.same_as)
        twin = next(twins, None) if outcome.speedup is None else None
        if twin is None or twin.outcome is None or outcome.added:
            return outcome
        detail = f"the same SuperKernels as trial {twin.number}"
        # Scope times were observed once, under the twin's own scopes.
        return replace(twin.outcome, detail=detail, same_as=twin.number, seconds=outcome.seconds, scope_times=())

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
    values = encoded(outcome)
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
