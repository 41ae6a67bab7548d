"""Stands in for torch where a test needs a Python that has none: modules and hooks, but no tensors and no compiler."""

import types

from . import nn

__version__ = "2.6.0"


class Tensor:
    """No object is one."""


def compile(model=None, **keywords):
    """Return the function itself, as ``backend="eager"`` does."""
    return model


compiler = types.SimpleNamespace(is_compiling=lambda: False, disable=lambda function: function)
distributed = types.SimpleNamespace(is_available=lambda: False)
