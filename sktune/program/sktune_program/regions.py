"""Scopes that are regions of the captured graph, compiled by Inductor: the one place that needs sktune's own side.

The region compiler lies there: a task names its address and folder, and a plan without a task needs a Python that has
sktune.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from .errors import PlanError, described
from .task import RegionCompiler

_INSTALLED = RegionCompiler("sktune.backends.inductor.backend:compile_marked", "")
_SCOPE = RegionCompiler("sktune.targets.marks:InductorScope", "")


def region_compiler(compiler: RegionCompiler | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the Dynamo backend that compiles regions, and the function that makes their scopes.

    Raises:
        PlanError: this Python cannot import them.
    """
    compiler = compiler or _INSTALLED
    if compiler.folder and compiler.folder not in sys.path:
        sys.path.append(compiler.folder)
    try:
        return _attribute(compiler.address), _attribute(_SCOPE.address)
    except ImportError as failure:
        raise PlanError(
            f"plans for inductor need sktune and its dependencies in the program's Python ({described(failure)}); "
            "install it there, or search for another backend"
        ) from failure


def _attribute(address: str) -> Any:
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(module), name)
