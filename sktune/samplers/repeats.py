"""Repeats: trials that measure a plan again, where that is worth more than a new plan.

The value of a measurement is how much better the plan is that would be recommended after it than the one that is
recommended now (the knowledge gradient; Frazier, Powell and Dayanik 2009, "The knowledge-gradient policy for
correlated normal beliefs", INFORMS Journal on Computing 21:4, section 2). All plans share the effects of the segment
model, so that another plan with the same segments often tells as much; a repeat pays where plans have large effects of
their own.
"""

from collections.abc import Collection, Sequence

import numpy as np
from scipy.special import ndtri

from sktune.core.plan import Plan
from sktune.learning.evidence import Vector
from sktune.learning.history import Belief, CompletePlan, Learned, own_effects

CANDIDATES = 20
"""Number of the fastest measured plans that may be measured again."""
MARGIN = 2.0
"""A repeat has to be worth this many times as much as the new plan, which also teaches about plans not yet tried."""
MIN_VALUE = 1e-5
"""Least value of a repeat, as a share of the baseline."""
_NORMAL = ndtri((np.arange(32) + 0.5) / 32)
"""Equally probable values of a standard normal variable."""


def plan_to_repeat(
    learned: Learned, beliefs: Sequence[Belief], new: Plan, running: Collection[Plan]
) -> CompletePlan | None:
    """Return the plan to measure again instead of trying ``new``; None if none is worth it, or figures are exact.

    Args:
        learned: from the trials so far.
        beliefs: about the effects.
        new: the plan that would be tried otherwise.
        running: plans that are being measured; they are not repeated.
    """
    plans = [complete for complete in learned.ranked[:CANDIDATES] if complete.plan not in running]
    if not plans or not plans[0].noise_sd:
        return None
    plans.append(CompletePlan(0.0, plans[0].noise_sd, new, {}, measurements=0.0))
    values = sum(belief.weight * _values(learned, belief, plans) for belief in beliefs)
    assert isinstance(values, np.ndarray)
    best = int(values[:-1].argmax())
    return plans[best] if values[best] > max(MIN_VALUE, MARGIN * values[-1]) else None


def _values(learned: Learned, belief: Belief, plans: Sequence[CompletePlan]) -> Vector:
    """Return the value of measuring each plan, as a share of the baseline; the last plan was not measured yet."""
    posterior = belief.posterior
    described = learned.model.describe([complete.plan for complete in plans])
    mean, _ = posterior.predict_plans(described)
    share, left = own_effects(posterior.chosen.step_noise, plans)
    mean += share * (np.array([complete.saving for complete in plans]) - mean)
    covariance = posterior.covariance(described) + np.diag(left)
    noise_sd = np.array([complete.noise_sd for complete in plans])
    change = covariance / np.sqrt(np.diag(covariance) + noise_sd**2)
    after = mean[:, None, None] + change[:, :, None] * _NORMAL  # plan, measured plan, result
    best = after[:-1].max(axis=0)
    best[-1] = np.maximum(best[-1], after[-1, -1])  # only a measured plan can be recommended
    values: Vector = best.mean(axis=1) - mean[:-1].max()
    return values
