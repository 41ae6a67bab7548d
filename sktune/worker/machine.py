"""Failures of the machine, told from those of plans by what logs and disks show when a trial has failed."""

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sktune.core.errors import MEND_MACHINE, MachineError, line_of_machine
from sktune.core.outcome import Outcome
from sktune.core.plan import Plan


def explained(outcome: Outcome, plan: Plan, logs: Iterable[Path]) -> Outcome:
    """Add the cause of a failure that the logs show, and the scope to blame, if any.

    Raises:
        MachineError: the logs say that the machine fails.
    """
    from sktune.ascend.cann_log import cause, explain_files

    labels = [scope.label for scope in plan.scopes]
    explanations = explain_files([path for path in logs if path.is_file()], labels)
    if of_machine := next((each.message for each in explanations if names_machine(each.message)), None):
        raise MachineError(f"the machine fails, not the plan: {of_machine}; {MEND_MACHINE}")
    explanation = cause(explanations)
    if explanation is None:
        return outcome
    detail = f"{outcome.detail}; {explanation.message}"
    return replace(outcome, detail=detail, blamed=explanation.scope or outcome.blamed)


TAIL_BYTES = 1 << 20
"""Bytes at the end of a log that are read."""
_MACHINE_CODES = re.compile(
    r"(?<!\w)(?:E3000[3-79]|E3900[24-9]|E3901[01]|E400(?:02|20)|EE10(?:13|15|21)|EH0010|EI00(?:09|10)|EJ000[12]"
    r"|EL000[1567]|EL0015|20700[46]|207020|5070(?:08|10|33|5[346])|507899|507901|561107)(?!\w)"
)
"""CANN's error codes of missing, busy, lost or faulty devices, drivers, hosts and installations, whatever a plan does.

From the error code references of CANN 9.0 and ``rt_error_codes.h`` of its runtime. They have no code for a licence."""


def refuse_failure_of_machine(logs: Iterable[Path], folders: Iterable[Path]) -> None:
    """Raise ``MachineError`` if the logs of something that failed name the machine, or the disk of a folder is full."""
    problems = (*map(_full, folders), *map(_logged, logs))
    if problem := next(filter(None, problems), ""):
        raise MachineError(f"the machine fails, not the plan: {problem}; {MEND_MACHINE}")


BEFORE = ".before-"
"""In the names of logs of earlier attempts."""


def rename_old(log: Path) -> None:
    """Rename a log of an earlier attempt, so that what it says is not read again."""
    if log.exists():
        runs = len(list(log.parent.glob(f"{log.stem}{BEFORE}*")))
        log.rename(log.with_name(f"{log.stem}{BEFORE}{runs + 1}{log.suffix}"))


def names_machine(explanation: str) -> bool:
    """Return whether an explanation of CANN's logs has a code that names the machine."""
    return _MACHINE_CODES.search(explanation) is not None


def _full(folder: Path) -> str:
    try:
        disk = os.statvfs(folder)
    except OSError:  # it was never made
        return ""
    is_full = not disk.f_bavail or (disk.f_files and not disk.f_favail)
    return f"no space is left in {folder}" if is_full else ""


def _logged(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return line_of_machine(file.read(TAIL_BYTES).decode(errors="replace"))
    except OSError:
        return ""
