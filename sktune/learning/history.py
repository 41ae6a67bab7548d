"""What a study's trials have taught: what segments save, and which scopes fail.

Rebuilt from the trials alone, in the order of their numbers; a study that goes on only adds what is new.
"""

import itertools
import math
from bisect import insort
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from sktune.core.outcome import Outcome
from sktune.core.plan import Option, Options, Plan, Ranges
from sktune.core.space import LAYERS_PER_SCOPE, SearchSpace, limit_of
from sktune.core.verification import Verification
from sktune.learning.failures import Feasibility, Key
from sktune.learning.savings import LEAST_NOISE, Hyperparameters, Observation, Posterior, ScopeSaving, SegmentModel
from sktune.learning.segments import SegmentCatalogue

Point = dict[str, Option]

PREFIX = "sktune:"
"""Of the attributes that sktune gives to trials and studies."""
OUTCOME = PREFIX + "outcome"
PROBE = PREFIX + "probe"
ORIGIN = PREFIX + "origin"
"""Attributes of a trial: its outcome, the plan that it tries instead of its parameters' own, and what it is called."""

VERIFICATIONS = "verifications"
"""The study's fact that says what was compared of trials' plans after they had ended, by number."""

SCOPE_TIME_NOISE = 0.02
SETTLED = 200
"""Observations after which the hyperparameters stay."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One choice of all options, and what of it acts."""

    point: Mapping[str, Option]
    of_scope: Options
    of_step: Options


@dataclass(frozen=True, slots=True)
class CompletePlan:
    """A complete plan, what it saved as a share of the baseline, that figure's stated noise, and its parameters."""

    saving: float
    noise_sd: float
    plan: Plan
    point: Point


@dataclass(frozen=True, slots=True)
class Belief:
    """What may be true of the effects, and its weight; those of all beliefs sum to 1."""

    posterior: Posterior
    weight: float


def amended(trials: Sequence[FrozenTrial], attributes: Mapping[str, Any]) -> list[FrozenTrial]:
    """Return ``trials`` with the outcomes that they have since more was compared.

    Optuna does not change a trial that has ended, so what was found later is an attribute of the study.
    """
    found = attributes.get(PREFIX + VERIFICATIONS, {})
    result = []
    for trial in trials:
        if str(trial.number) in found and OUTCOME in trial.user_attrs:
            outcome = Outcome.from_dict(trial.user_attrs[OUTCOME])
            trial = copy(trial)
            now = outcome.after(Verification.from_dict(found[str(trial.number)]))
            trial.user_attrs = {**trial.user_attrs, OUTCOME: now.to_dict()}
        result.append(trial)
    return result


