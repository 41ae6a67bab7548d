"""The partition sampler: learns what segments save, and proposes the plan that promises most.

For each proposal the effects of the segment model are drawn from their posterior (Thompson sampling), the best legal
plan of each draw is found exactly, for all combinations of options, and of these candidates the one of the largest
expected improvement is taken. Plans that are known are never proposed again; scopes that are known to fail neither.
An ordinary Optuna sampler: everything is learned from the study's trials, and the seed belongs to the trial's number.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState
from scipy.special import ndtr

from sktune.feasibility import Feasibility
from sktune.outcome import Outcome
from sktune.partitioning import Partitioner
from sktune.plan import Option, Options, Plan
from sktune.samplers import OUTCOME, PROBE, distributions, seed_of_trial
from sktune.segment_model import Hyperparameters, Observation, Posterior, ScopeSaving, SegmentModel
from sktune.segments import SegmentCatalogue
from sktune.space import LAYERS_PER_SCOPE, SearchSpace, limit_of

Vector = npt.NDArray[np.float64]
Point = dict[str, Option]

MOST_DRAWS = 8
LEAST_DRAWS = 2
MOST_WORK = 600_000
"""Segment classes times problems that are solved at once: what keeps a proposal below 50 ms."""
NEIGHBOURS = 12
LEAST_NOISE = 1e-3
"""Relative noise of a step's latency, where the study does not tell."""
SCOPE_TIME_NOISE = 0.02
SETTLED = 200
"""Observations after which the hyperparameters stay."""
FREE_FAILURES = 0.5
FAILURE_SHARE = 0.09
"""Share of the trials after the tenth that may fail: what is riskier waits."""
AVERSIONS = (0.0, 0.1, 0.5, 2.0, 20.0)
"""What a unit of log risk costs, as a multiple of the incumbent's saving: one candidate for each."""


@dataclass(frozen=True, slots=True)
class _Combination:
    """One choice of all options, and what of it acts."""

    point: Mapping[str, Option]
    of_scope: Options
    of_step: Options


@dataclass(frozen=True, slots=True)
class _Candidate:
    plan: Plan
    point: Point


