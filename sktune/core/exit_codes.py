"""How a command ends: the one table of exit codes."""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """An exit code of ``sktune``.

    Attributes:
        last_line: what the last line of ``--json`` is.
        meaning: why a command ends so.
    """

    last_line: str
    meaning: str

    def __new__(cls, code: int, last_line: str, meaning: str) -> Self:
        own = int.__new__(cls, code)
        own._value_, own.last_line, own.meaning = code, last_line, meaning
        return own

    DONE = 0, "the command's own", 'It did what it was asked to; a search also where its answer is "no scope".'
    FAILED = (
        1,
        "`error`; `stopped` after Ctrl-C",
        "It failed, though the command is right; or Ctrl-C stopped it, and the same command goes on.",
    )
    BAD_INPUT = 2, "`error`", "The command, or a file that it names, is wrong; the message says how to fix it."
    SLOWER_NOW = 3, "`rechecked`", "`recheck`: the plan keeps every bit, and is not faster than the baseline any more."
    BITS_DIFFER = 4, "`rechecked`", "`recheck`: the plan does not keep every bit any more, or its code was changed."
