"""The partition sampler: proposes the most promising plan, according to a model of segments.

For each proposal, the effects of the segment model are drawn from their posterior (Thompson sampling), and the best
legal plan of each draw is found exactly, for all combinations of options. Of these candidates, the one whose
measurement is worth most is proposed, in the mean over all beliefs about options (``worth``). Scopes that are known to
fail are never proposed again, and known plans only to measure them again, where figures are noisy. It is an ordinary
Optuna sampler: everything is learned from the study's trials, and the seed follows from the trial's number.

What a measurement is worth is how much better the plan that is recommended after it is than the one that is now: the
knowledge gradient (Frazier, Powell and Dayanik 2009, "The knowledge-gradient policy for correlated normal beliefs",
INFORMS Journal on Computing 21:4, section 2). It knows that plans share scopes and options: a plan that nearly equals a
measured one tells little, however uncertain both are.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState
from scipy.special import ndtri

from sktune.core.codec import encoded
from sktune.core.outcome import Speedup
from sktune.core.plan import Option, Plan
from sktune.core.space import OUT, SearchSpace, StartingPoint
from sktune.learning.attributes import ORIGIN, PROBE, REPEAT, amended
from sktune.learning.best_partition import Partitioner, Solution
from sktune.learning.evidence import Vector
from sktune.learning.history import Belief, Combination, CompletePlan, Learned, Point, own_effects, stated_noise
from sktune.learning.savings import Described, Posterior, Singles
from sktune.learning.threads import one_blas_thread
from sktune.samplers.probes import Prober
from sktune.study.distinct import remaining
from sktune.study.strategy import Strategy, distributions, seed_of_trial

MEASURED = 20
"""Number of the fastest measured plans that may be recommended, or measured again."""
REPEAT_MARGIN = 2.0
"""A repeat has to be worth this many times as much as a new plan, which also teaches about plans not yet tried."""
MIN_REPEAT_VALUE = 1e-5
"""As a share of the baseline."""
_NORMAL = ndtri((np.arange(16) + 0.5) / 16)
"""Equally probable values of a standard normal variable."""


class Worth:
    """The worth of measurements, given what was learned and the ``beliefs`` about it.

    Plans that are ``running`` will be known, so they may be recommended, too: without that, a twin of the best of them
    would seem to be worth all that both are expected to save.
    """

    def __init__(self, learned: Learned, beliefs: Sequence[Belief], running: Sequence[Plan] = ()) -> None:
        self._learned, self._beliefs = learned, beliefs
        self._measured = learned.ranked[:MEASURED]
        counts = Counter(running)
        repeated = {complete.plan for complete in learned.ranked} if counts else set()
        fresh = [plan for plan in counts if plan not in repeated]
        self._known = [*self._measured, *self._unmeasured(fresh)]
        self._running = np.array([float(counts[complete.plan]) for complete in self._known])
        self._described = learned.model.describe([complete.plan for complete in self._known])

    def _unmeasured(self, plans: Sequence[Plan]) -> list[CompletePlan]:
        return [CompletePlan(0.0, self._learned.noise_sd, plan, {}, measurements=0.0) for plan in plans]

    def of_new(self, plans: Sequence[Plan]) -> Vector:
        """Return what measuring each of some new plans is worth, as a share of the baseline."""
        return self._mean(self._learned.model.describe(plans), self._unmeasured(plans))

    def plan_to_repeat(self, worth_of_new: float) -> CompletePlan | None:
        """Return the plan to measure again instead of a new one; None if none is worth it, or figures are exact.

        Args:
            worth_of_new: of the plan that would be tried otherwise.
        """
        if not self._measured or not self._measured[0].noise_sd:
            return None
        worth = self._mean(self._described, self._known)[: len(self._measured)]
        best = int(worth.argmax())
        limit = max(MIN_REPEAT_VALUE, REPEAT_MARGIN * worth_of_new)
        return self._measured[best] if worth[best] > limit else None

    def _mean(self, described: Described, plans: Sequence[CompletePlan]) -> Vector:
        weighted = [belief.weight * self._of(belief.posterior, described, plans) for belief in self._beliefs]
        mean: Vector = np.sum(weighted, axis=0)
        return mean

    def _of(self, posterior: Posterior, described: Described, plans: Sequence[CompletePlan]) -> Vector:
        is_known = described is self._described
        known_mean, known_spread, known_variance = _prediction(posterior, self._described, self._known, self._running)
        mean, spread, variance = known_mean, known_spread, known_variance
        if not is_known:
            mean, spread, variance = _prediction(posterior, described, plans)
        covariance = known_spread.T @ spread
        if is_known:
            np.fill_diagonal(covariance, known_variance)
        scale = np.sqrt(variance + np.array([complete.noise_sd for complete in plans]) ** 2)
        # By plan and result; no plan at all saves nothing.
        best = np.maximum(0.0, mean[:, None] + (variance / scale)[:, None] * _NORMAL)
        if len(known_mean):
            change = (covariance / scale)[:, :, None] * _NORMAL
            best = np.maximum(best, (known_mean[:, None, None] + change).max(axis=0))
        worth: Vector = best.mean(axis=1) - known_mean.max(initial=0.0)
        return worth


def _prediction(
    posterior: Posterior, described: Described, plans: Sequence[CompletePlan], running: Vector | None = None
) -> tuple[Vector, Vector, Vector]:
    """Return mean, spread and variance of what plans save, with their own effects; ``running`` measurements of them
    only make it more certain."""
    mean = described.rows @ posterior.mean
    share, left = own_effects(posterior.chosen.step_noise, plans)
    if running is not None and running.any():
        pairs = zip(plans, running, strict=True)
        ended = [replace(plan, measurements=plan.measurements + count) for plan, count in pairs]
        _, left = own_effects(posterior.chosen.step_noise, ended)
    mean += share * (np.array([complete.saving for complete in plans]) - mean)
    spread = posterior.spread(described.rows)
    return mean, spread, (spread**2).sum(axis=0) + posterior.unknown_variance(described) + left


MAX_DRAWS = 16
MIN_DRAWS = 2
MAX_WORK = 600_000
"""Segment classes times problems that are solved in one batch, so that a proposal takes some ten milliseconds."""
MAX_SAFE = 64
"""Number of plans composed of safe scopes, if all others are too risky."""
MIN_RISK = 0.02
"""Probability of failure that is always accepted."""
BOUND_DRAWS, LUCKY, DOUBT = 200, 0.5, 2.0
"""Draws for the bound on what is left to gain; how many standard deviations the best plan's own effect may be; and the
power of a scope's probability to work: what has failed for one reason fails again more often than the rates say. Both
were chosen on recorded landscapes (benchmarks/gain_left.py)."""
AVERSIONS = (0.0, 0.1, 0.5, 2.0, 20.0)
"""Costs of a unit of log risk, as multiples of the incumbent's saving: one candidate for each."""


