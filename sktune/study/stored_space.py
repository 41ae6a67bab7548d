"""The space of a study, from what its trials say about it."""

from collections.abc import Sequence

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from sktune.backends import backend_info
from sktune.core.plan import Option
from sktune.core.space import SearchSpace
from sktune.study.facts import StudyFacts


def space_of(facts: StudyFacts, trials: Sequence[FrozenTrial]) -> SearchSpace | None:
    """Return the space of a study's trials; None before there is one."""
    proposed = [trial for trial in trials if trial.state is not TrialState.WAITING and trial.params]
    if not proposed or facts.layout is None:
        return None
    distributions = max(proposed, key=lambda trial: len(trial.distributions)).distributions
    choices: dict[str, tuple[Option, ...]] = {
        name: tuple(value for value in distribution.choices if isinstance(value, bool | int | str))
        for name, distribution in distributions.items()
        if isinstance(distribution, CategoricalDistribution)
    }
    per_layer = any(name.startswith("layers.") for name in choices)
    rules = backend_info(facts.fingerprint["backend"]).options.rules
    return SearchSpace(facts.layout, choices, rules, per_layer, earlier=facts.earlier)
