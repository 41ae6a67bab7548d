"""A sampler around another one that never proposes a plan twice."""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from sktune.core.plan import Option, Plan
from sktune.core.space import SearchSpace
from sktune.study.strategy import SamplerFactory, distributions, seed_of_trial

MAX_PROPOSALS = 8
"""How often the inner sampler may propose a known plan before its proposal is changed at random."""
MAX_CHANGES = 200
SMALL_SPACE = 20_000
"""Largest number of points in a space that is searched exhaustively for an unknown plan."""


class DistinctSampler(BaseSampler):
    """Asks an inner sampler, and only proposes new plans.

    Args:
        space: of the study.
        factory: makes the inner sampler.
        seed: of the search.
        seen: returns the known plans; called for every proposal.
    """

    def __init__(
        self, space: SearchSpace, factory: SamplerFactory, seed: int, seen: Callable[[], Collection[Plan]]
    ) -> None:
        self._space, self._factory, self._seed, self._seen = space, factory, seed, seen
        self._distributions = distributions(space)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All parameters are proposed together."""
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a point with a new plan, if there is one."""
        seed = seed_of_trial(self._seed, trial.number)
        inner = self._factory(self._space, seed)
        rng = np.random.default_rng(seed)
        seen = {*self._seen(), Plan()}
        values: dict[str, Any] = {}
        for _ in range(MAX_PROPOSALS):
            before, values = values, self._complete(inner, study, trial, search_space)
            if self._space.plan(values) not in seen:
                return values
            if values == before:
                break  # a procedure at its end keeps repeating its last point
        for _ in range(MAX_CHANGES):
            values = self._changed(values, rng)
            if self._space.plan(values) not in seen:
                return values
        return remaining(self._space, seen) or values

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Leave parameters that are not part of the space to the inner sampler."""
        inner = self._factory(self._space, seed_of_trial(self._seed, trial.number))
        return inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Notify the inner sampler."""
        self._factory(self._space, seed_of_trial(self._seed, trial.number)).after_trial(study, trial, state, values)

    def _complete(
        self, inner: BaseSampler, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Ask for all parameters together, and one by one for those that are left out."""
        together = inner.sample_relative(study, trial, search_space)
        return {
            name: together[name] if name in together else inner.sample_independent(study, trial, name, distribution)
            for name, distribution in search_space.items()
        }

    def _changed(self, values: Mapping[str, Option], rng: np.random.Generator) -> dict[str, Option]:
        names = list(self._space.choices)
        name = names[rng.integers(len(names))]
        choices = self._space.choices[name]
        return {**values, name: choices[rng.integers(len(choices))]}


def remaining(space: SearchSpace, seen: Collection[Plan]) -> dict[str, Option] | None:
    """Return a point of a small space whose plan is not in ``seen``; None if there is none or the space is large."""
    points = math.prod(len(choices) for choices in space.choices.values())
    if points > SMALL_SPACE:
        return None
    for point in itertools.product(*space.choices.values()):
        values = dict(zip(space.choices, point, strict=True))
        if space.plan(values) not in seen:
            return values
    return None
