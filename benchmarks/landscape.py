"""Landscapes, and the replay of a search on one.

A landscape knows the true latency of every plan of a search space, so a search on it takes no time and its
incumbents can be compared with the optimum. The replay is a real Optuna study in memory that is used like that of
``sktune.study.study.TuningStudy``; noise is added here, from the seed.
"""

import math
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
import optuna
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from sktune.core.codec import decoded, encoded
from sktune.core.fused_scopes import FusedScope
from sktune.core.outcome import Outcome, Reason, ScopeTime, Speedup
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace
from sktune.learning.attributes import ORIGIN, OUTCOME, PREFIX, PROBE, REPEAT
from sktune.study.strategy import Strategy

P = ParamSpec("P")
T = TypeVar("T")

PROPOSAL = PREFIX + "proposal"
SCOPE_TIME_NOISE = 0.02
"""Relative standard deviation of the measured time of one scope or gap."""
FAILURES = (Reason.COMPILE_FAILED, Reason.TIMEOUT, Reason.CRASHED, Reason.MISMATCH)


@dataclass(frozen=True, slots=True)
class Truth:
    """The true result of one plan, without noise.

    Attributes:
        latency_ms: of the decode step; None if the plan fails.
        reason: one of ``FAILURES`` if the plan fails; otherwise None.
        blamed: label of the scope that is reported to be at fault; empty if unknown.
        changes_bits: labels of all scopes that change bits, if each can be compared alone; ``blamed`` is the first.
        scope_times: of each scope and each gap, in execution order; empty if they cannot be observed. A plan that
            compiles and changes bits may have them, too.
        fused: what the scopes became, if that is known.
    """

    latency_ms: float | None
    reason: Reason | None = None
    blamed: str = ""
    changes_bits: tuple[str, ...] = ()
    scope_times: tuple[ScopeTime, ...] = ()
    fused: tuple[FusedScope, ...] = ()


class Landscape(Protocol):
    """A search space and the truth about its plans.

    ``evaluate`` accepts every plan whose scopes fit the layout and have options of the space: all plans of the space,
    and probes, in which layers of the same kind differ, also in options. It returns the same in every process.
    """

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    @property
    def space(self) -> SearchSpace:
        """The search space; every search begins with its starting points."""
        ...

    @property
    def baseline_ms(self) -> float:
        """True latency of the empty plan."""
        ...

    @property
    def best_ms(self) -> float:
        """True latency of the best plan of the space that does not fail."""
        ...

    @property
    def noise(self) -> float:
        """Relative standard deviation of one measured latency."""
        ...

    def evaluate(self, plan: Plan) -> Truth:
        """Return the true result of ``plan``."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """One search on a landscape; every sequence has one entry for each trial, in the order in which they ended.

    Attributes:
        gains: share of the achievable gain that the incumbent reaches, by its true latency: 1 is the optimum, 0 the
            baseline. The incumbent is the complete plan with the largest expected saving, if the sampler has
            ``expected_savings``; otherwise the one with the lowest measured latency.
        ask_s: seconds that the sampler itself took to propose; 0 for starting points.
        failed: whether the plan failed.
        probe: whether the trial was a probe.
        plans: that were evaluated.
        trials: as Optuna stores them; empty if it did not search.
    """

    gains: tuple[float, ...]
    ask_s: tuple[float, ...]
    failed: tuple[bool, ...]
    probe: tuple[bool, ...]
    plans: tuple[Plan, ...]
    trials: Sequence[FrozenTrial] = ()


def replay(
    landscape: Landscape,
    strategy: Strategy,
    trials: int,
    seed: int,
    scope_times: bool = True,
    workers: int = 1,
    by_figure: bool = False,
    enough: float = math.inf,
) -> Run:
    """Search ``landscape`` for ``trials`` trials, including starting points.

    Args:
        landscape: to search.
        strategy: to search with; its sampler is made once.
        trials: number of plans to evaluate; one that is proposed again counts again, with its stored outcome unless the
            sampler wants it measured again.
        seed: of the sampler and of the noise; a plan's noise depends only on the seed, the plan and how often it was
            measured.
        scope_times: whether the sampler sees the times of scopes and gaps.
        workers: number of concurrent trials; the one that was asked for first ends first.
        by_figure: whether the incumbent is the plan with the lowest measured latency, whatever the sampler expects.
        enough: share of the achievable gain, with which the incumbent ends the search.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    record = Record(landscape, seed, scope_times)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        sampler = _Timed(strategy.factory(landscape.space, seed))
        search = _Search(landscape.space, sampler, record, by_figure)
        if not strategy.takes_starting_points:
            search.queue_starting_points()
        running: deque[_Asked] = deque()
        for _ in range(trials):
            running.append(search.ask())
            if len(running) == workers:
                search.tell(running.popleft())
                if record.gain >= enough:
                    break
        while running:
            search.tell(running.popleft())
    return replace(record.run, trials=search.trials)


