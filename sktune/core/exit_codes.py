"""How a command ends: the one table of exit codes."""

from enum import IntEnum
from typing import Self


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
