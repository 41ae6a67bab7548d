"""Samplers: what proposes the next point. The seam is Optuna's own ``BaseSampler``.

A sampler is made anew for every trial, from a seed that belongs to the trial's number, or keeps to such seeds by
itself. It derives what it proposes from the study's trials alone: a study that is killed and resumed proposes what it
would have proposed, and one that was begun with another strategy is continued.
"""

import hashlib
import importlib
from collections.abc import Callable, Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler

from sktune.core.errors import BadInputError, nearest
from sktune.core.space import SearchSpace

SamplerFactory = Callable[[SearchSpace, int], BaseSampler]
"""Makes a sampler from a space and a seed."""

RANDOM_TRIALS = 6
"""Trials, starting points among them, before a model of Optuna's proposes."""


SAMPLERS: Mapping[str, str] = {
    "partition": "sktune.samplers.partition:ProbingSampler",
    "tpe": "sktune.samplers:tpe",
    "gp": "sktune.samplers:gp",
    "random": "sktune.samplers:random",
    "grid": "sktune.samplers.grid:grid",
    "bottom-up": "sktune.samplers.guide:bottom_up",
    "top-down": "sktune.samplers.guide:top_down",
    "profile": "sktune.samplers.guide:by_profile",
}
"""The factory of each built-in strategy, as module:function."""

BEGINS_ALONE = frozenset({"grid", "bottom-up", "top-down", "profile"})
"""Strategies that decide themselves what comes first: starting points queued before them would make them others."""


def tpe(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    """Return Optuna's tree-structured Parzen estimator."""
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)


def gp(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    """Return Optuna's Gaussian process."""
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=RANDOM_TRIALS)


def random(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    """Return a sampler that draws every parameter by itself."""
    return optuna.samplers.RandomSampler(seed=seed)


def sampler_factory(name: str) -> SamplerFactory:
    """Return the factory of a built-in strategy, or of the user's own as ``module:function``.

    Raises:
        BadInputError: no such strategy.
    """
    module, colon, function = SAMPLERS.get(name, name).partition(":")
    if not colon:
        raise BadInputError(f"unknown strategy {name!r}{nearest(name, SAMPLERS)} (or module:function of your own)")
    try:
        factory: SamplerFactory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as failure:
        raise BadInputError(
            f"--strategy {name}: {failure}; give module:function, a function of a space and a seed"
        ) from failure
    return factory


def seed_of_trial(seed: int, number: int) -> int:
    """Return the seed of trial ``number`` in a search with ``seed``: 32 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big")


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the space as Optuna's categoricals."""
    return {name: CategoricalDistribution(choices) for name, choices in space.choices.items()}