def gain(landscape: Landscape, latency_ms: float) -> float:
    """Return the share of the achievable gain that a true latency reaches."""
    return (landscape.baseline_ms - latency_ms) / (landscape.baseline_ms - landscape.best_ms)


class Record:
    """The trials of one search: measures plans, and collects a ``Run``.

    Args:
        landscape: that is searched.
        seed: of the noise.
        scope_times: whether outcomes have the times of scopes and gaps.
    """

    def __init__(self, landscape: Landscape, seed: int, scope_times: bool = True) -> None:
        self._landscape, self._seed, self._scope_times = landscape, seed, scope_times
        self._known: dict[Plan, tuple[Outcome, float | None]] = {}
        self._repeats = Counter[Plan]()
        self._rows: list[tuple[float, float, bool, bool, Plan]] = []
        self._complete: dict[Plan, tuple[float, float]] = {}
        """Measured and true latency of the plans that may be the incumbent."""

    @property
    def run(self) -> Run:
        """All trials so far."""
        gains, ask_s, failed, probe, plans = zip(*self._rows, strict=True)
        return Run(gains, ask_s, failed, probe, plans)

    @property
    def gain(self) -> float:
        """Share of the achievable gain that the incumbent reaches now."""
        return self._rows[-1][0]

    def __contains__(self, plan: Plan) -> bool:
        return plan in self._known

    def judge(self, plan: Plan) -> Outcome:
        """Return the outcome of ``plan``; the stored one if there is one."""
        if plan not in self._known:
            self._known[plan] = self._measured(plan), self._landscape.evaluate(plan).latency_ms
        return self._known[plan][0]

    def judge_again(self, plan: Plan) -> Outcome:
        """Return the outcome of another measurement of ``plan``."""
        self._repeats[plan] += 1
        return self._measured(plan)

    def _measured(self, plan: Plan) -> Outcome:
        truth = self._landscape.evaluate(plan)
        return measured(self._landscape, plan, truth, self._seed, self._scope_times, self._repeats[plan])

    def add(
        self, plan: Plan, ask_s: float, *, is_probe: bool = False, expected: Mapping[Plan, float] | None = None
    ) -> Outcome:
        """Count a trial, and return its outcome; ``expected`` are the expected savings of plans."""
        outcome, (_, true_ms) = self.judge(plan), self._known[plan]
        if outcome.is_complete and not is_probe:
            assert outcome.speedup is not None and true_ms is not None
            self._complete[plan] = outcome.speedup.latency_ms, true_ms
        true_ms = self._landscape.baseline_ms
        if expected is None:
            _, true_ms = min(self._complete.values(), default=(0.0, true_ms))
        elif self._complete:
            true_ms = self._complete[max(self._complete, key=lambda each: expected.get(each, -np.inf))][1]
        self._rows.append((gain(self._landscape, true_ms), ask_s, outcome.reason in FAILURES, is_probe, plan))
        return outcome


@dataclass(frozen=True, slots=True)
class _Asked:
    trial: Trial
    plan: Plan
    is_probe: bool
    is_repeat: bool
    ask_s: float


