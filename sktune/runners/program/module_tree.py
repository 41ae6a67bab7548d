"""Finds the module tree that a function of a program runs."""

import functools
import gc
from typing import Any

from torch import nn


def find_tree(function: Any, class_name: str | None = None) -> nn.Module | None:
    """Return the module tree that ``function`` runs: its own, or the largest that it can reach; None if there is none.

    Args:
        function: a module, a method, or any function.
        class_name: if given, the tree is the largest module of that class.
    """
    if class_name is not None:
        named = [each for each in gc.get_objects() if isinstance(each, nn.Module) and type(each).__name__ == class_name]
        return max(named, key=_size, default=None)
    if isinstance(function, nn.Module):
        return function
    return max(_reachable_trees(function), key=_size, default=None)


def _reachable_trees(function: Any) -> list[nn.Module]:
    if isinstance(function, functools.partial):
        parts = [function.func, *function.args, *function.keywords.values()]
        return [tree for part in parts if (tree := find_tree(part)) is not None]
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return [owner]
    values = list(getattr(owner, "__dict__", {}).values())
    values += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    code = getattr(function, "__code__", None)
    values += [function.__globals__.get(name) for name in code.co_names] if code else []
    return [value for value in values if isinstance(value, nn.Module)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
