"""The verdict: which plan wins, from the final comparison alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sktune.latency import compare
from sktune.outcome import Speedup
from sktune.plan import Plan

MOST_FINALISTS = 5
MOST_QUALIFIERS = 16
"""Trials, by their own figures, that are measured again to choose the finalists."""


@dataclass(frozen=True, slots=True)
class FinalPlan:
    """A plan in the final comparison, by the number of its trial."""

    number: int
    plan: Plan
    speedup: Speedup


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the search recommends.

    Attributes:
        winner: None where no plan beats the baseline with confidence: the answer is "no scope".
        ties: other plans that cannot be told apart from the winner, and are less simple or slower.
    """

    winner: FinalPlan | None
    ties: tuple[FinalPlan, ...]


def decide(plans: Sequence[FinalPlan], samples: Mapping[int, Sequence[float]], seed: int) -> Verdict:
    """Choose the simplest of the plans that cannot be told apart from the fastest.

    Args:
        plans: bit-identical finalists.
        samples: seconds per round by trial number, all from the same interleaved rounds.
        seed: of the bootstrap.
    """
    better = sorted((plan for plan in plans if plan.speedup.ci95[0] > 1.0), key=lambda p: p.speedup.ratio, reverse=True)
    if not better:
        return Verdict(None, ())
    fastest = better[0]
    rng = np.random.default_rng(seed)
    tied = [
        plan for plan in better if plan is fastest or _same_speed(samples[fastest.number], samples[plan.number], rng)
    ]
    winner = min(tied, key=lambda plan: (plan.plan.complexity, -plan.speedup.ratio))
    return Verdict(winner, tuple(plan for plan in tied if plan is not winner))


def _same_speed(fastest: Sequence[float], other: Sequence[float], rng: np.random.Generator) -> bool:
    """Whether the interval of their ratio holds 1."""
    ratio = compare(np.array([fastest, other]).T, 1, rng)
    return ratio.ci95[0] <= 1.0 <= ratio.ci95[1]
