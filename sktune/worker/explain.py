"""Explains failures by the logs that CANN and the run have written."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sktune.ascend.cann_log import cause, explain_files
from sktune.core.errors import MachineError
from sktune.core.outcome import Outcome
from sktune.core.plan import Plan
from sktune.worker.machine import MEND_MACHINE, names_machine


def explained(outcome: Outcome, plan: Plan, logs: Iterable[Path]) -> Outcome:
    """Add the cause of a failure that the logs show, and the scope to blame, if any.

    Raises:
        MachineError: the logs say that the machine fails.
    """
    labels = [scope.label for scope in plan.scopes]
    explanations = explain_files([path for path in logs if path.is_file()], labels)
    if of_machine := next((each.message for each in explanations if names_machine(each.message)), None):
        raise MachineError(f"the machine fails, not the plan: {of_machine}; {MEND_MACHINE}")
    explanation = cause(explanations)
    if explanation is None:
        return outcome
    detail = f"{outcome.detail}; {explanation.message}"
    return replace(outcome, detail=detail, blamed=explanation.scope or outcome.blamed)
