"""The errors that users see.

    SktuneError
    ├── BadInputError            exit code 2: the user can fix it
    │   ├── PlanError            a plan that is not legal, or does not fit the model
    │   ├── SpaceError           a search space that is malformed or does not fit the model
    │   ├── TargetError          a model that cannot be found, loaded or traced
    │   ├── SimulationError      constants or a profile that the cost model cannot use
    │   ├── StudyError           a study that cannot be opened, written or continued
    │   │   └── StudyHeldError   another search runs it
    │   └── ProfileError         a profile that cannot be read, or contains no kernels
    ├── MachineError             the machine fails, whatever the plan: full disk, missing compiler, lost device
    │   └── StorageError         a study's storage is locked, full or out of reach
    ├── NotDeterministicError    the baseline is not deterministic, so that no plan can be verified
    ├── BackendError             the backend cannot even compile or run the baseline
    └── InterruptedSearchError   Ctrl-C, after all results were stored

Every message is one line: the rule, the value that breaks it, and the fix. Those that programs raise, too, are defined
on their side (``sktune.program``).
"""

import re
from enum import IntEnum
from typing import Self

from sktune.program.sktune_program.errors import LIMITS_OF_THE_MACHINE as LIMITS_OF_THE_MACHINE
from sktune.program.sktune_program.errors import BadInputError as BadInputError
from sktune.program.sktune_program.errors import MachineError as MachineError
from sktune.program.sktune_program.errors import PlanError as PlanError
from sktune.program.sktune_program.errors import SktuneError as SktuneError
from sktune.program.sktune_program.errors import SpaceError as SpaceError
from sktune.program.sktune_program.errors import TargetError as TargetError
from sktune.program.sktune_program.errors import described as described
from sktune.program.sktune_program.errors import first_line as first_line
from sktune.program.sktune_program.errors import line_of_machine as line_of_machine
from sktune.program.sktune_program.errors import machine_failure as machine_failure
from sktune.program.sktune_program.errors import nearest as nearest

DEVICE_ERROR = re.compile(r"\b(CUDA|NPU) (driver |function )?error\b")
"""In what is said of a failure: after it, the process cannot use the device any more."""


class ExitCode(IntEnum):
    """An exit code of ``sktune``.

    Attributes:
        last_line: the last event that ``--json`` prints.
        meaning: why a command ends with it.
    """

    last_line: str
    meaning: str

    def __new__(cls, code: int, last_line: str, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_, member.last_line, member.meaning = code, last_line, meaning
        return member

    DONE = 0, "the command's own", 'The command succeeded; for a search, also if its answer is "no scope".'
    FAILED = (
        1,
        "`error`; `stopped` after Ctrl-C, SIGTERM or SIGHUP",
        "The command is valid but failed (the machine, or every plan), or was stopped; the same command resumes it.",
    )
    BAD_INPUT = 2, "`error`", "The command line, or a file that it names, is invalid; the message says how to fix it."
    SLOWER_NOW = 3, "`rechecked`", "`recheck`: the plan keeps every bit, but is no longer faster than the baseline."
    BITS_DIFFER = 4, "`rechecked`", "`recheck`: the plan no longer keeps every bit, or its code has changed."
    REFUSED = 5, "`plan_checked`", "`check`: the compiler is certain to refuse the plan."


class SimulationError(BadInputError):
    """Constants or a profile that the cost model cannot use."""


class StudyError(BadInputError):
    """A study that cannot be opened, written or continued."""


class StudyHeldError(StudyError):
    """A study that another search runs."""


class ProfileError(BadInputError):
    """A profile that cannot be read, or contains no kernels."""


MEND_MACHINE = "mend that (see `df`, `free`, `ulimit -a`, `sktune doctor`) and run the same command again"
"""The end of a ``MachineError`` that says what failed."""


class StorageError(MachineError):
    """A study's storage is locked, full or out of reach, which may pass."""


class NotDeterministicError(SktuneError):
    """The baseline differs from itself, so bit-identity cannot be decided."""


class BackendError(SktuneError):
    """The backend cannot even compile or run the baseline."""


class InterruptedSearchError(SktuneError):
    """The user stopped the search; the message says how to resume it."""


class PeerLostError(Exception):
    """A host of a program's group is out of reach. Unlike a ``SktuneError`` it ends the worker; no plan is blamed."""


class OutOfMemoryDuringTrialError(Exception):
    """Memory ran out, so the process can no longer be relied on. ``blamed`` is the scope's label; empty if unknown."""

    def __init__(self, message: str, blamed: str = "") -> None:
        super().__init__(message)
        self.blamed = blamed


class NothingTriedError(BadInputError):
    """The time budget was spent before a plan was tried."""


class OutOfTimeError(Exception):
    """The time budget ran out in the middle of something, which says nothing about the plan."""

    def __str__(self) -> str:
        return "the time budget is spent"
