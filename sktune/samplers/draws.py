"""Draws of the effects from their posterior, and the best plan under each draw."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sktune.learning.best_partition import Partitioner, Solution
from sktune.learning.evidence import Vector
from sktune.learning.history import Belief, Combination, Learned, Point
from sktune.learning.savings import Posterior, Singles

MAX_DRAWS = 16
MIN_DRAWS = 2
MAX_WORK = 600_000
"""Segment classes times problems that are solved in one batch, so that a proposal takes some ten milliseconds."""
MAX_SAFE = 64
"""Number of plans composed of safe scopes, if all others are too risky."""
MIN_RISK = 0.02
"""Probability of failure that is always accepted."""
AVERSIONS = (0.0, 0.1, 0.5, 2.0, 20.0)
"""Costs of a unit of log risk, as multiples of the incumbent's saving: one candidate for each."""


class Draws:
    """Draws of the effects, the beliefs' means first, and the best plans under each of them."""

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
        shares = list(zip(beliefs, rng.multinomial(count, [belief.weight for belief in beliefs]), strict=True))
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
