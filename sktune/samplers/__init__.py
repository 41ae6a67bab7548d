"""Samplers: what proposes the next point. The seam is Optuna's own ``BaseSampler``.

A sampler is made anew for every trial, from a seed that belongs to the trial's number: a study that is killed
and resumed proposes what it would have proposed.
"""

import hashlib
import importlib
from collections.abc import Callable, Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler

from sktune.errors import BadInputError, nearest
from sktune.space import SearchSpace

SamplerFactory = Callable[[SearchSpace, int], BaseSampler]
"""Makes a sampler from a space and a seed."""

PREFIX = "sktune:"
"""Of the attributes that sktune gives to trials and studies."""
OUTCOME = PREFIX + "outcome"
PROBE = PREFIX + "probe"
"""Attributes of a trial: its outcome, and the plan that it tries instead of its parameters' own."""


def _tpe(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)


def _random(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    return optuna.samplers.RandomSampler(seed=seed)


SAMPLERS: Mapping[str, SamplerFactory] = {"tpe": _tpe, "random": _random}


def sampler_factory(name: str) -> SamplerFactory:
    """Return the factory of a built-in sampler, or of the user's own as ``module:function``.

    Raises:
        BadInputError: no such sampler.
    """
    if name in SAMPLERS:
        return SAMPLERS[name]
    module, colon, function = name.partition(":")
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
