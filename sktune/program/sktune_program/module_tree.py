"""The module tree that a function of a program runs: finds it, and describes it for sktune's own side."""

from __future__ import annotations

import functools
import gc
from typing import Any

from torch import nn

from . import torch_private
from .object_graph import content_of


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
    if isinstance(function, functools.partial):
        values = list(map(find_tree, (function.func, *function.args, *function.keywords.values())))
    else:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, nn.Module):
            return owner
        values = list(getattr(owner, "__dict__", {}).values())
        values += [value for cell in getattr(function, "__closure__", None) or () for value in content_of(cell)]
        code = getattr(function, "__code__", None)
        values += [function.__globals__.get(name) for name in code.co_names] if code else []
    return max((value for value in values if isinstance(value, nn.Module)), key=_size, default=None)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def describe(root: nn.Module) -> dict[str, Any]:
    """Return what a tree consists of, as plain values that are ready for JSON.

    ``classes`` are those of its modules: name, qualified name, and which list it is (``list``, ``sequential`` or none).
    ``parameters`` have shape and type. ``modules`` have a class, children by name, and parameters by name, all by their
    numbers; the root is module 0. What is shared has one number.
    """
    classes: dict[type, int] = {}
    parameters: dict[int, tuple[int, nn.Parameter]] = {}
    numbers = {id(root): 0}
    modules, remaining = [], [root]
    for module in remaining:  # it grows
        children = []
        for name, child in torch_private.children(module).items():
            if child is None:
                continue
            if id(child) not in numbers:
                numbers[id(child)] = len(numbers)
                remaining.append(child)
            children.append([name, numbers[id(child)]])
        own = []
        for name, parameter in torch_private.parameters(module).items():
            if parameter is not None:
                number, _ = parameters.setdefault(id(parameter), (len(parameters), parameter))
                own.append([name, number])
        modules.append([classes.setdefault(type(module), len(classes)), children, own])
    lists = ((nn.ModuleList, "list"), (nn.Sequential, "sequential"))
    return {
        "classes": [
            [kind.__name__, kind.__qualname__, next((name for base, name in lists if issubclass(kind, base)), "")]
            for kind in classes
        ],
        "parameters": [[list(each.shape), str(each.dtype)] for _, each in parameters.values()],
        "modules": modules,
    }
