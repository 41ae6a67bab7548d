"""What a study's trials have shown: how much segments save, and which scopes fail.

Rebuilt from the trials alone, in order of their numbers; a continued study only adds the new ones.
"""

import itertools
import math
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from sktune.core.codec import decoded
from sktune.core.earlier import EarlierStudy, FailedScope
from sktune.core.fused_scopes import FusedScope, SeenTypes
from sktune.core.outcome import Outcome, Speedup
from sktune.core.plan import Option, Options, Plan, Ranges
from sktune.core.space import LAYERS_PER_SCOPE, SearchSpace, limit_of
from sktune.learning.attributes import OUTCOME, PROBE, REPEAT
from sktune.learning.evidence import Vector
from sktune.learning.failures import Feasibility, Key
from sktune.learning.law import Law
from sktune.learning.savings import (
    MIN_NOISE,
    Hyperparameters,
    Observation,
    Pending,
    Posterior,
    ScopeSaving,
    SegmentModel,
    tangent,
)
from sktune.learning.segments import SegmentCatalogue

SCOPE_TIME_NOISE = 0.02


def expected_scope_savings(catalogue: SegmentCatalogue, keys: Sequence[Key]) -> tuple[ScopeSaving, ...]:
    """Return the observations of a running plan's scopes, as if all units took the same time; savings are 0."""
    unit_noise = 2 * SCOPE_TIME_NOISE / catalogue.n_units
    return tuple(
        ScopeSaving(segment, options, 0.0, max(1e-6, unit_noise * float(catalogue.length[segment]) / math.sqrt(count)))
        for (segment, options), count in Counter(keys).items()
    )


def scope_savings(
    catalogue: SegmentCatalogue, plan: Plan, outcome: Outcome, baseline_ms: float
) -> tuple[ScopeSaving, ...]:
    """Return the saving of each class of a plan's scopes."""
    times = {(piece.first, piece.last): piece for piece in outcome.scope_times if piece.in_scope}
    grouped: dict[tuple[int, Options], list[tuple[float, float]]] = {}
    for scope, pair in zip(plan.scopes, catalogue.positions(plan), strict=True):
        if piece := times.get((scope.first, scope.last)):
            key = (int(catalogue.class_of[pair]), scope.options)
            saving = (piece.baseline_ms - piece.latency_ms) / baseline_ms
            noise = SCOPE_TIME_NOISE * (piece.baseline_ms + piece.latency_ms) / baseline_ms
            grouped.setdefault(key, []).append((saving, noise))
    return tuple(
        ScopeSaving(
            segment,
            options,
            float(np.mean([saving for saving, _ in pairs])),
            max(1e-6, float(np.mean([noise for _, noise in pairs])) / math.sqrt(len(pairs))),
        )
        for (segment, options), pairs in grouped.items()
    )


Point = dict[str, Option]

SETTLED = 200
"""Observations after which the hyperparameters no longer change."""
TANGENTS = 3
"""At most so many iterations of fitting, linearising the law at the fit, and fitting again."""
RUNNING_PER_RESULT = 8
"""While so many trials run, hyperparameters are chosen again only once more than one result is new."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A value for each option, and those of them that have an effect."""

    point: Mapping[str, Option]
    of_scope: Options
    of_step: Options


@dataclass(frozen=True, slots=True)
class CompletePlan:
    """A complete plan and its figures.

    Attributes:
        saving: as a share of the baseline, the mean of all measurements, weighted by their precision.
        noise_sd: stated noise of its first measurement.
        plan, point: the plan, and its parameters.
        measurements: their number, in units of the first one's precision.
    """

    saving: float
    noise_sd: float
    plan: Plan
    point: Point
    measurements: float = 1.0

    def measured_again(self, saving: float, noise_sd: float) -> "CompletePlan":
        """Return it with another measurement."""
        weight = (self.noise_sd / noise_sd) ** 2 if noise_sd else 1.0
        total = self.measurements + weight
        mean = (self.saving * self.measurements + saving * weight) / total
        return replace(self, saving=mean, measurements=total)


@dataclass(frozen=True, slots=True)
class Belief:
    """A posterior of the effects and its weight; the weights of all beliefs sum to 1."""

    posterior: Posterior
    weight: float


