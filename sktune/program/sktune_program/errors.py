"""The errors that both sides raise; sktune's own side has more of them (``sktune.core.errors``)."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable


class SktuneError(Exception):
    """Root of all errors that sktune raises on purpose."""

    exit_code = 1


class BadInputError(SktuneError):
    """Bad input, which the user can fix."""

    exit_code = 2


class PlanError(BadInputError):
    """A plan that is not legal, or does not fit the model."""


class SpaceError(BadInputError):
    """A search space that is malformed, or does not fit the model."""


class TargetError(BadInputError):
    """A model that cannot be found, loaded or traced."""


class MachineError(SktuneError):
    """The machine fails, whatever the plan: its disk is full, its compiler is missing, its device is lost."""


class CompileError(Exception):
    """The compiler rejects a plan. The message is one line; the cause is the compiler's own error.

    Attributes:
        reason: as in ``sktune.core.outcome.Reason``.
        blamed: label of the scope that failed; empty if it is not known.
    """

    def __init__(self, message: str, reason: str = "compile_failed", blamed: str = "") -> None:
        super().__init__(message)
        self.reason, self.blamed = reason, blamed

    @classmethod
    def of_scope(cls, label: str, why: str) -> CompileError:
        """Return the error for which one scope is to blame."""
        return cls(f"scope {label}: {why}", blamed=label)


LIMITS_OF_THE_MACHINE = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
    errno.EAGAIN,
})  # fmt: skip
"""Errors of the operating system that no code of sktune causes: disks, open files, memory, processes."""
# As libc, PyTorch, Triton, the CUDA driver and compilers say it; their messages are in English in sktune's processes.
# Not the memory that torch asks for in vain ("Error code 12"): a plan may need more than there is.
_NAMES_MACHINE = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Input/output error|Too many open files"
    r"|(?<!Error code 12 \()Cannot allocate memory|Resource temporarily unavailable|can't start new thread"
    r"|No working C\+\+ compiler|Failed to find C compiler|cannot execute .?(?:cc1|as\b|ld\b|collect2)"
    r"|no CUDA-capable device|devices? is/are busy or unavailable|CUDA driver version is insufficient"
    r"|GPU (?:is lost|has fallen off)|uncorrectable ECC error"
)


def machine_failure(failure: BaseException) -> str:
    """Return what names the machine in a failure, or in the first of its causes, in one line; empty if nothing does."""
    found = ""
    cause: BaseException | None = failure
    while cause is not None:
        of_system = isinstance(cause, OSError) and cause.errno in LIMITS_OF_THE_MACHINE
        found = (described(cause) if of_system else line_of_machine(str(cause))) or found
        cause = cause.__cause__ or cause.__context__
    return found


def line_of_machine(text: str) -> str:
    """Return the first line of a text that names the machine as the cause of a failure; empty if none does."""
    found = _NAMES_MACHINE.search(text)
    if not found:
        return ""
    line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
    return line.strip()[:300] if len(line) <= 300 else found[0]


MAX_COMPARED = 100
"""Characters of a name that are compared with the known names."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return ``"; did you mean 'a' or 'b'?"``, or a list of the known names if none is close."""
    from difflib import get_close_matches

    names = sorted(known)
    close = get_close_matches(name[:MAX_COMPARED], names, n=limit, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(map(repr, close)) + "?"
    return "; known: " + ", ".join(names) if names else ""


def first_line(failure: BaseException) -> str:
    """Return the first line of a failure's message, and what says why, in at most 300 characters.

    That is the next line while it ends in a colon, and the first error in the output of a compiler that it quotes.
    """
    first, *others = [line.strip() for line in str(failure).splitlines() if line.strip()] or [""]
    while first.endswith(":") and others:
        first = f"{first} {others.pop(0)}"
    output = others[others.index("Output:") :] if "Output:" in others else ()
    reason = next((line for line in output if "error" in line.lower()), "")
    return ": ".join(filter(None, (first, reason)))[:300]


def described(failure: BaseException) -> str:
    """Return a failure's type and the first line of its message."""
    return f"{type(failure).__name__}: {first_line(failure)}".removesuffix(": ")
