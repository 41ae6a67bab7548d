"""Draws of what may be true of the effects, and the best plan under each of them."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sktune.learning.best_partition import Partitioner, Solution
from sktune.learning.evidence import Vector
from sktune.learning.history import Belief, Combination, Learned, Point
from sktune.learning.savings import Posterior, Singles

MOST_DRAWS = 16
LEAST_DRAWS = 2
MOST_WORK = 600_000
"""Segment classes times problems that are solved at once, so that a proposal takes some ten milliseconds."""
MOST_SAFE = 64
"""Plans put together of what hardly fails, where all else is too risky."""
LEAST_RISK = 0.02
"""Probability to fail that is always taken."""
AVERSIONS = (0.0, 0.1, 0.5, 2.0, 20.0)
"""What a unit of log risk costs, as a multiple of the incumbent's saving: one candidate for each."""


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
        most = max(12, MOST_WORK // len(catalogue.first))
        self.combinations = promising_options(learned, beliefs[0].posterior, rng, max(4, most // (LEAST_DRAWS + 1)))
        rounds = len(AVERSIONS) if learned.feasibility.has_risks else 1
        count = int(np.clip(most // (len(self.combinations) * rounds) - 1, LEAST_DRAWS, MOST_DRAWS))
        shares = list(zip(beliefs, rng.multinomial(count, [each.weight for each in beliefs]), strict=True))
        means = [each.posterior.mean for each in beliefs]
        self.effects = np.vstack([*means, *(each.posterior.draw(share, rng, width) for each, share in shares)])
        self._options = [combination.of_scope for combination in self.combinations]
        none = np.zeros((len(catalogue.first), len(beliefs)), np.float32)
        unknown = np.hstack([none, *(each.posterior.draw_unknown(share, rng, width) for each, share in shares)])
        unknown = np.repeat(unknown, len(self._options), axis=1)
        self._value: Singles = model.value(self.effects, self._options) + unknown
        self._cut = model.cut(self.effects, len(self._options))
        steps = [model.step_value(self.effects, combination.of_step) for combination in self.combinations]
        self._beside = np.column_stack(steps)
        self._log_safe = learned.feasibility.log_safe(self._options) if learned.feasibility.has_risks else None
        self._most_saved = max(1e-3, learned.ranked[0].saving if learned.ranked else 0.0)

    def solve(self, aversions: Sequence[float]) -> list[tuple[Vector, Callable[[int, int], Point]]]:
        """Return for each aversion the best total by draw and combination of options, and what makes a point of one."""
        values = [self._value] * len(aversions)
        if self._log_safe is not None:
            risk = np.tile(self._most_saved * self._log_safe, (1, len(self.effects)))
            values = [self._value + (max(aversion, 1e-9) * risk).astype(np.float32) for aversion in aversions]
        solution = self._partitioner.solve(np.hstack(values), np.hstack([self._cut] * len(aversions)))
        scores = solution.score.reshape(len(aversions), *self._beside.shape)
        return [(score + self._beside, partial(self._decode, solution, number)) for number, score in enumerate(scores)]

    def safe(self, rng: np.random.Generator) -> list[Point]:
        """Return points put together at random of what hardly fails, good or bad: there may be nothing else."""
        assert self._log_safe is not None
        index = rng.integers(len(self._options), size=min(MOST_SAFE, self._value.shape[1]))
        chance = rng.standard_normal((len(self._value), len(index)), dtype=np.float32)
        value = np.where(self._log_safe[:, index] > math.log1p(-LEAST_RISK), chance, -np.inf).astype(np.float32)
        solution = self._partitioner.solve(value, np.zeros((len(self._cut), len(index))))
        return [{**solution.decode(number), **self.combinations[own].point} for number, own in enumerate(index)]

    def _decode(self, solution: Solution, number: int, draw: int, index: int) -> Point:
        count = len(self._options)
        decoded = solution.decode(number * self._value.shape[1] + draw * count + index)
        return {**decoded, **self.combinations[index].point}


def promising_options(learned: Learned, posterior: Posterior, rng: np.random.Generator, most: int) -> list[Combination]:
    """Return all combinations of options; where these are too many, those that draws prefer for the incumbent."""
    if len(learned.combinations) <= most:
        return learned.combinations
    kept = [segment for segment, _ in learned.keys(learned.incumbent)]
    # While nothing works, single units stand in for the incumbent's scopes.
    segments = np.array(kept or np.flatnonzero(learned.catalogue.first == learned.catalogue.last), dtype=np.int64)
    effects = np.vstack([posterior.mean, posterior.draw(MOST_DRAWS, rng)])
    options = [combination.of_scope for combination in learned.combinations]
    value = learned.model.value(effects, options, segments).sum(axis=0).reshape(len(effects), -1)
    steps = [learned.model.step_value(effects, combination.of_step) for combination in learned.combinations]
    ranked = np.argsort(-(value + np.column_stack(steps)), axis=1, kind="stable").T.ravel()
    return [learned.combinations[index] for index in list(dict.fromkeys(ranked.tolist()))[:most]]