class Learned:
    """See the module.

    Attributes:
        space, catalogue, model, feasibility: what is learned, and of what.
        combinations: all choices of options that differ in what they do.
        ranked: the complete plans, best first; probes are none.
        seen: every plan that was tried or is running, the baseline too.
        ranges: the scopes of these plans, their options apart.
        failed_ranges, working_ranges: those of them that failed, or worked, with some options.
        values: of options, that were tried.
        failures: of each trial, in order, whether it failed.
        reasons: why a trial failed, by its number.
        probes: number of trials that were probes.
        knows_scope_times: whether any trial told what its scopes took.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        most_layers = max(map(limit_of, space.choices.get(LAYERS_PER_SCOPE, ("all",))))
        self.catalogue = SegmentCatalogue(space.layout, most_layers)
        self.combinations = _combinations(space)
        options = [option for combination in self.combinations for option in combination.of_scope]
        of_step = [option for combination in self.combinations for option in combination.of_step]
        self.model = SegmentModel(self.catalogue, tuple(dict.fromkeys(options + of_step)), space.options.of_step)
        searched = {name: value for name, value in space.options.defaults.items() if name in space.option_names}
        self.feasibility = Feasibility(self.catalogue, searched, space.options.changes_bits)
        self.ranked: list[CompletePlan] = []
        self.seen: set[Plan] = {Plan()}
        self.ranges: set[Ranges] = set()
        self.failed_ranges: set[Ranges] = set()
        self.working_ranges: set[Ranges] = set()
        self.values: set[tuple[str, Option]] = set()
        self.failures: list[bool] = []
        self.reasons: dict[int, str] = {}
        self._failed: list[tuple[int, list[Key]]] = []
        self.probes = 0
        self.knows_scope_times = False
        self._read: set[int] = set()
        self._taken: set[Plan] = set()
        self._weights: dict[Hyperparameters, float] = {}
        self._reference_ms: float | None = None

    def read(self, trials: Sequence[FrozenTrial], asking: int | None = None) -> list[Plan]:
        """Take in the trials that ended since; return the plans that run elsewhere, trial ``asking`` apart."""
        pending: list[Plan] = []
        for trial in trials:
            if trial.number in self._read or trial.number == asking or trial.state is TrialState.WAITING:
                continue
            is_whole = all(name in trial.params for name in self.space.choices)
            if trial.state.is_finished():
                self._read.add(trial.number)
                if is_whole:
                    self._take(trial)
            elif is_whole:
                pending.append(self._plan_of(trial))
        self.seen |= set(pending)
        self.ranges |= {plan.ranges for plan in pending}
        return pending

    def posterior(self, pending: Sequence[Plan] = ()) -> Posterior:
        """Return what is likeliest of the effects, given what is running."""
        return self.model.fit(next(iter(self._weights), self.model.begin()), pending)

    def beliefs(self, pending: Sequence[Plan] = ()) -> list[Belief]:
        """Return all that may be believed of the effects, the likeliest first; once settled, it alone."""
        if not self._weights or self.model.count > SETTLED:
            return [Belief(self.posterior(pending), 1.0)]
        return [Belief(self.model.fit(chosen, pending), weight) for chosen, weight in self._weights.items()]

    def expected_savings(self) -> dict[Plan, float]:
        """Return what each of the plans in ``ranked`` is expected to save, as a share of the baseline.

        The model takes all that it cannot explain of a figure for noise. What is more than the noise that the figure
        is stated with is the plan's own, and is given back to it: the mean of a normal effect of each plan.
        """
        if not self.ranked:
            return {}
        described = self.model.describe([own.plan for own in self.ranked])
        saved = np.array([own.saving for own in self.ranked])
        stated = np.array([own.noise_sd for own in self.ranked])
        expected = np.zeros(len(saved))
        for belief in self.beliefs():
            mean, _ = belief.posterior.predict_plans(described)
            found = belief.posterior.chosen.step_noise * np.maximum(LEAST_NOISE, stated)
            expected += belief.weight * (mean + (1 - (stated / found) ** 2) * (saved - mean))
        return {own.plan: float(saving) for own, saving in zip(self.ranked, expected, strict=True)}

    @property
    def incumbent(self) -> Plan:
        """The complete plan of the lowest latency; the baseline where there is none."""
        return self.ranked[0].plan if self.ranked else Plan()

    def keys(self, plan: Plan) -> list[Key]:
        """Return segment class and options of each scope."""
        positions = self.catalogue.positions(plan)
        return [
            (int(self.catalogue.class_of[pair]), scope.options)
            for pair, scope in zip(positions, plan.scopes, strict=True)
        ]

    def log_safe(self, plans: Sequence[Plan]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Return the logarithm of each plan's probability to work."""
        if not self.feasibility.has_risks:
            return np.zeros(len(plans))
        options = list(dict.fromkeys(scope.options for plan in plans for scope in plan.scopes))
        table = self.feasibility.log_safe(options)
        return np.array(
            [math.fsum(table[segment, options.index(own)] for segment, own in set(self.keys(plan))) for plan in plans]
        )

    def failed_in(self, segment: int, options: Options) -> list[int]:
        """Return the numbers of the failed trials that held such a scope."""
        return [number for number, keys in self._failed if (segment, options) in keys]

    def _plan_of(self, trial: FrozenTrial) -> Plan:
        if probe := trial.user_attrs.get(PROBE):
            return Plan.from_dict(probe)
        return self.space.plan(trial.params)

    def _take(self, trial: FrozenTrial) -> None:
        plan = self._plan_of(trial)
        stored = trial.user_attrs.get(OUTCOME)
        if plan in self._taken or (stored and plan.is_baseline):
            return  # answered without a run: it tells nothing new
        self._taken.add(plan)
        self.seen.add(plan)
        self.ranges.add(plan.ranges)
        self.values |= {(name, trial.params[name]) for name in self.space.option_names}
        outcome = Outcome.from_dict(stored) if stored else None
        is_probe = PROBE in trial.user_attrs
        self.probes += is_probe
        latency_ms = trial.value if trial.value is not None else trial.intermediate_values.get(0)
        works = outcome.is_feasible if outcome else latency_ms is not None
        if not works or not math.isfinite(latency_ms or 0.0):
            self._take_failure(trial.number, plan, outcome or Outcome())
            return
        self.failures.append(False)
        self.working_ranges.add(plan.ranges)
        self.feasibility.succeeded(self.keys(plan))
        observation = self._observation(plan, outcome, latency_ms)
        self._observe(observation)
        if not is_probe and observation.saving is not None:
            own = CompletePlan(observation.saving, _stated_noise(outcome), plan, dict(trial.params))
            insort(self.ranked, own, key=lambda item: -item.saving)

    def _take_failure(self, number: int, plan: Plan, outcome: Outcome) -> None:
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
        if outcome.scope_times:  # the plan's own latency is that of no plan that may be used
            baseline_ms = sum(piece.baseline_ms for piece in outcome.scope_times)
            scopes = _scope_savings(self.catalogue, plan, outcome, baseline_ms)
            self._observe(Observation(plan, None, LEAST_NOISE, scopes))

    def _observe(self, observation: Observation) -> None:
        self.knows_scope_times |= bool(observation.scopes)
        self.model.add(observation)
        count = self.model.count
        if count <= 12 or (count <= SETTLED and count % max(1, count // 8) == 0):
            self._weights = self.model.choose()

    def _observation(self, plan: Plan, outcome: Outcome | None, latency_ms: float | None) -> Observation:
        if outcome is None or outcome.speedup is None:
            if latency_ms is None:
                return Observation(plan, 0.0, LEAST_NOISE)  # it may be used, and has the baseline's kernels
            # Without a baseline the first latency serves; what it differs by is learned with the capture's effect.
            self._reference_ms = self._reference_ms or latency_ms
            return Observation(plan, 1 - latency_ms / self._reference_ms, LEAST_NOISE)
        speedup = outcome.speedup
        noise = max(LEAST_NOISE, _stated_noise(outcome))
        scopes = _scope_savings(self.catalogue, plan, outcome, speedup.baseline_ms)
        return Observation(plan, 1 - 1 / speedup.ratio, noise, scopes)


def _stated_noise(outcome: Outcome | None) -> float:
    """Return the standard deviation of what a trial saved, by its interval; ``LEAST_NOISE`` where it has none."""
    if outcome is None or outcome.speedup is None:
        return LEAST_NOISE
    low, high = outcome.speedup.bounds
    return (high - low) / 3.92 / outcome.speedup.ratio / outcome.speedup.ratio


def _combinations(space: SearchSpace) -> list[Combination]:
    names = space.option_names
    found: dict[tuple[Options, Options], Combination] = {}
    for values in itertools.product(*(space.choices[name] for name in names)):
        point = dict(zip(names, values, strict=True))
        of_scope, of_step = space.chosen_options(point)
        found.setdefault((of_scope, of_step), Combination(point, of_scope, of_step))
    return list(found.values())


def _scope_savings(
    catalogue: SegmentCatalogue, plan: Plan, outcome: Outcome, baseline_ms: float
) -> tuple[ScopeSaving, ...]:
    """Return what each class of a plan's scopes saved by itself."""
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
            float(np.mean([saving for saving, _ in own])),
            max(1e-6, float(np.mean([noise for _, noise in own])) / math.sqrt(len(own))),
        )
        for (segment, options), own in grouped.items()
    )
