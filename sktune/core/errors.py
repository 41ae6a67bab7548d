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
    ├── NotDeterministicError    the baseline is not deterministic, so that no plan can be verified
    ├── BackendError             the backend cannot even compile or run the baseline
    └── InterruptedSearchError   Ctrl-C, after all results were stored

Every message is one line: the rule, the value that breaks it, and the fix.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from sktune.core.exit_codes import ExitCode


class SktuneError(Exception):
    """Root of all errors that sktune raises on purpose."""

    exit_code = ExitCode.FAILED


class BadInputError(SktuneError):
    """Bad input, which the user can fix."""

    exit_code = ExitCode.BAD_INPUT


class PlanError(BadInputError):
    """A plan that is not legal, or does not fit the model."""


class SpaceError(BadInputError):
    """A search space that is malformed, or does not fit the model."""


class TargetError(BadInputError):
    """A model that cannot be found, loaded or traced."""


class SimulationError(BadInputError):
    """Constants or a profile that the cost model cannot use."""


class StudyError(BadInputError):
    """A study that cannot be opened, written or continued."""


class StudyHeldError(StudyError):
    """A study that another search runs."""


class ProfileError(BadInputError):
    """A profile that cannot be read, or contains no kernels."""


class NotDeterministicError(SktuneError):
    """The baseline differs from itself, so bit-identity cannot be decided."""


class BackendError(SktuneError):
    """The backend cannot even compile or run the baseline."""


class InterruptedSearchError(SktuneError):
    """The user stopped the search; the message says how to resume it."""


MAX_COMPARED = 100
"""Characters of a name that are compared with the known names."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return ``"; did you mean 'a' or 'b'?"``, or a list of the known names if none is close."""
    names = sorted(known)
    close = get_close_matches(name[:MAX_COMPARED], names, n=limit, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(map(repr, close)) + "?"
    return "; known: " + ", ".join(names) if names else ""


def first_line(failure: BaseException) -> str:
    """Return the first line of a failure's message, at most 300 characters."""
    return str(failure).strip().partition("\n")[0].strip()[:300]


def described(failure: BaseException) -> str:
    """Return a failure's type and the first line of its message."""
    return f"{type(failure).__name__}: {first_line(failure)}".removesuffix(": ")


class OutOfTimeError(Exception):
    """The time budget ran out in the middle of something, which says nothing about the plan."""

    def __str__(self) -> str:
        return "the time budget is spent"
