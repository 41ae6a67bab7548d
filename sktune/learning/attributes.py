"""What Optuna stores of a trial besides parameters and value, and from which everything is learned."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from optuna.trial import FrozenTrial

from sktune.core.codec import decoded, encoded
from sktune.core.outcome import Outcome
from sktune.core.verification import Verification

PREFIX = "sktune:"
"""Of sktune's attributes of trials and studies."""
OUTCOME = PREFIX + "outcome"
PROBE = PREFIX + "probe"
ORIGIN = PREFIX + "origin"
REPEAT = PREFIX + "repeat"
"""Attributes of a trial: its outcome, the plan that it tries instead of that of its parameters, its name, and whether
it measures a known plan again."""

VERIFICATIONS = "verifications"
"""The study's fact with verifications made after their trials had ended, by trial number."""


def amended(trials: Sequence[FrozenTrial], attributes: Mapping[str, Any]) -> list[FrozenTrial]:
    """Return ``trials`` with outcomes updated by later verifications.

    Optuna does not change a finished trial, so later verifications are an attribute of the study.
    """
    verifications = attributes.get(PREFIX + VERIFICATIONS, {})
    result = []
    for trial in trials:
        if str(trial.number) in verifications and OUTCOME in trial.user_attrs:
            outcome = decoded(Outcome, trial.user_attrs[OUTCOME])
            trial = copy(trial)
            updated = outcome.after(decoded(Verification, verifications[str(trial.number)]))
            trial.user_attrs = {**trial.user_attrs, OUTCOME: encoded(updated)}
        result.append(trial)
    return result
