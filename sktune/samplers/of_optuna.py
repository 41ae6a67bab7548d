"""Optuna's own samplers, on the parameters of the space."""

import optuna
from optuna.samplers import BaseSampler

from sktune.core.space import SearchSpace
from sktune.study.strategy import Strategy

RANDOM_TRIALS = 6
"""Trials, including starting points, before Optuna's model proposes any."""


def _tpe(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)


def _gp(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=RANDOM_TRIALS)


def _random(space: SearchSpace, seed: int) -> BaseSampler:  # noqa: ARG001
    return optuna.samplers.RandomSampler(seed=seed)


TPE = Strategy("tpe", _tpe)
"""The tree-structured Parzen estimator."""
GP = Strategy("gp", _gp)
"""The Gaussian process."""
RANDOM = Strategy("random", _random)
"""Every parameter drawn independently."""
