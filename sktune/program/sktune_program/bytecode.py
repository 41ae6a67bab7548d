"""Imports from this folder that do not write to it: many programs share it, or it is mounted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_bytecode() -> Iterator[None]:
    """Within the context, no import stores bytecode."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
