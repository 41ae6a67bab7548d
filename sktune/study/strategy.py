"""Strategies: what a study has to know of that which proposes its plans, whoever wrote it.

The seam is Optuna's own ``BaseSampler``, made from a space and a seed. A sampler derives what it proposes from the
study's trials and from seeds that belong to their numbers: a study that is killed and resumed proposes what it would
have proposed, and one that was begun with another strategy is continued. No sampler has to see to it that a plan is
proposed only once: the study does, unless the strategy is ``persistent``.
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
    """What proposes plans, and how a study uses it.

    Attributes:
        name: as users and the origin of a trial give it.
        factory: makes the sampler: for each trial with the trial's own seed; where it is ``persistent``, once with the
            search's seed.
        starts_alone: whether it decides itself what comes first: starting points before it would make it another
            strategy.
        persistent: whether one sampler proposes all trials of a search and goes on learning. It has to see to it
            itself that no plan is proposed twice, and to take the seed of each trial from its number.
        takes_starting_points: whether it proposes the space's starting points itself, so that nobody has to queue them.
    """

    name: str
    factory: SamplerFactory
    starts_alone: bool = False
    persistent: bool = False
    takes_starting_points: bool = False


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the space as Optuna's categoricals."""
    return {name: CategoricalDistribution(choices) for name, choices in space.choices.items()}


def seed_of_trial(seed: int, number: int) -> int:
    """Return the seed of trial ``number`` in a search with ``seed``: 32 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big")
