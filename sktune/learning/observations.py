"""The values that the model of savings takes and returns: observations, hyperparameters, and plans as rows."""

from dataclasses import dataclass

from sktune.core.plan import Options, Plan
from sktune.learning.evidence import Vector


@dataclass(frozen=True, slots=True)
class ScopeSaving:
    """The saving of one class of segments in a trial: mean over its scopes, as a share of the baseline step."""

    segment: int
    options: Options
    saving: float
    noise_sd: float


@dataclass(frozen=True, slots=True)
class Observation:
    """The measurements of one trial.

    Attributes:
        plan: that ran.
        saving: of the step, as a share of the baseline; None if only single scopes count.
        noise_sd: of ``saving``.
        scopes: savings of single scopes.
    """

    plan: Plan
    saving: float | None
    noise_sd: float
    scopes: tuple[ScopeSaving, ...] = ()


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The parameters chosen by the evidence.

    Attributes:
        unit_sd: typical saving of one unit, as a share of the baseline step.
        segment_ratio: spread of a segment class's own effect, in units of ``unit_sd`` times the root of its length.
        step_noise, scope_noise: factor from the stated noise to the actual one, including misfit of the model.
        option_ratio: factor from the stated spread of the effects of options to the actual one.
        follows_law: whether scopes save what the law of SuperKernels says, and the other effects what it does not.
        beyond_law: factor from the stated spread of the law's further terms to the actual one.
    """

    unit_sd: float
    segment_ratio: float = 0.5
    step_noise: float = 1.0
    scope_noise: float = 1.0
    option_ratio: float = 1.0
    follows_law: bool = False
    beyond_law: float = 1.0


@dataclass(frozen=True, slots=True)
class Described:
    """Plans as rows of the linear model.

    Attributes:
        rows: shape (n_plans, n_effects); their product with the effects is the savings of the plans.
        unknown: shape (n_plans,); over the plan's classes of segments without observations, the sum of length times
            squared count, to which the variance that they add is proportional.
    """

    rows: Vector
    unknown: Vector
