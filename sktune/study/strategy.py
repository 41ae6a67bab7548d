"""Strategies: the interface between a study and the sampler that proposes its plans.

A sampler is an Optuna ``BaseSampler``, made from a space and a seed. It derives proposals from the study's trials and
from seeds that follow from their numbers: a study that is killed and resumed proposes what it would have proposed, and
a study started with another strategy can be continued. Samplers need not avoid duplicate plans: the study does, unless
the strategy is ``persistent``.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler

from sktune.core.space import SearchSpace

SamplerFactory = Callable[[SearchSpace, int], BaseSampler]
"""Makes a sampler from a space and a seed."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A sampler of plans, and how a study uses it.

    Attributes:
        name: for users, and as the origin of trials.
        factory: makes the sampler: for each trial with that trial's seed, or, if ``persistent``, once with the seed of
            the search.
        starts_alone: whether the search must not try starting points first, as the strategy defines what comes first.
        persistent: whether one sampler proposes all trials of a search and keeps learning. It must avoid duplicate
            plans itself, and derive the seed of each trial from the trial's number.
        takes_starting_points: whether it proposes the space's starting points itself, so that they are not queued.
        learns: whether it makes use of the space's earlier studies.
    """

    name: str
    factory: SamplerFactory
    starts_alone: bool = False
    persistent: bool = False
    takes_starting_points: bool = False
    learns: bool = False


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the space as Optuna's categoricals."""
    return {name: CategoricalDistribution(choices) for name, choices in space.choices.items()}


def seed_of_trial(seed: int, number: int) -> int:
    """Return the seed of trial ``number`` in a search with ``seed``: 32 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big")