class PartitionSampler(BaseSampler):
    """See the module.

    Args:
        space: what the study's parameters mean.
        seed: of the search.
        probes: whether a trial may be a probe; the caller then has to run the plan in the attribute ``PROBE``.
    """

    is_distinct = True

    def __init__(self, space: SearchSpace, seed: int = 0, *, probes: bool = False) -> None:
        self._space, self._seed, self._probes = space, seed, probes
        most_layers = max(map(limit_of, space.choices.get(LAYERS_PER_SCOPE, ("all",))))
        self._catalogue = SegmentCatalogue(space.layout, most_layers)
        self._partitioner = Partitioner(space, self._catalogue)
        self._combinations = _combinations(space)
        options = tuple(
            dict.fromkeys(option for combination in self._combinations for option in combination.of_scope)
        ) + tuple(dict.fromkeys(option for combination in self._combinations for option in combination.of_step))
        self._model = SegmentModel(self._catalogue, options, space.options.of_step)
        searched = {name: value for name, value in space.options.defaults.items() if name in space.option_names}
        self._feasibility = Feasibility(self._catalogue, searched)
        self._hyperparameters: Hyperparameters | None = None
        self._read: set[int] = set()
        self._complete: dict[Plan, tuple[float, Point]] = {}
        self._seen: set[Plan] = {Plan()}
        self._failures: list[bool] = []
        self._reference_ms: float | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All parameters are proposed together."""
        return distributions(self._space)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the parameters of a plan that is new, if there is one."""
        pending = self._learn(study, trial.number)
        return self.propose(trial.number, pending)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Leave parameters that are no part of the space to chance."""
        chance = RandomSampler(seed=seed_of_trial(self._seed, trial.number))
        return chance.sample_independent(study, trial, param_name, param_distribution)

    def propose(self, number: int, pending: Sequence[Plan]) -> Point:
        """Return the parameters of the next plan, for trial ``number``."""
        rng = np.random.default_rng(seed_of_trial(self._seed, number))
        if not self._model.count:
            return self._by_chance(
                rng, {**self._space.starting_points[0].values} if self._space.starting_points else {}
            )
        posterior = self._model.fit(self._hyperparameters or self._model.begin(), pending)
        for width in (1.0, 2.0, 4.0):
            candidates = self._candidates(posterior, rng, width)
            candidates += self._neighbours(rng)
            new = {candidate.plan: candidate for candidate in candidates if candidate.plan not in self._seen}
            if new:
                return self._most_promising(posterior, list(new.values()))
        return self._by_chance(rng, self._incumbent_point())

    def _learn(self, study: Study, number: int) -> list[Plan]:
        """Take in the trials that ended since; return the plans that are running elsewhere."""
        pending: list[Plan] = []
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._read or trial.number == number or trial.state is TrialState.WAITING:
                continue
            if not trial.state.is_finished():
                if all(name in trial.params for name in self._space.choices):
                    pending.append(_plan_of(trial, self._space))
                continue
            self._read.add(trial.number)
            if all(name in trial.params for name in self._space.choices):
                self._take(trial)
        self._seen |= set(pending)
        return pending

    def _take(self, trial: FrozenTrial) -> None:
        plan = _plan_of(trial, self._space)
        self._seen.add(plan)
        stored = trial.user_attrs.get(OUTCOME)
        outcome = Outcome.from_dict(stored) if stored else None
        keys = self._keys(plan)
        latency_ms = trial.value if trial.value is not None else trial.intermediate_values.get(0)
        if (outcome and not outcome.is_feasible) or latency_ms is None:
            labels = [scope.label for scope in plan.scopes]
            is_known = outcome is not None and outcome.blamed in labels
            blamed = keys[labels.index(outcome.blamed)] if outcome and is_known else None
            self._feasibility.failed(keys, blamed)
            self._failures.append(True)
            return
        self._failures.append(False)
        self._feasibility.succeeded(keys)
        observation = self._observation(plan, outcome, latency_ms)
        self._model.add(observation)
        if PROBE not in trial.user_attrs and observation.saving is not None:
            self._complete[plan] = (observation.saving, dict(trial.params))
        count = self._model.count
        if count <= 12 or (count <= SETTLED and count % max(1, count // 8) == 0):
            self._hyperparameters = self._model.choose()

    def _observation(self, plan: Plan, outcome: Outcome | None, latency_ms: float) -> Observation:
        if outcome is None or outcome.speedup is None:
            # Without a baseline the first latency serves; what it differs by is learned with the capture's effect.
            self._reference_ms = self._reference_ms or latency_ms
            return Observation(plan, 1 - latency_ms / self._reference_ms, LEAST_NOISE)
        speedup = outcome.speedup
        low, high = speedup.ci95
        noise = max(LEAST_NOISE, (high - low) / 3.92 / speedup.ratio / speedup.ratio)
        scopes = _scope_savings(self._catalogue, plan, outcome, speedup.baseline_ms)
        return Observation(plan, 1 - 1 / speedup.ratio, noise, scopes)

    def _candidates(self, posterior: Posterior, rng: np.random.Generator, width: float) -> list[_Candidate]:
        """Return the best plan of each draw, and that of the mean."""
        most = max(12, MOST_WORK // len(self._catalogue.first))
        combinations = self._promising_combinations(posterior, rng, max(4, most // (LEAST_DRAWS + 1)))
        aversions = AVERSIONS if self._feasibility.has_failures else (0.0,)
        draws = int(np.clip(most // (len(combinations) * len(aversions)) - 1, LEAST_DRAWS, MOST_DRAWS))
        effects = np.vstack([posterior.mean, posterior.draw(draws, rng, width)])
        options = [combination.of_scope for combination in combinations]
        value = self._model.value(effects, options)
        unknown = posterior.draw_unknown(draws, rng, width)
        value += np.repeat(np.hstack([np.zeros((len(unknown), 1)), unknown]), len(options), axis=1)
        cut = self._model.cut(effects, len(options))
        beside = np.column_stack([self._model.step_value(effects, combination.of_step) for combination in combinations])
        risk = np.tile(self._feasibility.log_safe(options), (1, len(effects))) if len(aversions) > 1 else None
        found: list[_Candidate] = []
        for aversion in aversions:
            scored = value if risk is None else value + self._priced(risk, aversion)
            solution = self._partitioner.solve(scored, cut)
            total = solution.score.reshape(len(effects), len(options)) + beside
            # Where some scopes are to be avoided, the second best options give one more plan of what is safe.
            best = np.argsort(-total, axis=1, kind="stable")[:, : 1 + (aversion == AVERSIONS[-1])]
            for draw, index in ((draw, int(index)) for draw, row in enumerate(best) for index in row):
                point = {**solution.decode(draw * len(options) + index), **combinations[index].point}
                found.append(_Candidate(self._space.plan(point), point))
        return found

    def _priced(self, risk: Vector, aversion: float) -> Vector:
        price = max(aversion, 1e-9) * max(1e-3, *(saving for saving, _ in self._complete.values()), 0.0)
        return price * risk

    def _promising_combinations(self, posterior: Posterior, rng: np.random.Generator, most: int) -> list[_Combination]:
        """Return all combinations of options; where these are too many, those that draws prefer for the incumbent."""
        if len(self._combinations) <= most:
            return self._combinations
        plan = self._incumbent()
        segments = np.array(
            [int(self._catalogue.class_of[pair]) for pair in self._catalogue.positions(plan)], dtype=int
        )
        effects = np.vstack([posterior.mean, posterior.draw(MOST_DRAWS, rng)])
        options = [combination.of_scope for combination in self._combinations]
        value = self._model.value(effects, options, segments).sum(axis=0).reshape(len(effects), -1)
        value = value + np.column_stack(
            [self._model.step_value(effects, combination.of_step) for combination in self._combinations]
        )
        ranked = np.argsort(-value, axis=1, kind="stable").T.ravel()
        return [self._combinations[index] for index in list(dict.fromkeys(ranked.tolist()))[:most]]

    def _neighbours(self, rng: np.random.Generator) -> list[_Candidate]:
        """Return plans a step or two from the best ones: where the model is wrong, they are what is left."""
        ranked = sorted(self._complete.values(), key=lambda item: -item[0])[:3]
        found = []
        for _ in range(NEIGHBOURS if ranked else 0):
            _, point = ranked[int(rng.integers(len(ranked)))]
            changed = self._changed(point, rng, 1 + int(rng.integers(3)))
            found.append(_Candidate(self._space.plan(changed), changed))
        return found

    def _most_promising(self, posterior: Posterior, candidates: Sequence[_Candidate]) -> Point:
        """Return the candidate of the largest expected improvement, times the chance that it works."""
        mean, sd = posterior.predict_plans([candidate.plan for candidate in candidates])
        gain = mean - self._best_saving(posterior)
        z = gain / sd
        improvement = gain * ndtr(z) + sd * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        safe = np.exp(self._log_safe([candidate.plan for candidate in candidates]))
        allowed = 1.0
        if len(self._failures) >= 10:
            late = self._failures[10:]
            allowed = max(0.02, FREE_FAILURES + FAILURE_SHARE * len(late) - sum(late))
        promise = improvement * safe
        promise = np.where(1 - safe <= allowed, promise, -1.0 + safe)
        return candidates[int(np.argmax(promise))].point

    def _log_safe(self, plans: Sequence[Plan]) -> Vector:
        """Return the logarithm of each plan's probability to work."""
        if not self._feasibility.has_failures:
            return np.zeros(len(plans))
        options = list(dict.fromkeys(scope.options for plan in plans for scope in plan.scopes))
        table = self._feasibility.log_safe(options)
        return np.array(
            [sum(table[segment, options.index(own)] for segment, own in set(self._keys(plan))) for plan in plans]
        )

    def _keys(self, plan: Plan) -> list[tuple[int, Options]]:
        """Return segment class and options of each scope."""
        positions = self._catalogue.positions(plan)
        return [
            (int(self._catalogue.class_of[pair]), scope.options)
            for pair, scope in zip(positions, plan.scopes, strict=True)
        ]

    def _best_saving(self, posterior: Posterior) -> float:
        if not self._complete:
            return 0.0
        best = sorted(self._complete, key=lambda plan: -self._complete[plan][0])[:20]
        return max(0.0, float(posterior.predict_plans(best)[0].max()))

    def _incumbent(self) -> Plan:
        return max(self._complete, key=lambda plan: self._complete[plan][0], default=Plan())

    def _incumbent_point(self) -> Point:
        plan = self._incumbent()
        return dict(self._complete[plan][1]) if plan in self._complete else {}

    def _changed(self, point: Mapping[str, Option], rng: np.random.Generator, times: int) -> Point:
        names = list(self._space.choices)
        changed = dict(point)
        for _ in range(times):
            name = names[int(rng.integers(len(names)))]
            choices = self._space.choices[name]
            changed[name] = choices[int(rng.integers(len(choices)))]
        return changed

    def _by_chance(self, rng: np.random.Generator, point: Mapping[str, Option]) -> Point:
        """Return a new plan a few changes from ``point``, farther away the longer none is found."""
        full = {name: choices[0] for name, choices in self._space.choices.items()} | dict(point)
        changed = full
        for attempt in range(400):
            plan = self._space.plan(changed)
            if plan not in self._seen and (attempt > 300 or self._log_safe([plan])[0] > -np.inf):
                return changed
            changed = self._changed(full if attempt < 200 else changed, rng, 1 + attempt // 20)
        return changed


def _combinations(space: SearchSpace) -> list[_Combination]:
    names = space.option_names
    found: dict[tuple[Options, Options], _Combination] = {}
    for values in itertools.product(*(space.choices[name] for name in names)):
        point = dict(zip(names, values, strict=True))
        of_scope, of_step = space.chosen_options(point)
        found.setdefault((of_scope, of_step), _Combination(point, of_scope, of_step))
    return list(found.values())


def _plan_of(trial: FrozenTrial, space: SearchSpace) -> Plan:
    if probe := trial.user_attrs.get(PROBE):
        return Plan.from_dict(probe)
    return space.plan(trial.params)


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