class _Search:
    def __init__(self, space: SearchSpace, sampler: "_Timed", record: Record, by_figure: bool) -> None:
        self._space, self._sampler, self._record, self._by_figure = space, sampler, record, by_figure
        self._study = optuna.create_study(direction="minimize", sampler=sampler)

    @property
    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def queue_starting_points(self) -> None:
        for point in self._space.starting_points:
            self._study.enqueue_trial(dict(point.values), user_attrs={ORIGIN: point.name})

    def ask(self) -> _Asked:
        self._sampler.spent_s = 0.0
        trial = self._study.ask()
        for name, choices in self._space.choices.items():
            trial.suggest_categorical(name, choices)
        # The trial keeps a copy of its attributes, made before the sampler set any.
        attributes = self._study.get_trials(deepcopy=False)[trial.number].user_attrs
        is_probe = PROBE in attributes
        plan = decoded(Plan, attributes[PROBE]) if is_probe else self._space.plan(trial.params)
        origin = attributes.get(ORIGIN, "sampler")
        trial.set_user_attr(PROPOSAL, {"plan": encoded(plan), "origin": origin, "attempts": 1})
        return _Asked(trial, plan, is_probe, REPEAT in attributes, self._sampler.spent_s)

    def tell(self, asked: _Asked) -> None:
        record = self._record
        outcome = record.judge_again(asked.plan) if asked.is_repeat else record.judge(asked.plan)
        trial = asked.trial
        trial.set_user_attr(OUTCOME, encoded(outcome))
        trial.set_constraint("feasible", 0.0 if outcome.is_feasible else 1.0)
        if outcome.is_complete and not asked.is_probe:
            assert outcome.speedup is not None
            self._study.tell(trial, outcome.speedup.latency_ms)
        else:
            # A probe's latency is not that of its parameters.
            if outcome.speedup is not None and not asked.is_probe:
                trial.report(outcome.speedup.latency_ms, step=0)
            self._study.tell(trial, state=TrialState.PRUNED)
        expected = None if self._by_figure else self._sampler.expected_savings(self._study.get_trials(deepcopy=False))
        record.add(asked.plan, asked.ask_s, is_probe=asked.is_probe, expected=expected)


def measured(
    landscape: Landscape, plan: Plan, truth: Truth, seed: int, scope_times: bool = True, repeat: int = 0
) -> Outcome:
    """Return ``truth`` as a trial would measure it: with noise, and pruned if it is significantly slower.

    ``repeat`` is the number of earlier measurements of the same plan.
    """
    if plan.is_baseline:
        return Outcome(Reason.SLOWER, "the plan has no scope: it is the baseline")
    rng = np.random.default_rng([seed, int(plan.digest[:16], 16), *[repeat] * (repeat > 0)])
    if truth.latency_ms is None:
        pieces = _noisy(truth.scope_times, rng) if scope_times else ()
        why = "fails in this landscape"
        return Outcome(
            truth.reason, why, blamed=truth.blamed, changes_bits=truth.changes_bits, scope_times=pieces,
            fused=truth.fused,
        )  # fmt: skip
    latency_ms = truth.latency_ms * (1 + landscape.noise * rng.standard_normal())
    ratio = landscape.baseline_ms / latency_ms
    halfwidth = 1.96 * landscape.noise * ratio
    speedup = Speedup(landscape.baseline_ms, latency_ms, ratio, (ratio - halfwidth, ratio + halfwidth), rounds=60)
    reason = Reason.SLOWER if speedup.bounds[1] < 1.0 else None
    pieces = _noisy(truth.scope_times, rng) if scope_times else ()
    return Outcome(reason, speedup=speedup, scope_times=pieces, fused=truth.fused)


def _noisy(pieces: Sequence[ScopeTime], rng: np.random.Generator) -> tuple[ScopeTime, ...]:
    factors = 1 + SCOPE_TIME_NOISE * rng.standard_normal(len(pieces))
    return tuple(
        ScopeTime(piece.first, piece.last, piece.in_scope, piece.baseline_ms, float(piece.latency_ms * factor))
        for piece, factor in zip(pieces, factors, strict=True)
    )


class _Timed(BaseSampler):
    """A sampler, and the seconds that it spends on proposals."""

    def __init__(self, inner: BaseSampler) -> None:
        self._inner = inner
        self.spent_s = 0.0

    def expected_savings(self, trials: Sequence[FrozenTrial]) -> dict[Plan, float] | None:
        """Return the expected savings of plans; None if the sampler has none."""
        expected: dict[Plan, float] | None = getattr(self._inner, "expected_savings", lambda trials: None)(trials)
        return expected

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._timed(self._inner.infer_relative_search_space, study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._timed(self._inner.sample_relative, study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._timed(self._inner.sample_independent, study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._timed(self._inner.before_trial, study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)

    def _timed(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        began = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            self.spent_s += time.perf_counter() - began
