"""The partition sampler: proposes the plan that promises most, by what the study has learned of segments.

For each proposal the effects of the segment model are drawn from their posterior (Thompson sampling), the best legal
plan of each draw is found exactly, for all combinations of options, and of these candidates the one of the largest
expected improvement is taken: the mean over all that may be believed of options (Snoek, Larochelle and Adams 2012,
"Practical Bayesian optimization of machine learning algorithms", section 3.2). Plans that are known are never proposed
again; scopes that are known to fail neither. An ordinary Optuna sampler: everything is learned from the study's
trials, and the seed belongs to the trial's number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from sktune.core.plan import Option, Plan
from sktune.core.space import OUT, SearchSpace, StartingPoint
from sktune.learning.best_partition import Partitioner
from sktune.learning.evidence import Vector
from sktune.learning.history import ORIGIN, PROBE, Belief, Learned, Point, amended
from sktune.learning.savings import Described, Posterior
from sktune.samplers.draws import AVERSIONS, LEAST_RISK, Draws, promising_options
from sktune.samplers.probes import Prober
from sktune.study.distinct import remaining
from sktune.study.strategy import Strategy, distributions, seed_of_trial

NEW_VALUE_EVERY = 4
"""Trials, while starting points are tried: their partitions are to be compared, too."""
HOPELESS = 3.0
"""Standard deviations by which a starting point is expected to miss the best plan, from which on it has to wait; one
that says its own options is never left out."""
MOST_SHORTENED, ENOUGH_FAILED = 6, 2
"""Ways to shorten the scopes of a starting point that are thought of, and failures of these that are enough."""
MOST_COMBINATIONS = 32
"""Of options, that a starting point or one of the best plans is thought of with."""
NEIGHBOURS = 12
LIKELY_BEST = 20
"""Complete plans, by their own figures, of which one is the best by the model."""
LEARNING_TRIALS, FREE_FAILURES, FAILURE_SHARE = 10, 0.2, 0.12
"""Trials in which anything may fail; of those that follow, failures that are free, and the share that may fail. What
is riskier waits."""
FAILURE_PRICE = 0.008
"""What a failure costs, as a share of the best plan's saving: what promises next to nothing takes no risk."""
MOST_AVERSE = 8
"""Combinations of options that the means are thought of with where risk costs anything; else all."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    plan: Plan
    point: Point
    origin: str = ""
    """The starting point that it is."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is still to be expected of a search.

    Attributes:
        expected_gain_left: what the best plan is expected to save beyond the incumbent, as a share of the baseline:
            the mean over draws of the posterior, each with its own best plan.
        candidates: plans that were not tried, and that some draw takes for the best.
    """

    expected_gain_left: float
    candidates: tuple[Plan, ...]


class PartitionSampler(BaseSampler):
    """See the module.

    It begins with the space's starting points by itself: first with the first one, then with those that promise most,
    and where these leave options open, with the values that do. Such trials have their names as the attribute
    ``sktune:origin``.

    Args:
        space: what the study's parameters mean.
        seed: of the search.
        probes: whether a trial may be a probe: a plan in which the layers of a kind differ, set as the trial's
            attribute ``sktune:probe``. The caller has to run that plan, and never to take it for the answer.
    """

    def __init__(self, space: SearchSpace, seed: int = 0, *, probes: bool = False) -> None:
        self._space, self._seed = space, seed
        self._learned = Learned(space)
        self._partitioner = Partitioner(space, self._learned.catalogue)
        self._prober = Prober(self._learned) if probes and not space.per_layer else None
        self._starts = [(start, space.plan(start.values)) for start in space.starting_points]
        self._running: list[Plan] = []
        self._threads = ThreadpoolController()

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
        with self._threads.limit(limits=1, user_api="blas"):  # on matrices this small, threads wait for one another
            return self._point(study, trial)

    def _point(self, study: Study, trial: FrozenTrial) -> Point:
        trials = amended(study.get_trials(deepcopy=False), study.user_attrs)
        self._running = self._learned.read(trials, asking=trial.number)
        rng = np.random.default_rng(seed_of_trial(self._seed, trial.number))
        beliefs = self._learned.beliefs(self._running) if self._learned.model.count else []
        # Those that were asked for at the same moment have no parameters yet.
        bare = [own for own in trials if own.state is TrialState.RUNNING and not own.params]
        others = sum(own.number < trial.number for own in bare)
        if beginning := self._beginning(beliefs, rng, others):
            study._storage.set_trial_user_attr(trial._trial_id, ORIGIN, beginning.origin)  # noqa: SLF001
            return beginning.point
        if not beliefs:
            points = self._space.starting_points
            return self._by_chance(rng, points[0].values if points else {})
        likeliest = beliefs[0].posterior
        if self._prober and PROBE not in trial.user_attrs and (probe := self._prober.probe(likeliest, rng)):
            study._storage.set_trial_user_attr(trial._trial_id, PROBE, probe.to_dict())  # noqa: SLF001 - as samplers do
            return self._incumbent_point()
        return self._propose(beliefs, rng)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Leave parameters that are no part of the space to chance."""
        chance = RandomSampler(seed=seed_of_trial(self._seed, trial.number))
        return chance.sample_independent(study, trial, param_name, param_distribution)

    def outlook(self, trials: Sequence[FrozenTrial]) -> Outlook:
        """Return what is still to be expected, after ``trials``."""
        self._learned.read(trials)
        if not self._learned.model.count:
            return Outlook(math.inf, ())
        beliefs = self._learned.beliefs()
        draws = Draws(self._learned, self._partitioner, beliefs, np.random.default_rng(self._seed))
        [(total, decode)] = draws.solve([AVERSIONS[2] if self._risks() else 0.0])
        incumbent = draws.effects @ self._learned.model.row(self._learned.incumbent)
        left = float(np.maximum(0.0, total.max(axis=1) - incumbent)[len(beliefs) :].mean())
        plans = [self._space.plan(decode(draw, int(index))) for draw, index in enumerate(total.argmax(axis=1))]
        return Outlook(left, tuple(plan for plan in dict.fromkeys(plans) if plan not in self._learned.seen))

    def expected_savings(self, trials: Sequence[FrozenTrial]) -> dict[Plan, float]:
        """Return what each plan that works is expected to save after ``trials``; see ``Learned.expected_savings``.

        One figure alone is often luck: the plan that is expected to save the most is a better answer than the trial
        of the lowest latency.
        """
        self._learned.read(trials)
        return self._learned.expected_savings()

    def _beginning(self, beliefs: Sequence[Belief], rng: np.random.Generator, others: int) -> _Candidate | None:
        """Return the next starting point: the first one while nothing is known, then the one that promises most.

        ``others`` ask at the same moment, and take those before.
        """
        learned = self._learned
        waiting = [start for start, plan in self._starts if not self._was_tried(start, plan)] + self._shortened()
        if not beliefs:
            first = next(iter(waiting[others:] or waiting), None)
            return _Candidate(self._space.plan(first.values), dict(first.values), first.name) if first else None
        # What options might do at most is for proposals to find out, once there is a plan that is worth it.
        modest = min(beliefs, key=lambda belief: belief.posterior.chosen.option_ratio)
        posterior = modest.posterior
        found: list[_Candidate] = []
        for start in waiting:
            combinations = [{}] if start.sets_options else self._options_to_begin(posterior, rng)
            points = [{**start.values, **chosen} for chosen in combinations]
            found += [_Candidate(self._space.plan(point), point, start.name) for point in points]
        safe = learned.log_safe([candidate.plan for candidate in found])
        new = [own for own, log_safe in zip(found, safe, strict=True) if log_safe > -math.inf]
        hopeful = self._hopeful(posterior, new)
        return self._most_promising([modest], hopeful) if hopeful else None

    def _was_tried(self, start: StartingPoint, plan: Plan) -> bool:
        return plan in self._learned.seen if start.sets_options else plan.ranges in self._learned.ranges

    def _shortened(self) -> list[StartingPoint]:
        """Return the starting points that fail, each without a unit at its scopes' ends, until one works."""
        learned, space = self._learned, self._space
        found: list[StartingPoint] = []
        for start, plan in self._starts:
            if plan.ranges not in learned.failed_ranges or plan.ranges in learned.working_ranges:
                continue
            ends = {name for pair in plan.ranges for name in pair}
            names = dict.fromkeys(space.parameter(unit) for unit in space.layout.units if unit.name in ends)
            starts = [
                StartingPoint(f"{start.name} without {name}", {**start.values, name: OUT}, start.sets_options)
                for name in list(names)[:MOST_SHORTENED]
            ]
            plans = [space.plan(own.values) for own in starts]
            failed = sum(own.ranges in learned.failed_ranges for own in plans)
            if failed < ENOUGH_FAILED and not any(own.ranges in learned.working_ranges for own in plans):
                found += [
                    own
                    for own, shorter in zip(starts, plans, strict=True)
                    if 0 < len(shorter.scopes) <= len(plan.scopes) and not self._was_tried(own, shorter)
                ]
        return found

    def _hopeful(self, posterior: Posterior, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return those that may win, and those that say their own options; while there is nothing to beat, all."""
        if not candidates or not self._learned.ranked:
            return list(candidates)
        mean, sd = posterior.predict_plans(self._learned.model.describe([own.plan for own in candidates]))
        missing = (_best_saving(posterior, self._likely_best()) - mean) / sd
        wanted = {start.name for start, _ in self._starts if start.sets_options}
        return [own for own, sds in zip(candidates, missing, strict=True) if own.origin in wanted or sds < HOPELESS]

    def _options_to_begin(self, posterior: Posterior, rng: np.random.Generator) -> list[Mapping[str, Option]]:
        """Return promising options; now and then with a value that is new, one at most, to know what it does."""
        most = int(len(self._learned.failures) % NEW_VALUE_EVERY == 1)
        found = [
            chosen
            for chosen in self._promising_options(posterior, rng)
            if len(chosen.items() - self._learned.values) <= most
        ]
        return found or [{}]

    def _promising_options(self, posterior: Posterior, rng: np.random.Generator) -> list[Mapping[str, Option]]:
        chosen = promising_options(self._learned, posterior, rng, MOST_COMBINATIONS)
        return [combination.point for combination in chosen]

    def _propose(self, beliefs: Sequence[Belief], rng: np.random.Generator) -> Point:
        for width in (1.0, 2.0, 4.0):
            draws = Draws(self._learned, self._partitioner, beliefs, rng, width)
            candidates = self._candidates(draws, len(beliefs)) + self._neighbours(rng)
            candidates += self._with_other_options(beliefs[0].posterior, rng) if self._risks() else []
            new = self._new(candidates)
            if new and self._risk([candidate.plan for candidate in new]).min() > self._allowed_risk():
                safe = [_Candidate(self._space.plan(point), point) for point in draws.safe(rng)]
                new = self._new(new + safe)
            if new:
                return self._most_promising(beliefs, new).point
        return self._by_chance(rng, self._incumbent_point())

    def _new(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        new = {candidate.plan: candidate for candidate in candidates if candidate.plan not in self._learned.seen}
        return list(new.values())

    def _risks(self) -> bool:
        return self._learned.feasibility.has_risks

    def _risk(self, plans: Sequence[Plan]) -> Vector:
        """Return the probability of each plan to fail."""
        risk: Vector = 1 - np.exp(self._learned.log_safe(plans))
        return risk

    def _allowed_risk(self) -> float:
        """Return the probability to fail from which on a plan has to wait."""
        if len(self._learned.failures) < LEARNING_TRIALS:
            return 1.0
        late = self._learned.failures[LEARNING_TRIALS:]
        failures = sum(late) + float(self._risk(self._running).sum())
        return max(LEAST_RISK, FREE_FAILURES + FAILURE_SHARE * (len(late) + len(self._running)) - failures)

    def _candidates(self, draws: "Draws", means: int) -> list[_Candidate]:
        """Return the best plan of each draw, and those of the means, which come first, with any options."""
        found: list[_Candidate] = []
        aversions = AVERSIONS if self._risks() else (0.0,)
        for aversion, (total, decode) in zip(aversions, draws.solve(aversions), strict=True):
            # Where some scopes are to be avoided, the second best options give one more plan of what is safe.
            ranked = np.argsort(-total, axis=1, kind="stable")
            best = ranked[:, : 1 + (aversion == AVERSIONS[-1])]
            pairs = [(draw, int(index)) for draw, row in enumerate(best) for index in row]
            most = total.shape[1] if aversion == AVERSIONS[0] else MOST_AVERSE
            pairs += [(mean, int(index)) for mean, row in enumerate(ranked[:means, :most]) for index in row]
            for draw, index in dict.fromkeys(pairs):
                point = decode(draw, index)
                found.append(_Candidate(self._space.plan(point), point))
        return found

    def _neighbours(self, rng: np.random.Generator) -> list[_Candidate]:
        """Return plans a step or two from the best ones: where the model is wrong, they are what is left."""
        ranked = self._learned.ranked[:3]
        found = []
        for _ in range(NEIGHBOURS if ranked else 0):
            point = ranked[int(rng.integers(len(ranked)))].point
            changed = self._changed(point, rng, 1 + int(rng.integers(3)))
            found.append(_Candidate(self._space.plan(changed), changed))
        return found

    def _with_other_options(self, posterior: Posterior, rng: np.random.Generator) -> list[_Candidate]:
        """Return the best plans with other options: they hold no scope that is new, and seldom fail."""
        chosen = promising_options(self._learned, posterior, rng, MOST_COMBINATIONS)
        return [
            _Candidate(own.plan.with_options(other.of_scope, other.of_step), {**own.point, **other.point})
            for own in self._learned.ranked[:3]
            for other in chosen
        ]

    def _most_promising(self, beliefs: Sequence[Belief], candidates: Sequence[_Candidate]) -> _Candidate:
        """Return the candidate of the largest expected improvement, times the chance that it works."""
        plans = [candidate.plan for candidate in candidates]
        described, best = self._learned.model.describe(plans), self._likely_best()
        improvement = np.sum([each.weight * _improvement(each.posterior, described, best) for each in beliefs], axis=0)
        risk = self._risk(plans)
        price = FAILURE_PRICE * max(1e-3, _best_saving(beliefs[0].posterior, best))
        promise = np.where(risk <= self._allowed_risk(), improvement * (1 - risk) - price * risk, -1.0 - risk)
        return candidates[int(np.argmax(promise))]

    def _likely_best(self) -> Described:
        """Return the plans of which one is the best by the model."""
        return self._learned.model.describe([own.plan for own in self._learned.ranked[:LIKELY_BEST]])

    def _incumbent_point(self) -> Point:
        own = self._learned.ranked[0].point if self._learned.ranked else {}
        return {name: choices[0] for name, choices in self._space.choices.items()} | own

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
            if plan not in self._learned.seen and (attempt > 300 or self._learned.log_safe([plan])[0] > -math.inf):
                return changed
            changed = self._changed(full if attempt < 200 else changed, rng, 1 + attempt // 20)
        return remaining(self._space, self._learned.seen) or changed


def _improvement(posterior: Posterior, plans: Described, best: Described) -> Vector:
    """Return what each plan is expected to save beyond the best one, as a share of the baseline."""
    mean, sd = posterior.predict_plans(plans)
    gain = mean - _best_saving(posterior, best)
    z = gain / sd
    improvement: Vector = gain * ndtr(z) + sd * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return improvement


def _best_saving(posterior: Posterior, best: Described) -> float:
    return float(posterior.predict_plans(best)[0].max(initial=0.0))


PARTITION = Strategy("partition", partial(PartitionSampler, probes=True), persistent=True, takes_starting_points=True)
"""What sktune searches with."""
WITHOUT_PROBES = Strategy("without probes", PartitionSampler, persistent=True, takes_starting_points=True)
"""Proposes points of the space only, to compare with."""
