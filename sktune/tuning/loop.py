"""The search: asks for plans, has them judged, stores what comes back, and compares the best at the end."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from sktune.backends import FRESH_PROCESS
from sktune.backends.fingerprint import fingerprint
from sktune.backends.options import SUPERKERNEL_BACKENDS
from sktune.core.errors import BackendError, BadInputError, InterruptedSearchError, OutOfTimeError
from sktune.core.layout import Layout
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Plan
from sktune.core.plan_file import ARTIFACTS
from sktune.core.space import SearchSpace, SpaceSpec, StartingPoint
from sktune.measure.final_comparison import floor_looks, floor_of
from sktune.measure.noise_floor import Bar, drift
from sktune.measure.winner import MOST_FINALISTS
from sktune.reports import study as report
from sktune.runners.base import Opened
from sktune.runners.program.runner import RecipeSupervisor
from sktune.runners.worker.client import Supervisor
from sktune.samplers import BEGINS_ALONE, sampler_factory
from sktune.study.claims import locked
from sktune.study.result import ProxyFindings, SearchResult, result_of
from sktune.study.study import Proposal, TuningStudy, folder_name, incumbent_first, sqlite_url
from sktune.targets import TargetSpec
from sktune.targets.recipe import read_recipe
from sktune.tuning import profile_hints as profile_prior
from sktune.tuning.finals import MOST_RECIPE_FINALISTS, AnySupervisor, Finals, processes_of
from sktune.tuning.interrupt import Stop, stoppable
from sktune.tuning.prepare import bind_space, check_space_options, space_spec
from sktune.tuning.request import Request
from sktune.tuning.time_budget import Pace, TimeBudget

logger = logging.getLogger(__name__)

TRIALS_PER_FLOOR_LOOK = 10
"""A look takes about two seconds."""

PACE_TRIALS = 8
"""The pace is that of the last trials: later ones find more of what they compile in the cache."""


SETTLED_GAIN = 0.005
"""Share of the baseline's latency: a search that is expected to find less than this beyond its incumbent is settled."""

Event = dict[str, Any]
Listener = Callable[[Event], None]


def run(
    request: Request,
    listener: Listener = lambda event: None,
    began_s: float | None = None,
    proxy: ProxyFindings | None = None,
) -> SearchResult:
    """Search until the study holds ``request.trials`` trials or the time is spent, and return what it recommends.

    Args:
        request: what to search.
        listener: called with each event, a dictionary with the key ``event`` (see docs/reference/events.md).
        began_s: when the time budget began, on the clock of ``time.monotonic``; None for now.
        proxy: of a search on fewer layers, whose plans are tried, and no other; None to search.

    Raises:
        SktuneError: bad input, a model that cannot be tuned, or Ctrl-C; what was found is stored.
    """
    budget = TimeBudget(request.time_budget_s or math.inf, time.monotonic() if began_s is None else began_s)
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    check_space_options(wanted)
    made_with = fingerprint(spec, wanted)
    if request.profile:
        profile_prior.check(request.profile, spec.backend)
    name = request.study or spec.study_name
    folder = request.runs / folder_name(name)
    sampler = sampler_factory(request.strategy)
    with locked(folder), _supervisor(request, spec, wanted, folder) as supervisor:
        if not supervisor.has_run:
            supervisor.start()  # its imports take as long as making a database
        url = request.storage or sqlite_url(folder.resolve())
        study = TuningStudy.open(name, url, create=True, is_ours_alone=request.storage is None)
        with study.claimed(made_with, spec.home, join=request.join, take_over=request.take_over):
            search = _Search(request, spec, wanted, study, folder, made_with, listener, budget, proxy)
            is_complete = search.has_ended() or study.facts.get("exhausted", False)
            if not is_complete or study.facts.get("final_trials") != study.finished():
                with stoppable() as stop:
                    search.run(supervisor, sampler, stop)
        result = result_of(study, folder)
        report.write(result, folder)
        listener({"event": "study_finished", **result.summary()})
        return result


def _supervisor(request: Request, spec: TargetSpec, space: SpaceSpec, folder: Path) -> AnySupervisor:
    cache = (request.runs / "cache").resolve()
    if spec.kind == "recipe":
        return RecipeSupervisor(read_recipe(Path(spec.source)), space, folder, cache)
    return Supervisor(spec, space, folder, cache, request.compile_timeout_s)


