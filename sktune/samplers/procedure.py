"""Procedures: strategies written as a conversation, and replayed from a study's trials.

A procedure yields a point, is sent what became of its plan, and decides what to yield next. To propose, it is run from
its beginning: what the study knows is answered from the record, and the first plan that it does not know is the
proposal. So nothing is kept between proposals, and plans that another strategy has tried count as well.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from sktune.core.plan import Plan
from sktune.core.space import SearchSpace, Values
from sktune.learning.history import OUTCOME, PROBE
from sktune.study.strategy import distributions


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a plan.

    Attributes:
        is_complete: it compiled, kept every bit, and is not surely slower than the baseline.
        latency_ms: infinite where it was not measured.
        blamed: label of the scope that is to blame for a failure, where that is known.
    """

    is_complete: bool = False
    latency_ms: float = math.inf
    blamed: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the plan cannot be used, be it fast or slow."""
        return not self.is_complete and math.isinf(self.latency_ms)


Procedure = Generator[Values, Answer, Values]
"""Yields points and is sent answers; returns the best point when it has come to its end."""


class ProcedureSampler(BaseSampler):
    """Proposes what a procedure yields next; at its end, the procedure's best point again.

    Args:
        space: what the procedure's points belong to.
        procedure: begins the procedure.
    """

    def __init__(self, space: SearchSpace, procedure: Callable[[SearchSpace], Procedure]) -> None:
        self._space, self._procedure = space, procedure

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All parameters are proposed together."""
        return distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the first point that the procedure yields whose plan is new."""
        others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        known = {Plan(): Answer(), **answers(self._space, others)}
        running = self._procedure(self._space)
        try:
            point = next(running)
            while (answer := known.get(self._space.plan(point))) is not None:
                point = running.send(answer)
        except StopIteration as end:
            point = end.value
        return {name: point[name] for name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: every parameter of a space is proposed with the others."""
        raise NotImplementedError(f"the space has no parameter {param_name!r}")


def answers(space: SearchSpace, trials: Sequence[FrozenTrial]) -> Mapping[Plan, Answer]:
    """Return what is known of the plans in ``trials``. One that still runs, elsewhere, has not passed yet."""
    found: dict[Plan, Answer] = {}
    for trial in trials:
        if trial.state is TrialState.WAITING or not trial.params.keys() >= space.choices.keys():
            continue
        if PROBE in trial.user_attrs:
            continue  # its figures are another plan's
        plan = space.plan(trial.params)
        is_complete = trial.state is TrialState.COMPLETE
        value = trial.value if is_complete else trial.intermediate_values.get(0)
        blamed = (trial.user_attrs.get(OUTCOME) or {}).get("blamed", "")
        found.setdefault(plan, Answer(is_complete, math.inf if value is None else value, blamed))
    return found