class Learned:
    """See the module.

    Attributes:
        space, catalogue: of the study.
        model, feasibility: of savings and of failures.
        combinations: all combinations of options that differ in effect.
        ranked: the complete plans, best first; without probes.
        seen: every plan that was tried or is running, including the baseline.
        ranges: the scopes of these plans, without their options.
        failed_ranges, working_ranges: those of them that failed, or worked, with some options.
        values: option values that were tried.
        failures: whether each trial failed, in order.
        reasons: why a trial failed, by its number.
        knows_scope_times: whether any trial reported the times of its scopes.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        max_layers = max(map(limit_of, space.choices.get(LAYERS_PER_SCOPE, ("all",))))
        self.catalogue = SegmentCatalogue(space.layout, max_layers)
        self.combinations = _combinations(space)
        options = [option for combination in self.combinations for option in combination.of_scope]
        of_step = [option for combination in self.combinations for option in combination.of_step]
        law = Law(self.catalogue) if any(unit.kernels for unit in space.layout.units) else None
        self.model = SegmentModel(
            self.catalogue, tuple(dict.fromkeys(options + of_step)), space.options.of_step, law, space.earlier
        )
        self._fused: set[FusedScope] = set()
        self._unfusable = frozenset[str]()
        searched = {name: value for name, value in space.options.defaults.items() if name in space.option_names}
        self.feasibility = Feasibility(self.catalogue, searched, space.options.changes_bits, space.earlier)
        self.ranked: list[CompletePlan] = []
        self.seen: set[Plan] = {Plan()}
        self.ranges: set[Ranges] = set()
        self.failed_ranges: set[Ranges] = set()
        self.working_ranges: set[Ranges] = set()
        self.values: set[tuple[str, Option]] = set()
        self.failures: list[bool] = []
        self.reasons: dict[int, str] = {}
        self._failed: list[tuple[int, list[Key]]] = []
        self._ended_probes = self._running_probes = 0
        self.knows_scope_times = self._knows_baseline = False
        self._read: set[int] = set()
        self._taken: set[Plan] = set()
        self._weights: dict[Hyperparameters, float] = {}
        self._reference_ms: float | None = None
        self._is_choosing = True
        self._running = self._chosen_at = 0

    def read(self, trials: Sequence[FrozenTrial], asking: int | None = None) -> list[Plan]:
        """Learn from newly finished trials; return the plans that are running elsewhere, except trial ``asking``."""
        pending: list[Plan] = []
        self._running_probes = 0
        self._running = sum(trial.state is TrialState.RUNNING for trial in trials)
        for trial in trials:
            if trial.number in self._read or trial.number == asking or trial.state is TrialState.WAITING:
                continue
            has_plan = all(name in trial.params for name in self.space.choices)
            if trial.state.is_finished():
                self._read.add(trial.number)
                if has_plan:
                    self._learn(trial)
            elif has_plan:
                pending.append(self._plan_of(trial))
                self._running_probes += PROBE in trial.user_attrs
        self.seen |= set(pending)
        self.ranges |= {plan.ranges for plan in pending}
        return pending

    def read_once(self, trials: Sequence[FrozenTrial]) -> None:
        """Learn from the finished trials of a study that is only looked at: hyperparameters are chosen at the end."""
        self._is_choosing = False
        self.read(trials)
        self._is_choosing = True
        if self.model.count:
            self._choose()

    def posterior(self, pending: Sequence[Plan] = ()) -> Posterior:
        """Return the most probable posterior of the effects, given the plans that are running."""
        return self.model.fit(next(iter(self._weights), self.model.begin()), self._expect(pending))

    def beliefs(self, pending: Sequence[Plan] = ()) -> list[Belief]:
        """Return all beliefs about the effects, the most probable first; once settled, only that one."""
        if not self._weights or self.model.count > SETTLED:
            return [Belief(self.posterior(pending), 1.0)]
        expected = self._expect(pending)
        return [Belief(self.model.fit(chosen, expected), weight) for chosen, weight in self._weights.items()]

    def _expect(self, pending: Sequence[Plan]) -> Pending | None:
        """Return what plans that are running will show, also of their scopes if these are timed."""
        if not pending:
            return None
        noise_sd, catalogue = max(MIN_NOISE, self.noise_sd), self.catalogue
        timed = expected_scope_savings if self.knows_scope_times else lambda *_: ()
        return self.model.expect(
            [Observation(plan, 0.0, noise_sd, timed(catalogue, self.keys(plan))) for plan in pending]
        )

    def expected_savings(self) -> dict[Plan, float]:
        """Return the expected saving of each plan in ``ranked``, as a share of the baseline.

        The model treats everything that it cannot explain in a figure as noise. The part beyond the figure's stated
        noise belongs to the plan and is added back: the mean of a normal effect of each plan.
        """
        if not self.ranked:
            return {}
        described = self.model.describe([complete.plan for complete in self.ranked])
        saved = np.array([complete.saving for complete in self.ranked])
        expected = np.zeros(len(saved))
        for belief in self.beliefs():
            mean, _ = belief.posterior.predict_plans(described)
            share, _ = own_effects(belief.posterior.chosen.step_noise, self.ranked)
            expected += belief.weight * (mean + share * (saved - mean))
        return {complete.plan: float(saving) for complete, saving in zip(self.ranked, expected, strict=True)}

    def findings(self, name: str) -> EarlierStudy:
        """Return what another study can begin with; this one's ``name`` is for people."""
        model, best = self.model, {chosen.follows_law: chosen for chosen in reversed(self._weights)}
        # Where the law is beyond doubt, too: another search does not know its baseline at its first trial.
        plain = best.get(False) or model.climb(model.begin())[0]
        effects = model.effects_by_name(model.fit(plain))
        under_law = model.effects_by_name(model.fit(best[True])) if True in best else {}
        failed = tuple(
            FailedScope(self.catalogue.digest(segment), options) for segment, options in self.feasibility.blamed()
        )
        types = tuple(dict.fromkeys(self.catalogue.types))
        baseline_us = round(model.baseline_us, 3) if under_law else 0.0
        return EarlierStudy(
            name, len(self._read), self.catalogue.n_units, types, effects, under_law, failed, baseline_us
        )

    @property
    def probes(self) -> int:
        """Number of trials that were probes, or are."""
        return self._ended_probes + self._running_probes

    @property
    def noise_sd(self) -> float:
        """The stated noise of the best figure, which new ones are expected to have, too."""
        return self.ranked[0].noise_sd if self.ranked else MIN_NOISE

    @property
    def incumbent(self) -> Plan:
        """The complete plan with the lowest latency; the baseline if there is none."""
        return self.ranked[0].plan if self.ranked else Plan()

    def keys(self, plan: Plan) -> list[Key]:
        """Return segment class and options of each scope."""
        positions = self.catalogue.positions(plan)
        return [
            (int(self.catalogue.class_of[pair]), scope.options)
            for pair, scope in zip(positions, plan.scopes, strict=True)
        ]

    def log_safe(self, plans: Sequence[Plan]) -> Vector:
        """Return the logarithm of the probability that each plan works."""
        if not self.feasibility.has_risks:
            return np.zeros(len(plans))
        options = list(dict.fromkeys(scope.options for plan in plans for scope in plan.scopes))
        table = self.feasibility.log_safe(options)
        return np.array(
            [math.fsum(table[segment, options.index(key)] for segment, key in set(self.keys(plan))) for plan in plans]
        )

    def failed_in(self, segment: int, options: Options) -> list[int]:
        """Return the numbers of the failed trials with such a scope."""
        return [number for number, keys in self._failed if (segment, options) in keys]

    def _plan_of(self, trial: FrozenTrial) -> Plan:
        if probe := trial.user_attrs.get(PROBE):
            return decoded(Plan, probe)
        return self.space.plan(trial.params)

    def _learn(self, trial: FrozenTrial) -> None:
        plan = self._plan_of(trial)
        stored = trial.user_attrs.get(OUTCOME)
        is_repeat = REPEAT in trial.user_attrs
        if (plan in self._taken and not is_repeat) or (stored and plan.is_baseline):
            return  # a stored result: nothing new
        before = self._withdrawn(plan) if is_repeat else None
        self._taken.add(plan)
        self.seen.add(plan)
        self.ranges.add(plan.ranges)
        self.values |= {(name, trial.params[name]) for name in self.space.option_names}
        outcome = decoded(Outcome, stored) if stored else None
        is_probe = PROBE in trial.user_attrs
        self._ended_probes += is_probe
        latency_ms = trial.value if trial.value is not None else trial.intermediate_values.get(0)
        self._learn_fusion(outcome)
        works = outcome.is_feasible if outcome else latency_ms is not None
        if not works or not math.isfinite(latency_ms or 0.0):
            self._learn_failure(trial.number, plan, outcome or Outcome())
            return
        self.failures.append(False)
        self.working_ranges.add(plan.ranges)
        if not is_repeat:
            self.feasibility.succeeded(self.keys(plan))
        observation = self._observation(plan, outcome, latency_ms)
        self._observe(observation)
        if is_probe or observation.saving is None or (is_repeat and before is None):
            return
        noise_sd = stated_noise(outcome.speedup if outcome else None)
        complete = CompletePlan(observation.saving, noise_sd, plan, dict(trial.params))
        complete = before.measured_again(observation.saving, noise_sd) if before else complete
        insort(self.ranked, complete, key=lambda item: -item.saving)

    def _withdrawn(self, plan: Plan) -> CompletePlan | None:
        """Remove ``plan`` from those that are complete, until its new measurement is known, and return its figures."""
        before = next((complete for complete in self.ranked if complete.plan == plan), None)
        if before:
            self.ranked.remove(before)
        return before

    def _learn_fusion(self, outcome: Outcome | None) -> None:
        """Learn which types of operators the compiler never fuses, and the baseline's latency.

        A type that it fuses in one place and not in another counts as fusable: shapes or types of data decide.
        """
        if outcome is None or not self.model.law:
            return
        if outcome.speedup and not self._knows_baseline:
            self._knows_baseline = True
            self.model.baseline_us = 1e3 * outcome.speedup.baseline_ms
        self._fused.update(replace(scope, labels=()) for scope in outcome.fused)
        if (unfusable := SeenTypes.of(self._fused).alone) != self._unfusable:
            self._unfusable = unfusable
            self.model.follow(Law(self.catalogue, unfusable, self.model.law.tangent))

    def _learn_failure(self, number: int, plan: Plan, outcome: Outcome) -> None:
        keys = self.keys(plan)
        self.failures.append(True)
        self.failed_ranges.add(plan.ranges)
        self.reasons[number] = str(outcome.reason or "failed")
        self._failed.append((number, keys))
        labelled = {scope.label: key for scope, key in zip(plan.scopes, keys, strict=True)}
        changing = {labelled[label] for label in outcome.changes_bits if label in labelled}
        if changing:
            self.feasibility.succeeded([key for key in keys if key not in changing])
            for key in sorted(changing, key=repr):
                self.feasibility.failed(keys, key)
        else:
            self.feasibility.failed(keys, labelled.get(outcome.blamed))
        if outcome.scope_times:  # only these: the plan's latency is that of an unusable plan
            baseline_ms = sum(piece.baseline_ms for piece in outcome.scope_times)
            scopes = scope_savings(self.catalogue, plan, outcome, baseline_ms)
            self._observe(Observation(plan, None, MIN_NOISE, scopes))

    def _observe(self, observation: Observation) -> None:
        self.knows_scope_times |= bool(observation.scopes)
        self.model.add(observation)
        count = self.model.count
        is_due = count <= 12 or (count <= SETTLED and count % max(1, count // 8) == 0)
        if self._is_choosing and is_due and count - self._chosen_at > self._running // RUNNING_PER_RESULT:
            self._choose()

    def _choose(self) -> None:
        """Choose hyperparameters, and where the law's tangent is taken, which what is known of the device moves."""
        self._chosen_at = self.model.count
        for _ in range(TANGENTS):
            self._weights = self.model.choose()
            posterior, law = self.posterior(), self.model.law
            if not (law and law.knows_times and posterior.chosen.follows_law) or tangent(posterior) == law.tangent:
                break
            self.model.follow(Law(self.catalogue, self._unfusable, tangent(posterior)))

    def _observation(self, plan: Plan, outcome: Outcome | None, latency_ms: float | None) -> Observation:
        if outcome is None or outcome.speedup is None:
            if latency_ms is None:
                return Observation(plan, 0.0, MIN_NOISE)  # usable, and with the baseline's kernels
            # Without a baseline, the first latency stands in; the difference is learned with the capture's effect.
            self._reference_ms = self._reference_ms or latency_ms
            return Observation(plan, 1 - latency_ms / self._reference_ms, MIN_NOISE)
        speedup = outcome.speedup
        noise = max(MIN_NOISE, stated_noise(speedup))
        scopes = scope_savings(self.catalogue, plan, outcome, speedup.baseline_ms)
        return Observation(plan, 1 - 1 / speedup.ratio, noise, scopes)


def own_effects(step_noise: float, plans: Sequence[CompletePlan]) -> tuple[Vector, Vector]:
    """Return what plans save beyond the model, shape (n_plans,) each: the share of a figure's misfit that is the plan's
    own effect rather than noise, and the variance of that effect that its measurements leave."""
    stated = np.array([complete.noise_sd for complete in plans])
    variance = (step_noise * np.maximum(MIN_NOISE, stated)) ** 2 - stated**2
    precision = variance * np.array([complete.measurements for complete in plans])
    share = precision / np.maximum(np.finfo(float).tiny, precision + stated**2)
    return share, variance * (1 - share)


def stated_noise(speedup: Speedup | None) -> float:
    """Return the standard deviation of a measured saving, from its interval; ``MIN_NOISE`` without one."""
    if speedup is None:
        return MIN_NOISE
    low, high = speedup.bounds
    return (high - low) / 3.92 / speedup.ratio / speedup.ratio


def _combinations(space: SearchSpace) -> list[Combination]:
    names = space.option_names
    distinct: dict[tuple[Options, Options], Combination] = {}
    for values in itertools.product(*(space.choices[name] for name in names)):
        point = dict(zip(names, values, strict=True))
        of_scope, of_step = space.chosen_options(point)
        distinct.setdefault((of_scope, of_step), Combination(point, of_scope, of_step))
    return list(distinct.values())