class _Search:
    """One call of ``run`` on an open study."""

    def __init__(
        self,
        request: Request,
        spec: TargetSpec,
        space_spec: SpaceSpec,
        study: TuningStudy,
        folder: Path,
        made_with: Mapping[str, str],
        listener: Listener,
        budget: TimeBudget,
        proxy: ProxyFindings | None,
    ) -> None:
        self._request, self._spec, self._space_spec = request, spec, space_spec
        self._study, self._folder, self._made_with, self._emit = study, folder, made_with, listener
        self._budget, self._proxy = budget, proxy

    def has_ended(self) -> bool:
        """Whether no trial is missing."""
        if self._proxy is None:
            return self._study.finished() >= self._request.most_trials
        return bool(self._study.facts.get("proxy") == self._proxy.to_dict())

    def run(self, supervisor: AnySupervisor, sampler: Any, stop: Stop) -> None:
        """Run the trials that are missing, then the final comparison, as far as the time budget lasts."""
        began = time.perf_counter()
        supervisor.deadline_s = self._budget.deadline_s
        try:
            self._search(supervisor, sampler, stop)
        except OutOfTimeError as spent:
            if not self._study.finished():
                raise BadInputError(
                    f"--time-budget: {self._budget.seconds:g} s ended before a plan was tried; give more time"
                ) from spent
            self._study.remember(uncompared=True)
        self._study.remember(seconds=self._study.facts.get("seconds", 0.0) + time.perf_counter() - began)

    def _search(self, supervisor: AnySupervisor, sampler: Any, stop: Stop) -> None:
        done = self._study.finished()
        most = done + len(self._proxy.carried) if self._proxy else self._request.most_trials
        self._emit({"event": "search_started", "study": self._study.name, "trials": None if math.isinf(most) else most,
                    "time_budget_s": self._request.time_budget_s, "done": done,
                    "folder": str(self._folder)})  # fmt: skip
        opened = supervisor.open()
        space = bind_space(self._space_spec, self._layout(opened.layout), self._spec)
        # Only now: a space that does not fit the model must leave a study that the mended one can use.
        units = self._space_spec.model_dump(mode="json", include={"units", "step_units", "untied"})
        self._study.remember(
            fingerprint=dict(self._made_with),
            target={"spec": asdict(self._spec), "units": units},
            description=opened.description,
            space_size=str(space.size),
            **opened.facts,
        )
        self._study.add_modules(opened.modules)
        self._emit({"event": "target_ready", "description": opened.description, "space_size": space.size,
                    "model_difference": opened.facts.get("model_difference"),
                    "seconds": dict(opened.seconds)})  # fmt: skip
        most = self._queue(space, sampler)
        while (finished := self._study.finished()) < most:
            self._stop_if_asked(stop)
            if not self._budget.allows_trial(self._pace(opened), self._has_plan()):
                self._emit({"event": "time_budget_spent", "trials": finished})
                break
            if finished >= space.size - 1 and self._is_exhausted(space):
                self._study.remember(exhausted=True)
                break
            if self._request.until_settled and self._is_settled(space, finished):
                break
            if self._floor_is_due(finished):
                self._look_at_floor(supervisor, finished)
            if not self._trial(supervisor, space, sampler, opened):
                break
        if self._proxy and self._study.finished() >= most:
            self._study.remember(proxy=self._proxy.to_dict())
        self._stop_if_asked(stop)
        supervisor.deadline_s = self._budget.deadline_s
        finals = Finals(
            self._request, self._spec, self._study, self._budget, self._emit, lambda: self._stop_if_asked(stop)
        )
        has_trials = bool(self._study.finished() or self._proxy)
        finals.run(supervisor, space, self._budget.finalists(self._pace(opened)), has_trials=has_trials)
        self._deliver(supervisor)

    def _deliver(self, supervisor: AnySupervisor) -> None:
        """Have the winner's compiled code written where its plan file will be: a plan without it is a plan still."""
        winner = result_of(self._study, self._folder).winner
        if winner is None:
            return
        stored: dict[str, Any] = {"trial": winner.number}
        try:
            self._emit({"event": "final_stage", "stage": "deliver"})
            delivery = supervisor.deliver(winner.plan, self._folder / ARTIFACTS, lambda stage: None)
            stored |= delivery.to_dict() if delivery else {}
        except (BackendError, OutOfTimeError) as failure:
            logger.warning("the winner comes without its compiled code: %s", failure)
            stored["problem"] = str(failure) or "the time budget ended before"
        self._study.remember(delivery=stored)

    def _is_settled(self, space: SearchSpace, finished: int) -> bool:
        """Whether no plan is expected to save more than can be told from the incumbent."""
        if finished <= len(space.starting_points):
            return False
        left = self._study.outlook(space, self._request.seed).expected_gain_left
        self._study.remember(expected_gain_left=left)
        threshold = max(SETTLED_GAIN, self._bar().noise_floor)
        if left < threshold:
            self._emit({"event": "settled", "trials": finished, "expected_gain_left": left, "threshold": threshold})
        return left < threshold

    def _pace(self, opened: Opened) -> Pace:
        """Return how long things take, by what this study has recorded."""
        seconds = [record.outcome.seconds for record in self._study.records() if record.outcome]
        recent = [own for own in seconds if own][-PACE_TRIALS:] or [{"compile": opened.seconds["baseline"]}]
        opening_s = sum(opened.seconds.values())
        trial_s = median(sum(own.values()) for own in recent)
        if self._spec.kind == "recipe":
            return Pace(trial_s, trial_s, trial_s, MOST_RECIPE_FINALISTS, processes_of(self._spec.backend))
        if self._spec.backend in FRESH_PROCESS:
            trial_s, finalist_s = trial_s + opening_s, trial_s
        else:
            finalist_s = median(sum(own.values()) - own.get("compile", 0.0) for own in recent)
        return Pace(opening_s, trial_s, max(finalist_s, 0.01), MOST_FINALISTS, processes_of(self._spec.backend))

    def _has_plan(self) -> bool:
        return bool(incumbent_first(self._study.records()))

    def _trial(self, supervisor: AnySupervisor, space: SearchSpace, sampler: Any, opened: Opened) -> bool:
        """Run one trial; returns whether it came to an end before its time did."""
        proposal = self._study.ask(space, sampler, self._request.strategy, self._request.seed)
        number = proposal.number
        self._emit({"event": "trial_started", "trial": number, "origin": proposal.origin,
                    "scopes": len(proposal.plan.scopes)})  # fmt: skip
        outcome = proposal.known
        if outcome is None and proposal.plan.is_baseline:
            outcome = Outcome(Reason.SLOWER, "the plan has no scope: it is the baseline")
        outcome = outcome or self._blocked(proposal.plan)
        if outcome is None:
            supervisor.deadline_s = self._budget.trial_deadline_s(self._pace(opened), self._has_plan())
            try:
                outcome = self._tried(supervisor, proposal)
            except OutOfTimeError:
                self._emit({"event": "time_budget_spent", "trials": self._study.finished(), "unfinished": number})
                return False
        self._study.tell(proposal, outcome, self._value(outcome))
        is_simulated = self._spec.backend == "sim"
        left = self._request.most_trials - self._study.finished()
        self._emit({"event": "trial_finished", "trial": number, "origin": proposal.origin,
                    "scopes": len(proposal.plan.scopes), "known": proposal.known is not None,
                    "probe": proposal.is_probe,
                    "simulated": is_simulated, **_told(outcome, is_simulated),
                    "expected_left_s": self._budget.expected_left_s(left, self._pace(opened))})  # fmt: skip
        return True

    def _tried(self, supervisor: AnySupervisor, proposal: Proposal) -> Outcome:
        """Judge a plan; what is not its own doing leaves it to a later search."""
        try:
            supervisor.open()
        except BaseException:  # a full disk, a device that is taken, Ctrl-C: no plan has run yet
            self._study.postpone(proposal)
            raise
        try:
            return self._judged(supervisor, proposal.plan, proposal.number)
        except (OutOfTimeError, KeyboardInterrupt):
            self._study.postpone(proposal)
            raise

    def _floor_is_due(self, finished: int) -> bool:
        looks = floor_looks(self._study.facts)
        return not looks or finished >= looks[-1].before_trial + TRIALS_PER_FLOOR_LOOK

    def _look_at_floor(self, supervisor: AnySupervisor, finished: int) -> None:
        """Compare the baseline with itself, and remember what that shows."""
        if self._spec.backend == "sim":
            return
        try:
            look = supervisor.floor_look(finished)
        except (BackendError, OutOfTimeError) as failure:
            logger.warning("the noise floor could not be measured: %s", failure)
            return
        if look is None:
            return
        looks = [*floor_looks(self._study.facts), look]
        self._study.remember(floor_looks=[one.to_dict() for one in looks])
        self._emit({"event": "noise_floor", "before_trial": finished, "ratio": look.speedup.ratio,
                    "ci95": list(look.speedup.ci95), "noise_floor": floor_of(self._study.facts),
                    "drift": drift(looks), "noise": look.noise})  # fmt: skip

    def _bar(self) -> Bar:
        """Return what a plan has to beat now."""
        complete = incumbent_first(self._study.records())  # no probe among them: it can never win
        bounds = [record.outcome.speedup.ci95[0] for record in complete if record.outcome and record.outcome.speedup]
        floor = 0.0 if self._spec.backend == "sim" else floor_of(self._study.facts)
        return Bar(floor, max(bounds, default=1.0))

    def _judged(self, supervisor: AnySupervisor, plan: Plan, number: int) -> Outcome:
        records = [record for record in self._study.records() if record.outcome and record.outcome.fusion_digest]
        twins = {record.outcome.fusion_digest: record for record in reversed(records) if record.outcome}
        known = {digest: record.number for digest, record in twins.items()}

        def report_stage(stage: str) -> None:
            self._emit({"event": "trial_stage", "trial": number, "stage": stage})

        log, bar = f"trial-{number:04d}.log", self._bar()
        banned = self._study.banned_regions()
        outcome = supervisor.judge(plan, log, report_stage, known, bar, banned)
        if self._hangs(outcome) and not any("feed-sync-all" in dict(scope.options) for scope in plan.scopes):
            rescued = supervisor.judge(plan.with_option("feed-sync-all", 1), log, report_stage, bar=bar, banned=banned)
            if self._hangs(rescued):
                detail = f"{outcome.detail}; it hangs with feed-sync-all=1, too"
                return replace(outcome, detail=detail, added={"feed-sync-all": 1})
            return replace(rescued, added={"feed-sync-all": 1})
        twin = twins.get(outcome.fusion_digest) if outcome.same_as is not None else None
        if twin and twin.outcome:
            detail = f"the same SuperKernels as trial {twin.number}"
            # What its scopes took was observed once, under the twin's own scopes.
            return replace(twin.outcome, detail=detail, same_as=twin.number, seconds=outcome.seconds, scope_times=())
        return outcome

    def _blocked(self, plan: Plan) -> Outcome | None:
        """Return the outcome of a plan with a scope that hung in every way, without running it."""
        labels = {scope.label for scope in plan.scopes}
        for record in self._study.records():
            found = record.outcome
            if found and found.reason is Reason.TIMEOUT and found.added and found.blamed in labels:
                return Outcome(
                    Reason.TIMEOUT, f"scope {found.blamed} hung in trial {record.number}", blamed=found.blamed
                )
        return None

    def _hangs(self, outcome: Outcome) -> bool:
        """Whether a SyncAll may be waiting for cores that do not run: ``feed-sync-all`` is the rescue."""
        is_npu = self._spec.backend in SUPERKERNEL_BACKENDS
        return is_npu and outcome.reason is Reason.TIMEOUT and "compile did not end" not in outcome.detail

    def _value(self, outcome: Outcome) -> float | None:
        """Return the decode step latency in ms, freed of the machine's drift by way of the paired baseline."""
        if outcome.speedup is None:
            return None
        reference: float | None = self._study.facts.get("baseline_ms")
        if reference is None:
            reference = outcome.speedup.baseline_ms
            self._study.remember(baseline_ms=reference)
        return reference / outcome.speedup.ratio

    def _layout(self, traced: Layout) -> Layout:
        """Return the study's layout: with the shares of the first trace, which a resumed search must see again."""
        if (stored := self._study.facts.get("layout")) is None:
            if self._request.profile:
                traced = profile_prior.with_time_shares(traced, self._request.profile)
            self._study.remember(layout=traced.to_dict())
            return traced
        layout = Layout.from_dict(stored)
        if layout.digest != traced.digest:
            raise BadInputError(
                f"the model of study {self._study.name!r} had other units than now; name a new study with --study"
            )
        return layout

    def _queue(self, space: SearchSpace, sampler: Any) -> float:
        """Queue the points that come first and whose plans are new; return the study's total number of trials."""
        known = {record.plan for record in self._study.records() if record.outcome}
        if self._proxy:
            points = [
                StartingPoint(f"proxy trial {plan.trial}", {**space.simplest, **plan.values})
                for plan in self._proxy.carried
            ]
            new = [point for point in points if space.plan(point.values) not in known]
            self._study.queue(new)
            return self._study.finished() + len(new)
        profile, is_exact = self._request.profile, self._request.exact_starting_points
        starts = profile_prior.ordered(space.starting_points, profile) if profile else space.starting_points
        takes_them = getattr(sampler, "takes_starting_points", False) and not profile
        if is_exact or not (takes_them or self._request.strategy in BEGINS_ALONE):
            self._study.queue([point for point in starts if space.plan(point.values) not in known])
        return self._request.most_trials

    def _is_exhausted(self, space: SearchSpace) -> bool:
        # A probe's plan may lie outside the space.
        distinct = {record.plan for record in self._study.records() if record.outcome and not record.is_probe}
        if len(distinct - {Plan()}) < space.size - 1:
            return False
        self._emit({"event": "space_exhausted", "plans": len(distinct)})
        return True

    def _stop_if_asked(self, stop: Stop) -> None:
        if stop.requested:
            of_all = "" if math.isinf(self._request.most_trials) else f" of {self._request.most_trials}"
            raise InterruptedSearchError(
                f"stopped after {self._study.finished()}{of_all} trials; the same command goes on"
            )


def _told(outcome: Outcome, is_simulated: bool) -> dict[str, Any]:
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
        "ci95": None if is_simulated else speedup.get("ci95"),
        "comparison": outcome.comparison,
        "noise": outcome.noise,
        "seconds": values["seconds"],
        "regions": outcome.regions,
        "reused": outcome.reused,
        "log": outcome.log,
    }
