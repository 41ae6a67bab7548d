"""What a measurement is worth: how much better the plan that is recommended after it is than the one that is now.

This is the knowledge gradient (Frazier, Powell and Dayanik 2009, "The knowledge-gradient policy for correlated normal
beliefs", INFORMS Journal on Computing 21:4, section 2). It knows that plans share scopes and options: a plan that
nearly equals a measured one tells little, however uncertain both are.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from sktune.core.plan import Plan
from sktune.learning.evidence import Vector
from sktune.learning.history import Belief, CompletePlan, Learned, own_effects
from sktune.learning.observations import Described
from sktune.learning.savings import Posterior

MEASURED = 20
"""Number of the fastest measured plans that may be recommended, or measured again."""
REPEAT_MARGIN = 2.0
"""A repeat has to be worth this many times as much as a new plan, which also teaches about plans not yet tried."""
MIN_REPEAT_VALUE = 1e-5
"""As a share of the baseline."""
_NORMAL = ndtri((np.arange(16) + 0.5) / 16)
"""Equally probable values of a standard normal variable."""


class Worth:
    """The worth of measurements, given what was learned and the ``beliefs`` about it.

    Plans that are ``running`` will be known, so they may be recommended, too: without that, a twin of the best of them
    would seem to be worth all that both are expected to save.
    """

    def __init__(self, learned: Learned, beliefs: Sequence[Belief], running: Sequence[Plan] = ()) -> None:
        self._learned, self._beliefs = learned, beliefs
        self._measured = learned.ranked[:MEASURED]
        counts = Counter(running)
        repeated = {complete.plan for complete in learned.ranked} if counts else set()
        fresh = [plan for plan in counts if plan not in repeated]
        self._known = [*self._measured, *self._unmeasured(fresh)]
        self._running = np.array([float(counts[complete.plan]) for complete in self._known])
        self._described = learned.model.describe([complete.plan for complete in self._known])

    def _unmeasured(self, plans: Sequence[Plan]) -> list[CompletePlan]:
        return [CompletePlan(0.0, self._learned.noise_sd, plan, {}, measurements=0.0) for plan in plans]

    def of_new(self, plans: Sequence[Plan]) -> Vector:
        """Return what measuring each of some new plans is worth, as a share of the baseline."""
        return self._mean(self._learned.model.describe(plans), self._unmeasured(plans))

    def plan_to_repeat(self, worth_of_new: float) -> CompletePlan | None:
        """Return the plan to measure again instead of a new one; None if none is worth it, or figures are exact.

        Args:
            worth_of_new: of the plan that would be tried otherwise.
        """
        if not self._measured or not self._measured[0].noise_sd:
            return None
        worth = self._mean(self._described, self._known)[: len(self._measured)]
        best = int(worth.argmax())
        limit = max(MIN_REPEAT_VALUE, REPEAT_MARGIN * worth_of_new)
        return self._measured[best] if worth[best] > limit else None

    def _mean(self, described: Described, plans: Sequence[CompletePlan]) -> Vector:
        weighted = [belief.weight * self._of(belief.posterior, described, plans) for belief in self._beliefs]
        mean: Vector = np.sum(weighted, axis=0)
        return mean

    def _of(self, posterior: Posterior, described: Described, plans: Sequence[CompletePlan]) -> Vector:
        is_known = described is self._described
        known_mean, known_spread, known_variance = _prediction(posterior, self._described, self._known, self._running)
        mean, spread, variance = known_mean, known_spread, known_variance
        if not is_known:
            mean, spread, variance = _prediction(posterior, described, plans)
        covariance = known_spread.T @ spread
        if is_known:
            np.fill_diagonal(covariance, known_variance)
        scale = np.sqrt(variance + np.array([complete.noise_sd for complete in plans]) ** 2)
        # By plan and result; no plan at all saves nothing.
        best = np.maximum(0.0, mean[:, None] + (variance / scale)[:, None] * _NORMAL)
        if len(known_mean):
            change = (covariance / scale)[:, :, None] * _NORMAL
            best = np.maximum(best, (known_mean[:, None, None] + change).max(axis=0))
        worth: Vector = best.mean(axis=1) - known_mean.max(initial=0.0)
        return worth


def _prediction(
    posterior: Posterior, described: Described, plans: Sequence[CompletePlan], running: Vector | None = None
) -> tuple[Vector, Vector, Vector]:
    """Return mean, spread and variance of what plans save, with their own effects; ``running`` measurements of them
    only make it more certain."""
    mean = described.rows @ posterior.mean
    share, left = own_effects(posterior.chosen.step_noise, plans)
    if running is not None and running.any():
        pairs = zip(plans, running, strict=True)
        ended = [replace(plan, measurements=plan.measurements + count) for plan, count in pairs]
        _, left = own_effects(posterior.chosen.step_noise, ended)
    mean += share * (np.array([complete.saving for complete in plans]) - mean)
    spread = posterior.spread(described.rows)
    return mean, spread, (spread**2).sum(axis=0) + posterior.unknown_variance(described) + left
