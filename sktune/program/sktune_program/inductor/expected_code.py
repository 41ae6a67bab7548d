"""The code that a scope should be compiled to, and the digests that identify code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


def digest_of(digests: Iterable[str]) -> str:
    """Return the digest of code that consists of several modules; their order does not matter."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


@dataclass(frozen=True)
class ExpectedCode:
    """The code that a scope should be compiled to.

    Attributes:
        digest: of the generated code.
        is_strict: whether different code is an error instead of a warning.
    """

    digest: str
    is_strict: bool = False
