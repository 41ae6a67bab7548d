"""Explains failures by the logs that CANN and the run have written."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sktune.ascend.cann_log import cause, explain_files
from sktune.core.outcome import Outcome
from sktune.core.plan import Plan


def explained(outcome: Outcome, plan: Plan, logs: Iterable[Path]) -> Outcome:
    """Add the cause of a failure that the logs show, and the scope to blame, if any."""
    labels = [scope.label for scope in plan.scopes]
    explanation = cause(explain_files([path for path in logs if path.is_file()], labels))
    if explanation is None:
        return outcome
    detail = f"{outcome.detail}; {explanation.message}"
    return replace(outcome, detail=detail, blamed=explanation.scope or outcome.blamed)
