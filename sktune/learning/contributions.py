"""What a plan's saving is made of, and how well savings are predicted: the model looked at from outside."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sktune.core.plan import Plan, options_text
from sktune.learning.evidence import Vector
from sktune.learning.history import Learned
from sktune.learning.savings import MIN_NOISE, Posterior

OTHERS = "borders between scopes, capture"


@dataclass(frozen=True, slots=True)
class Contribution:
    """A part of a plan's saving.

    Attributes:
        name: a class of scopes, an option (``name=value``), or ``OTHERS``.
        scopes: number of scopes in the class; 0 for an option.
        saving, sd: mean and standard deviation, as shares of the baseline step.
    """

    name: str
    scopes: int
    saving: float
    sd: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured plan, and what the model expects of it from the other trials.

    Attributes:
        plan: that was measured.
        saving: measured, as a share of the baseline step.
        expected, sd: predictive mean and standard deviation, measurement noise included.
    """

    plan: Plan
    saving: float
    expected: float
    sd: float

    @property
    def surprise(self) -> float:
        """Distance of the measurement from the expectation, in standard deviations."""
        return (self.saving - self.expected) / self.sd


def contributions(learned: Learned, posterior: Posterior, plan: Plan) -> tuple[Contribution, ...]:
    """Return the expected contributions to a plan's saving: its scopes first, then each option.

    Options are added one after another, in the order of their names; together the parts are the plan's expected saving.
    Options that all scopes of all plans had belong to the scopes: nothing was ever tried without them.
    """
    model, catalogue = learned.model, learned.catalogue
    every = [set(scope.options) for tried in learned.seen for scope in tried.scopes]
    always = tuple(sorted(set.intersection(*every), key=repr)) if every else ()
    bare = Plan(tuple(replace(scope, options=tuple(set(scope.options) & set(always))) for scope in plan.scopes))
    rows: dict[str, Vector] = {}
    counts: dict[str, int] = {}
    capture = model.row(Plan())
    for scope, pair in zip(bare.scopes, catalogue.positions(bare), strict=True):
        name = catalogue.name(int(catalogue.class_of[pair]))
        rows[name] = rows.get(name, np.zeros_like(capture)) + model.row(Plan((scope,))) - capture
        counts[name] = counts.get(name, 0) + 1
    reached = model.row(bare)
    rows[OTHERS] = reached - sum(rows.values(), np.zeros_like(capture))
    current = bare
    for name, value in dict.fromkeys(option for scope in plan.scopes for option in scope.options):
        if (name, value) in always:
            continue
        current = _with_scope_option(current, plan, name, value)
        rows[options_text(((name, value),))] = model.row(current) - reached
        reached = model.row(current)
    for name, value in plan.options:
        current = replace(current, options=(*current.options, (name, value)))
        rows[options_text(((name, value),))] = model.row(current) - reached
        reached = model.row(current)
    means, deviations = posterior.predict(np.array(list(rows.values())))
    return tuple(
        Contribution(name, counts.get(name, 0), float(mean), float(sd))
        for name, mean, sd in zip(rows, means, deviations, strict=True)
    )


def _with_scope_option(current: Plan, plan: Plan, name: str, value: object) -> Plan:
    """Return ``current`` with an option in those scopes that have it in ``plan``."""
    scopes = (
        replace(scope, options=(*scope.options, *(option for option in wanted.options if option == (name, value))))
        for scope, wanted in zip(current.scopes, plan.scopes, strict=True)
    )
    return replace(current, scopes=tuple(scopes))


def predictions(learned: Learned, posterior: Posterior) -> tuple[Prediction, ...]:
    """Return what the model expects of each complete plan if its own step latency is left out.

    The leave-one-out mean and variance of a linear model with known noise (Rasmussen and Williams 2006, "Gaussian
    Processes for Machine Learning", section 5.4.2). Times of a trial's single scopes, where they were observed, and the
    hyperparameters are not left out.
    """
    complete = learned.ranked
    if not complete:
        return ()
    described = learned.model.describe([each.plan for each in complete])
    means, deviations = posterior.predict_plans(described)
    noise = np.array([max(MIN_NOISE, each.noise_sd) for each in complete]) * posterior.chosen.step_noise
    leverage = np.minimum((deviations / noise) ** 2, 1 - 1e-9)
    saved = np.array([each.saving for each in complete])
    expected = (means - leverage * saved) / (1 - leverage)
    spread = noise / np.sqrt(1 - leverage)
    values: Sequence[tuple[float, float]] = list(zip(expected.tolist(), spread.tolist(), strict=True))
    return tuple(
        Prediction(each.plan, each.saving, mean, sd) for each, (mean, sd) in zip(complete, values, strict=True)
    )