class Draws:
    """Draws of the effects, the beliefs' means first, and the best plans under each of them.

    Attributes:
        effects: shape (n_beliefs + n_draws, n_effects).
        shares: number of draws of each belief, in order.
        combinations: of options that are considered.
    """

    def __init__(
        self,
        learned: Learned,
        partitioner: Partitioner,
        beliefs: Sequence[Belief],
        rng: np.random.Generator,
        width: float = 1.0,
    ) -> None:
        self._partitioner = partitioner
        model, catalogue = learned.model, learned.catalogue
        max_problems = max(12, MAX_WORK // len(catalogue.first))
        max_options = max(4, max_problems // (MIN_DRAWS + 1))
        self.combinations = promising_options(learned, beliefs[0].posterior, rng, max_options)
        rounds = len(AVERSIONS) if learned.feasibility.has_risks else 1
        count = int(np.clip(max_problems // (len(self.combinations) * rounds) - 1, MIN_DRAWS, MAX_DRAWS))
        self.shares = rng.multinomial(count, [belief.weight for belief in beliefs])
        shares = list(zip(beliefs, self.shares, strict=True))
        means = [belief.posterior.mean for belief in beliefs]
        self.effects = np.vstack([*means, *(belief.posterior.draw(share, rng, width) for belief, share in shares)])
        self._options = [combination.of_scope for combination in self.combinations]
        none = np.zeros((len(catalogue.first), len(beliefs)), np.float32)
        unknown = np.hstack([none, *(belief.posterior.draw_unknown(share, rng, width) for belief, share in shares)])
        unknown = np.repeat(unknown, len(self._options), axis=1)
        self._value: Singles = model.value(self.effects, self._options) + unknown
        self._cut = model.cut(self.effects, len(self._options))
        steps = [model.step_value(self.effects, combination.of_step) for combination in self.combinations]
        self._step_savings = np.column_stack(steps)
        self._log_safe = learned.feasibility.log_safe(self._options) if learned.feasibility.has_risks else None
        self._best_saving = max(1e-3, learned.ranked[0].saving if learned.ranked else 0.0)

    def solve(self, aversions: Sequence[float]) -> list[tuple[Vector, Callable[[int, int], Point]]]:
        """Return for each aversion the best total by draw and combination of options, and a decoder of its point."""
        values = [self._value] * len(aversions)
        if self._log_safe is not None:
            risk = np.tile(self._best_saving * self._log_safe, (1, len(self.effects)))
            values = [self._value + (max(aversion, 1e-9) * risk).astype(np.float32) for aversion in aversions]
        solution = self._partitioner.solve(np.hstack(values), np.hstack([self._cut] * len(aversions)))
        scores = solution.score.reshape(len(aversions), *self._step_savings.shape)
        return [
            (score + self._step_savings, partial(self._decode, solution, number)) for number, score in enumerate(scores)
        ]

    def best(self, rng: np.random.Generator) -> Vector:
        """Return what the best plan of each draw saves, shape (n_draws,); scopes fail at random, as likely as they do.

        The first draws are the beliefs' means. In each, the riskier scopes fail and the others work: causes are shared,
        and if each of a thousand scopes had luck of its own, some risky one would always work.
        """
        value = self._value
        if self._log_safe is not None:
            chance = np.repeat(np.log1p(-rng.random(len(self.effects))), len(self._options))
            value = np.where(chance > DOUBT * np.tile(self._log_safe, (1, len(self.effects))), -np.inf, value)
        solution = self._partitioner.solve(value, self._cut)
        best: Vector = (solution.score.reshape(self._step_savings.shape) + self._step_savings).max(axis=1)
        return best

    def safe(self, rng: np.random.Generator) -> list[Point]:
        """Return points composed at random of scopes that rarely fail, fast or slow: there may be no others."""
        assert self._log_safe is not None
        index = rng.integers(len(self._options), size=min(MAX_SAFE, self._value.shape[1]))
        chance = rng.standard_normal((len(self._value), len(index)), dtype=np.float32)
        value = np.where(self._log_safe[:, index] > math.log1p(-MIN_RISK), chance, -np.inf).astype(np.float32)
        solution = self._partitioner.solve(value, np.zeros((len(self._cut), len(index))))
        return [{**solution.decode(number), **self.combinations[option].point} for number, option in enumerate(index)]

    def _decode(self, solution: Solution, number: int, draw: int, index: int) -> Point:
        count = len(self._options)
        decoded = solution.decode(number * self._value.shape[1] + draw * count + index)
        return {**decoded, **self.combinations[index].point}


def promising_options(
    learned: Learned, posterior: Posterior, rng: np.random.Generator, limit: int
) -> list[Combination]:
    """Return all combinations of options, or the ``limit`` that draws prefer for the incumbent."""
    if len(learned.combinations) <= limit:
        return learned.combinations
    of_incumbent = [segment for segment, _ in learned.keys(learned.incumbent)]
    # Until something works, single units stand in for the incumbent's scopes.
    segments = np.array(
        of_incumbent or np.flatnonzero(learned.catalogue.first == learned.catalogue.last), dtype=np.int64
    )
    effects = np.vstack([posterior.mean, posterior.draw(MAX_DRAWS, rng)])
    options = [combination.of_scope for combination in learned.combinations]
    value = learned.model.value(effects, options, segments).sum(axis=0).reshape(len(effects), -1)
    steps = [learned.model.step_value(effects, combination.of_step) for combination in learned.combinations]
    ranked = np.argsort(-(value + np.column_stack(steps)), axis=1, kind="stable").T.ravel()
    return [learned.combinations[index] for index in list(dict.fromkeys(ranked.tolist()))[:limit]]


NEW_VALUE_EVERY = 4
"""While starting points are tried, only one in this many trials may have a new option value, to compare partitions."""
HOPELESS, HOPELESS_BY_LAW = 3.0, 0.5
"""A starting point that is expected to miss the best plan by this many standard deviations has to wait, unless it sets
options; the second where the law of SuperKernels says what to expect."""
MAX_SHORTENED, MAX_FAILED = 6, 2
"""Limit of the ways to shorten a starting point's scopes, and failures after which no more are tried."""
MAX_COMBINATIONS = 32
"""Combinations of options that a starting point or one of the best plans is considered with."""
NEIGHBOURS = 12
LEARNING_TRIALS, FREE_FAILURES, FAILURE_SHARE = 10, 0.2, 0.12
"""Trials in which anything may fail; in later ones, a free allowance of failures, and the share that may fail. Riskier
plans wait."""
FAILURE_PRICE = 0.008
"""Cost of a failure, as a share of the best plan's saving: plans that promise almost nothing are not worth a risk."""
BY_EARLIER = "earlier studies"
"""The origin of a plan that earlier studies alone recommend."""
MAX_AVERSE = 8
"""How many of each posterior mean's best combinations of options are candidates where risk has a cost; else all are."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    plan: Plan
    point: Point
    origin: str = ""
    """Name of its starting point, if any."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a search can still be expected to gain.

    Attributes:
        expected_gain_left: expected saving of the best plan beyond the incumbent, as a share of the baseline: the mean
            over draws of the posterior, each with its own best plan.
        candidates: untried plans that are the best in some draw.
    """

    expected_gain_left: float
    candidates: tuple[Plan, ...]


class PartitionSampler(BaseSampler):
    """See the module.

    It proposes the space's starting points itself: the first one first, then the most promising ones, with the most
    promising values of options that they leave open. Such trials have the starting point's name as the attribute
    ``sktune:origin``.

    Args:
        space: of the study.
        seed: of the search.
        probes: whether a trial may be a probe: a plan in which the layers of a kind differ, set as the trial's
            attribute ``sktune:probe``. The caller has to run that plan, and must never return it as the result. A trial
            with the attribute ``sktune:repeat`` has a known plan, and has to measure it again.
    """

    def __init__(self, space: SearchSpace, seed: int = 0, *, probes: bool = False) -> None:
        self._space, self._seed = space, seed
        self._learned = Learned(space)
        self._partitioner = Partitioner(space, self._learned.catalogue)
        self._prober = Prober(self._learned) if probes and not space.per_layer else None
        self._starts = [(start, space.plan(start.values)) for start in space.starting_points]
        self._running: list[Plan] = []

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All parameters are proposed together."""
        return distributions(self._space)

    @one_blas_thread()
    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the parameters of a new plan, if there is one, or of a known one to measure again."""
        trials = amended(study.get_trials(deepcopy=False), study.user_attrs)
        self._running = self._learned.read(trials, asking=trial.number)
        rng = np.random.default_rng(seed_of_trial(self._seed, trial.number))
        beliefs = self._learned.beliefs(self._running) if self._learned.model.count else []
        # Trials that are being asked for concurrently have no parameters yet.
        bare = [other for other in trials if other.state is TrialState.RUNNING and not other.params]
        others = sum(other.number < trial.number for other in bare)
        if not (beliefs or self._running or others or self._learned.failures) and (first := self._by_earlier(rng)):
            study._storage.set_trial_user_attr(trial._trial_id, ORIGIN, first.origin)  # noqa: SLF001
            return first.point
        if start := self._next_start(beliefs, rng, others):
            study._storage.set_trial_user_attr(trial._trial_id, ORIGIN, start.origin)  # noqa: SLF001
            return start.point
        if self._running and not beliefs:
            beliefs = self._learned.beliefs(self._running)  # before anything is known, plans should at least differ
        if not beliefs:
            points = self._space.starting_points
            return self._random_point(rng, points[0].values if points else {})
        posterior = beliefs[0].posterior
        if self._prober and PROBE not in trial.user_attrs and (probe := self._prober.probe(posterior, rng)):
            study._storage.set_trial_user_attr(trial._trial_id, PROBE, encoded(probe))  # noqa: SLF001 - as samplers do
            return self._incumbent_point()
        worth = Worth(self._learned, beliefs, self._running)
        point, worth_of_new = self._propose(beliefs, worth, rng)
        if repeat := worth.plan_to_repeat(worth_of_new):
            study._storage.set_trial_user_attr(trial._trial_id, REPEAT, True)  # noqa: SLF001
            return repeat.point
        return point

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Sample parameters that are not part of the space at random."""
        sampler = RandomSampler(seed=seed_of_trial(self._seed, trial.number))
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    @one_blas_thread()
    def outlook(self, trials: Sequence[FrozenTrial]) -> Outlook:
        """Return what can still be expected after ``trials``."""
        self._read(trials)
        if not self._learned.model.count:
            return Outlook(math.inf, ())
        beliefs = self._learned.beliefs()
        draws = Draws(self._learned, self._partitioner, beliefs, np.random.default_rng(self._seed))
        [(total, decode)] = draws.solve([AVERSIONS[2] if self._risks() else 0.0])
        incumbent = draws.effects @ self._learned.model.row(self._learned.incumbent)
        left = float(np.maximum(0.0, total.max(axis=1) - incumbent)[len(beliefs) :].mean())
        plans = [self._space.plan(decode(draw, int(index))) for draw, index in enumerate(total.argmax(axis=1))]
        new = tuple(plan for plan in dict.fromkeys(plans) if plan not in self._learned.seen)
        return Outlook(left, new)

    @one_blas_thread()
    def gain_left(
        self, trials: Sequence[FrozenTrial], answer: Plan | None = None, compared: Speedup | None = None
    ) -> float:
        """Return the share of the baseline step that, with 95% probability, no plan saves more of beyond ``answer``.

        To what the model explains comes what it does not: each plan's own effect, whose spread is the model's misfit.
        That of the answer is known from its measurements; of the many plans that may be the best, one has a lucky one.

        Earlier studies are left out: how certain they were is not known here, and what they say of plans that nobody
        has measured here has been wrong. The bound follows from the trials alone, whatever this sampler has proposed.

        Args:
            trials: of the study.
            answer: the plan that is named; None for the one that is expected to save most.
            compared: its speedup in the final comparison, which counts where it is less than in trials.

        Returns infinity before anything was measured.
        """
        learned = Learned(replace(self._space, earlier=()))
        learned.read_once(trials)
        expected = learned.expected_savings()
        if not expected:
            return math.inf
        named = max(expected, key=lambda plan: expected[plan]) if answer is None else answer
        beliefs, partitioner = learned.beliefs(), Partitioner(self._space, learned.catalogue)
        complete = next((complete for complete in learned.ranked if complete.plan == named), None)
        if complete and compared:
            again = complete.measured_again(1 - 1 / compared.ratio, stated_noise(compared))
            complete = min(complete, again, key=lambda each: each.saving)
        rng = np.random.default_rng(self._seed)
        left: list[float] = []
        while len(left) < BOUND_DRAWS:
            draws = Draws(learned, partitioner, beliefs, rng)
            count = len(draws.effects) - len(beliefs)
            saved, lucky = np.zeros(count), np.zeros(count)
            at = 0
            for belief, drawn in zip(beliefs, draws.shares, strict=True):
                inside, noise = slice(at, at + drawn), belief.posterior.chosen.step_noise
                _, [variance] = own_effects(noise, [replace(learned.ranked[0], measurements=0.0)])
                lucky[inside] = LUCKY * math.sqrt(variance)
                if complete:
                    row = learned.model.row(named)
                    [share], [variance] = own_effects(noise, [complete])
                    saved[inside] = draws.effects[len(beliefs) :][inside] @ row
                    saved[inside] += share * (complete.saving - float(row @ belief.posterior.mean))
                    saved[inside] += math.sqrt(variance) * rng.standard_normal(drawn)
                at += drawn
            left += np.maximum(0.0, draws.best(rng)[len(beliefs) :] + lucky - saved).tolist()
        named_saving = complete.saving if complete else 0.0
        return min(1.0 - named_saving, float(np.quantile(left, 0.95)))

    def _read(self, trials: Sequence[FrozenTrial]) -> None:
        """Learn from trials; at once from those of a study that this sampler has not proposed for."""
        if self._learned.model.count:
            self._learned.read(trials)
        else:
            self._learned.read_once(trials)

    @one_blas_thread()
    def expected_savings(self, trials: Sequence[FrozenTrial]) -> dict[Plan, float]:
        """Return the expected saving of each working plan after ``trials``; see ``Learned.expected_savings``.

        A single measurement is often luck: the plan with the largest expected saving is a better answer than the trial
        with the lowest latency.
        """
        self._learned.read(trials)
        return self._learned.expected_savings()

    @one_blas_thread()
    def promise(self, trials: Sequence[FrozenTrial], plans: Sequence[Plan]) -> Vector:
        """Return what each of any plans saves as a share of the baseline step, as expected after ``trials``.

        Of a plan that was not measured, what it saves counts as far as it is likely to work; nothing before anything
        was measured. It is minus infinity for a plan that cannot work.
        """
        self._read(trials)
        learned = self._learned
        if not learned.model.count:
            return np.zeros(len(plans))
        described, expected = learned.model.describe(plans), learned.expected_savings()
        saved = np.zeros(len(plans))
        for belief in learned.beliefs():
            saved += belief.weight * belief.posterior.predict_plans(described)[0]
        log_safe = learned.log_safe(plans)
        likely = np.where(saved > 0, saved * np.exp(log_safe), saved)
        known = [expected.get(plan, value) for plan, value in zip(plans, likely, strict=True)]
        return np.where(log_safe == -math.inf, -math.inf, known)

    def _by_earlier(self, rng: np.random.Generator) -> _Candidate | None:
        """Return the best plan according to earlier studies, which is the first one to try."""
        if not self._space.earlier:
            return None
        beliefs = self._learned.beliefs()
        candidates = self._new(self._candidates(Draws(self._learned, self._partitioner, beliefs, rng), len(beliefs)))
        if not candidates:  # "no scope" in every draw
            return None
        plans = [candidate.plan for candidate in candidates]
        mean, _ = beliefs[0].posterior.predict_plans(self._learned.model.describe(plans))
        promise = mean * (1 - self._risk(plans))
        best = int(promise.argmax())
        return replace(candidates[best], origin=BY_EARLIER) if promise[best] > 0 else None

    def _next_start(self, beliefs: Sequence[Belief], rng: np.random.Generator, others: int) -> _Candidate | None:
        """Return the next starting point: the first one while nothing is known, then the most promising one.

        ``others`` is the number of concurrent proposals, which take the points before it.
        """
        learned = self._learned
        waiting = [start for start, plan in self._starts if not self._was_tried(start, plan)] + self._shortened()
        if not beliefs:
            first = next(iter(waiting[others:] or waiting), None)
            return _Candidate(self._space.plan(first.values), dict(first.values), first.name) if first else None
        # Large effects of options are left to later proposals, once there is a plan that is worth trying them on.
        modest = min(beliefs, key=lambda belief: belief.posterior.chosen.option_ratio)
        posterior = modest.posterior
        candidates: list[_Candidate] = []
        for start in waiting:
            combinations = [{}] if start.sets_options else self._options_to_begin(posterior, rng)
            points = [{**start.values, **chosen} for chosen in combinations]
            candidates += [_Candidate(self._space.plan(point), point, start.name) for point in points]
        safe = learned.log_safe([candidate.plan for candidate in candidates])
        possible = [candidate for candidate, log_safe in zip(candidates, safe, strict=True) if log_safe > -math.inf]
        hopeful = self._hopeful(posterior, possible)
        return self._most_promising(posterior, Worth(learned, [modest], self._running), hopeful)[0] if hopeful else None

    def _was_tried(self, start: StartingPoint, plan: Plan) -> bool:
        return plan in self._learned.seen if start.sets_options else plan.ranges in self._learned.ranges

    def _shortened(self) -> list[StartingPoint]:
        """Return failed starting points, each without one unit at an end of its scopes, until one works."""
        learned, space = self._learned, self._space
        shortened: list[StartingPoint] = []
        for start, plan in self._starts:
            if plan.ranges not in learned.failed_ranges or plan.ranges in learned.working_ranges:
                continue
            ends = {name for pair in plan.ranges for name in pair}
            names = dict.fromkeys(space.parameter(unit) for unit in space.layout.units if unit.name in ends)
            starts = [
                StartingPoint(f"{start.name} without {name}", {**start.values, name: OUT}, start.sets_options)
                for name in list(names)[:MAX_SHORTENED]
            ]
            plans = [space.plan(shorter.values) for shorter in starts]
            failed = sum(shorter.ranges in learned.failed_ranges for shorter in plans)
            if failed < MAX_FAILED and not any(shorter.ranges in learned.working_ranges for shorter in plans):
                shortened += [
                    point
                    for point, shorter in zip(starts, plans, strict=True)
                    if 0 < len(shorter.scopes) <= len(plan.scopes) and not self._was_tried(point, shorter)
                ]
        return shortened

    def _hopeful(self, posterior: Posterior, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the candidates that may win, and those that set options; all while there is no plan to beat."""
        if not candidates or not self._learned.ranked:
            return list(candidates)
        mean, sd = posterior.predict_plans(self._learned.model.describe([candidate.plan for candidate in candidates]))
        missing = (_best_saving(posterior, self._likely_best()) - mean) / sd
        limit = HOPELESS_BY_LAW if posterior.chosen.follows_law else HOPELESS
        wanted = {start.name for start, _ in self._starts if start.sets_options}
        pairs = zip(candidates, missing, strict=True)
        return [candidate for candidate, sds in pairs if candidate.origin in wanted or sds < limit]

    def _options_to_begin(self, posterior: Posterior, rng: np.random.Generator) -> list[Mapping[str, Option]]:
        """Return promising options; now and then with one new value at most, to learn its effect."""
        max_new = int(len(self._learned.failures) % NEW_VALUE_EVERY == 1)
        options = [
            chosen
            for chosen in self._promising_options(posterior, rng)
            if len(chosen.items() - self._learned.values) <= max_new
        ]
        return options or [{}]

    def _promising_options(self, posterior: Posterior, rng: np.random.Generator) -> list[Mapping[str, Option]]:
        chosen = promising_options(self._learned, posterior, rng, MAX_COMBINATIONS)
        return [combination.point for combination in chosen]

    def _propose(self, beliefs: Sequence[Belief], worth: Worth, rng: np.random.Generator) -> tuple[Point, float]:
        """Return the point of a new plan, and what measuring it is worth."""
        for width in (1.0, 2.0, 4.0):
            draws = Draws(self._learned, self._partitioner, beliefs, rng, width)
            candidates = self._candidates(draws, len(beliefs)) + self._neighbours(rng)
            candidates += self._with_other_options(beliefs[0].posterior, rng) if self._risks() else []
            new = self._new(candidates)
            if new and self._risk([candidate.plan for candidate in new]).min() > self._allowed_risk():
                safe = [_Candidate(self._space.plan(point), point) for point in draws.safe(rng)]
                new = self._new(new + safe)
            if new:
                chosen, value = self._most_promising(beliefs[0].posterior, worth, new)
                return chosen.point, value
        return self._random_point(rng, self._incumbent_point()), 0.0

    def _new(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        new = {candidate.plan: candidate for candidate in candidates if candidate.plan not in self._learned.seen}
        return list(new.values())

    def _risks(self) -> bool:
        return self._learned.feasibility.has_risks

    def _risk(self, plans: Sequence[Plan]) -> Vector:
        """Return the probability that each plan fails."""
        risk: Vector = 1 - np.exp(self._learned.log_safe(plans))
        return risk

    def _allowed_risk(self) -> float:
        """Return the probability of failure above which a plan has to wait."""
        if len(self._learned.failures) < LEARNING_TRIALS:
            return 1.0
        late = self._learned.failures[LEARNING_TRIALS:]
        failures = sum(late) + float(self._risk(self._running).sum())
        return max(MIN_RISK, FREE_FAILURES + FAILURE_SHARE * (len(late) + len(self._running)) - failures)

    def _candidates(self, draws: "Draws", means: int) -> list[_Candidate]:
        """Return the best plan of each draw, and those of the means (the first ``means`` draws) with any options."""
        candidates: list[_Candidate] = []
        aversions = AVERSIONS if self._risks() else (0.0,)
        for aversion, (total, decode) in zip(aversions, draws.solve(aversions), strict=True):
            # With the highest aversion, the second best options give another safe plan.
            ranked = np.argsort(-total, axis=1, kind="stable")
            best = ranked[:, : 1 + (aversion == AVERSIONS[-1])]
            pairs = [(draw, int(index)) for draw, row in enumerate(best) for index in row]
            limit = total.shape[1] if aversion == AVERSIONS[0] else MAX_AVERSE
            pairs += [(mean, int(index)) for mean, row in enumerate(ranked[:means, :limit]) for index in row]
            for draw, index in dict.fromkeys(pairs):
                point = decode(draw, index)
                candidates.append(_Candidate(self._space.plan(point), point))
        return candidates

    def _neighbours(self, rng: np.random.Generator) -> list[_Candidate]:
        """Return plans up to three changes away from the best ones, which do not depend on the model being right."""
        ranked = self._learned.ranked[:3]
        neighbours = []
        for _ in range(NEIGHBOURS if ranked else 0):
            point = ranked[int(rng.integers(len(ranked)))].point
            changed = self._changed(point, rng, 1 + int(rng.integers(3)))
            neighbours.append(_Candidate(self._space.plan(changed), changed))
        return neighbours

    def _with_other_options(self, posterior: Posterior, rng: np.random.Generator) -> list[_Candidate]:
        """Return the best plans with other options: they have no new scopes and rarely fail."""
        combinations = promising_options(self._learned, posterior, rng, MAX_COMBINATIONS)
        return [
            _Candidate(best.plan.with_options(other.of_scope, other.of_step), {**best.point, **other.point})
            for best in self._learned.ranked[:3]
            for other in combinations
        ]

    def _most_promising(
        self, posterior: Posterior, worth: Worth, candidates: Sequence[_Candidate]
    ) -> tuple[_Candidate, float]:
        """Return the candidate whose worth times the probability that it works is largest, and its worth."""
        plans = [candidate.plan for candidate in candidates]
        values, risk = worth.of_new(plans), self._risk(plans)
        price = FAILURE_PRICE * max(1e-3, _best_saving(posterior, self._likely_best()))
        promise = np.where(risk <= self._allowed_risk(), values * (1 - risk) - price * risk, -1.0 - risk)
        chosen = int(np.argmax(promise))
        return candidates[chosen], float(values[chosen])

    def _likely_best(self) -> Described:
        """Return the fastest measured plans, which include the best one according to the model."""
        return self._learned.model.describe([complete.plan for complete in self._learned.ranked[:MEASURED]])

    def _incumbent_point(self) -> Point:
        point = self._learned.ranked[0].point if self._learned.ranked else {}
        return {name: choices[0] for name, choices in self._space.choices.items()} | point

    def _changed(self, point: Mapping[str, Option], rng: np.random.Generator, times: int) -> Point:
        names = list(self._space.choices)
        changed = dict(point)
        for _ in range(times):
            name = names[int(rng.integers(len(names)))]
            choices = self._space.choices[name]
            changed[name] = choices[int(rng.integers(len(choices)))]
        return changed

    def _random_point(self, rng: np.random.Generator, point: Mapping[str, Option]) -> Point:
        """Return the point of a new plan a few random changes from ``point``, more if none is found."""
        full = {name: choices[0] for name, choices in self._space.choices.items()} | dict(point)
        changed = full
        for attempt in range(400):
            plan = self._space.plan(changed)
            if plan not in self._learned.seen and (attempt > 300 or self._learned.log_safe([plan])[0] > -math.inf):
                return changed
            changed = self._changed(full if attempt < 200 else changed, rng, 1 + attempt // 20)
        return remaining(self._space, self._learned.seen) or changed


def _best_saving(posterior: Posterior, best: Described) -> float:
    return float(posterior.predict_plans(best)[0].max(initial=0.0))


PARTITION = Strategy(
    "partition", partial(PartitionSampler, probes=True), persistent=True, takes_starting_points=True, learns=True
)
"""The default strategy of sktune."""
WITHOUT_PROBES = replace(PARTITION, name="without probes", factory=PartitionSampler)
"""Only proposes points of the space; for comparison."""
