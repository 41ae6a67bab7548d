"""Procedures: strategies written as generators, and replayed from a study's trials.

A procedure yields a point, is sent the result of its plan, and decides what to yield next. For each proposal it is run
from the start: known plans are answered from the study, and the first unknown plan is the proposal. So no state is kept
between proposals, and plans tried by another strategy count as well.
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
from sktune.learning.attributes import OUTCOME, PROBE
from sktune.study.strategy import distributions


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The result of a plan.

    Attributes:
        is_complete: whether it compiled, kept every bit, and is not significantly slower than the baseline.
        latency_ms: infinite if it was not measured.
        blamed: label of the scope that caused a failure; empty if unknown.
    """

    is_complete: bool = False
    latency_ms: float = math.inf
    blamed: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the plan cannot be used at all, fast or slow."""
        return not self.is_complete and math.isinf(self.latency_ms)


Procedure = Generator[Values, PlanAnswer, Values]
"""Yields points and is sent answers; returns the best point at its end."""


class ProcedureSampler(BaseSampler):
    """Proposes the next point of a procedure; after its end, the procedure's best point.

    Args:
        space: of the procedure's points.
        procedure: starts the procedure.
    """

    def __init__(self, space: SearchSpace, procedure: Callable[[SearchSpace], Procedure]) -> None:
        self._space, self._procedure = space, procedure

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All parameters are proposed together."""
        return distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the procedure's first point with a new plan."""
        others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        known = {Plan(): PlanAnswer(), **answers(self._space, others)}
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
        """Raise an error: all parameters of a space are proposed together."""
        raise NotImplementedError(f"the space has no parameter {param_name!r}")


def answers(space: SearchSpace, trials: Sequence[FrozenTrial]) -> Mapping[Plan, PlanAnswer]:
    """Return the results of the plans in ``trials``; a running one counts as failed so far."""
    results: dict[Plan, PlanAnswer] = {}
    for trial in trials:
        if trial.state is TrialState.WAITING or not trial.params.keys() >= space.choices.keys():
            continue
        if PROBE in trial.user_attrs:
            continue  # its figures are another plan's
        plan = space.plan(trial.params)
        is_complete = trial.state is TrialState.COMPLETE
        value = trial.value if is_complete else trial.intermediate_values.get(0)
        blamed = (trial.user_attrs.get(OUTCOME) or {}).get("blamed", "")
        results.setdefault(plan, PlanAnswer(is_complete, math.inf if value is None else value, blamed))
    return results
