"""The errors that both sides raise; sktune's own side has more of them (``sktune.core.errors``)."""

from __future__ import annotations

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


class CompileError(Exception):
    """The compiler rejects a plan. The message is one line; the cause is the compiler's own error.

    Attributes:
        reason: as in ``sktune.core.outcome.Reason``.
        blamed: label of the scope that failed; empty if it is not known.
    """

    def __init__(self, message: str, reason: str = "compile_failed", blamed: str = "") -> None:
        super().__init__(message)
        self.reason, self.blamed = reason, blamed


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
    """Return the first line of a failure's message, and the next while it ends in a colon; at most 300 characters."""
    first, *others = [line.strip() for line in str(failure).splitlines() if line.strip()] or [""]
    while first.endswith(":") and others:
        first = f"{first} {others.pop(0)}"
    return first[:300]


def described(failure: BaseException) -> str:
    """Return a failure's type and the first line of its message."""
    return f"{type(failure).__name__}: {first_line(failure)}".removesuffix(": ")
