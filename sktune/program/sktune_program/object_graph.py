"""Walks arbitrary objects: finds every reachable tensor by name, and plain values on request.

The walk calls no code of the program. Built-in containers and their subclasses are iterated with the methods of the
built-in class; all other objects are read through their attributes and slots, where containers written in Python keep
their content. Only a type without either, written in C, is iterated itself, if it is registered as a sequence, mapping
or set. Iterators and generators are never advanced. An explicit stack allows any depth, and each object is visited
once, so cycles end.
"""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Union

import torch
from torch import nn

from .torch_private import MACHINERY, FakeTensor

PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray, range, type(...)))
"""Types of values that contain no other object."""
_VALUES = tuple(kind for kind in PLAIN if kind is not type(None))
_CLOSED = (
    type, types.ModuleType, types.CodeType, types.FrameType, types.GeneratorType, types.CoroutineType,
    types.AsyncGeneratorType, logging.Logger, logging.Handler, logging.Filter, threading.Thread, io.IOBase,
    weakref.ref, FakeTensor,
)  # fmt: skip
"""Types that are not entered: they hold code, or lead to everything that runs in the process."""
_DICTS: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
_VIEWS = tuple(type(view) for each in _DICTS for view in (each.keys(), each.values(), each.items()))
_MACHINERY = ("sktune.", "sktune_program.", *MACHINERY)
_HOOKS = (OrderedDict, dict, set)
"""Containers for a module's hooks, a dozen empty ones in each module."""
_LIBRARIES = ("builtins.", "torch.", "numpy.")
"""Packages whose classes have no state in class attributes."""


@dataclass(frozen=True)
class Values:
    """The plain values in one container, each with its key."""

    items: tuple[tuple[str, Any], ...]


Leaf = Union[torch.Tensor, Values, Any]
"""A tensor, plain values, or an array of numpy, which the program may have imported or not."""
Part = tuple[str, Any]
"""The path from an object to a part of it, such as ``.keys`` or ``[3]``, and the part."""
Expander = Callable[[Any], Iterable[Part]]
"""Yields the parts of an object."""


class Walk:
    """One walk; ``leaves`` may be called again, and skips objects that were visited before.

    Args:
        values: also yield plain values.
        into_code: also enter closures and defaults of functions, and attributes of classes.
        modules: names of modules; with ``into_code``, the global variables used by their functions are entered.
    """

    def __init__(self, *, values: bool = False, into_code: bool = False, modules: Collection[str] = ()) -> None:
        self._values, self._into_code, self._modules = values, into_code, frozenset(modules)
        self._seen: dict[int, Any] = {}  # keeps the objects alive, as ids are reused
        self._expanders: dict[type, tuple[Expander, ...]] = {}
        self._containers: tuple[tuple[Any, Expander], ...] = (
            (dict, lambda value: self._mapping_parts(list(dict.items(value)))),
            (list, lambda value: self._sequence_parts(list.__iter__(value))),
            (tuple, lambda value: self._sequence_parts(tuple.__iter__(value))),
            (deque, lambda value: self._sequence_parts(list(deque.__iter__(value)))),
            ((set, frozenset), lambda value: _set_parts(frozenset(value))),
            # The objects behind a view or a proxy, without calling it, as a proxy may call code of the program.
            ((types.MappingProxyType, *_VIEWS), lambda value: (("", inner) for inner in gc.get_referents(value))),
            (types.CellType, lambda cell: (("", value) for value in content_of(cell))),
        )
        self._protocols: tuple[tuple[Any, Expander], ...] = (
            (Mapping, lambda value: self._mapping_parts(list(value.items()))),
            (AbstractSet, lambda value: _set_parts(list(value))),
            (Sequence, lambda value: self._sequence_parts(list(value))),
        )

    def leaves(self, name: str, value: Any) -> Iterator[tuple[str, Leaf]]:
        """Yield the tensors, arrays and values reachable from ``value``, by name and in order.

        Members of a set have no order and share one name.
        """
        stack: list[Part] = [(name, value)]
        if self._values and _is_value(value):
            yield name, Values((("", value),))
        while stack:
            name, value = stack.pop()
            is_known = id(value) in self._seen
            self._seen[id(value)] = value
            # The compiler decides whether two outputs are the same tensor, so each occurrence counts.
            kind = type(value)  # not value.__class__, which may be the program's
            if issubclass(kind, torch.Tensor):
                # A tensor without memory has no bits; a wrapper's bits are those of its inner tensors.
                is_leaf = not (value.is_meta or issubclass(kind, FakeTensor) or hasattr(kind, "__tensor_flatten__"))
            else:
                is_leaf = issubclass(kind, numpy_types("ndarray")) and value.dtype != object
            if is_leaf and (self._values or not (is_known or isinstance(value, nn.Parameter))):
                yield name, value
            if is_known:
                continue
            expanders = self._expanders.get(kind)
            if expanders is None:
                expanders = self._expanders[kind] = self._expanders_of(kind)
                if expanders and self._into_code:
                    stack += self._class_parts(name, kind)
            if not expanders:
                continue
            parts = [part for expand in expanders for part in expand(value)]
            if self._values and (plain := tuple((key, inner) for key, inner in parts if _is_value(inner))):
                yield name, Values(plain)
            stack += [(name + key, inner) for key, inner in reversed(parts) if type(inner) not in PLAIN]

    def _expanders_of(self, kind: type) -> tuple[Expander, ...]:
        """Return the functions that yield the parts of an object of type ``kind``."""
        if issubclass(kind, nn.Module):
            return (_module_parts,)
        if issubclass(kind, _CLOSED) or _is_from(kind, _MACHINERY):
            return ()
        if issubclass(kind, types.FunctionType):
            return (self._function_parts,) if self._into_code else ()
        if issubclass(kind, types.MethodType):
            return (lambda method: (("", method.__self__), ("", method.__func__)),) if self._into_code else ()
        if issubclass(kind, torch.Tensor):
            if not hasattr(kind, "__tensor_flatten__"):
                return (_attribute_parts,)
            # The inner tensors of a wrapper, such as a quantised or a distributed one.
            return (lambda tensor: ((f".{key}", getattr(tensor, key)) for key in tensor.__tensor_flatten__()[0]),)
        if issubclass(kind, numpy_types("ndarray")):
            return (lambda array: self._sequence_parts(array.ravel().tolist()),)
        expanders = [expand for base, expand in self._containers if issubclass(kind, base)]
        slots = [
            (key, slot) for base in kind.__mro__ for key, slot in vars(base).items()
            if isinstance(slot, types.MemberDescriptorType) and key != "__dict__"
        ]  # fmt: skip
        if slots:
            expanders.append(partial(_slot_parts, tuple(slots)))
        if kind.__dictoffset__:
            expanders.append(_attribute_parts)
        if not expanders:  # a type written in C
            expanders += [expand for base, expand in self._protocols if issubclass(kind, base)][:1]
        return tuple(expanders)

    def _sequence_parts(self, members: Iterable[Any]) -> Iterable[Part]:
        wants_all = self._values  # otherwise plain values are skipped, as vocabularies are long
        return [(f"[{index}]", each) for index, each in enumerate(members) if wants_all or type(each) not in PLAIN]

    def _mapping_parts(self, items: Iterable[tuple[Any, Any]]) -> Iterator[Part]:
        for index, (key, value) in enumerate(items):
            if type(key) in PLAIN:
                if self._values or type(value) not in PLAIN:
                    yield f"[{key!r}]", value
            else:  # its repr may contain an address, or run code of the program
                yield f"[{index}]", value
                yield f"[{index}:key]", key

    def _class_parts(self, name: str, kind: type) -> list[Part]:
        """Return the attributes of a class and its base classes, each class once."""
        bases = [base for base in kind.__mro__ if id(base) not in self._seen and not _is_from(base, _LIBRARIES)]
        self._seen.update({id(base): base for base in bases})
        attributes = [(key, value) for base in bases for key, value in vars(base).items()]
        return [
            (f"{name}.{key}", value) for key, value in attributes
            if not key.startswith("__") or isinstance(value, types.FunctionType)
        ]  # fmt: skip

    def _function_parts(self, function: types.FunctionType) -> Iterator[Part]:
        if _is_from(function, ("sktune.", "sktune_program.", *_LIBRARIES)):
            return
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            yield from ((f".{key}", value) for value in content_of(cell))
        yield from ((f".{index}", value) for index, value in enumerate(function.__defaults__ or ()))
        yield from ((f".{key}", value) for key, value in (function.__kwdefaults__ or {}).items())
        yield from _attribute_parts(function)
        if function.__module__ in self._modules:
            names = _global_names(function.__code__)
            yield from ((f".{key}", function.__globals__[key]) for key in names if key in function.__globals__)


def state_walk(module: nn.Module, function: Any) -> Walk:
    """Return a walk that also enters the code of a model, and the global variables of its files and the step's."""
    modules = {type(each).__module__ for each in module.modules()}
    return Walk(into_code=True, modules={*modules, getattr(function, "__module__", "")} - {None})


def numpy_types(name: str) -> tuple[Any, ...]:
    """Return numpy's type of that name as a tuple; empty if the program has not imported numpy: then nothing is one."""
    kind = getattr(sys.modules.get("numpy"), name, None)
    return () if kind is None else (kind,)


def _is_value(value: Any) -> bool:
    return issubclass(type(value), _VALUES) or issubclass(type(value), numpy_types("generic"))


def _is_from(kind: Any, places: tuple[str, ...]) -> bool:
    return f"{getattr(kind, '__module__', None)}.".startswith(places)


def content_of(cell: types.CellType) -> Sequence[Any]:
    """Return what a cell of a closure holds: one value, or none while it is empty."""
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


def _global_names(code: types.CodeType) -> list[str]:
    """Return the global names that a function and its nested functions may read."""
    names, remaining = dict.fromkeys(code.co_names), [code]
    while remaining:
        nested = [each for each in remaining.pop().co_consts if isinstance(each, types.CodeType)]
        names.update(dict.fromkeys(name for each in nested for name in each.co_names))
        remaining += nested
    return list(names)


def _module_parts(module: nn.Module) -> Iterator[Part]:
    """Yield buffers, submodules and all other attributes that are not parameters."""
    for key, value in _attributes(module).items():
        if key in ("_buffers", "_modules") and isinstance(value, dict):
            yield from ((f".{name}", inner) for name, inner in value.items())
        elif key != "_parameters" and value is not None and (type(value) not in _HOOKS or value):
            yield f".{key}", value


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return ``vars(value)`` without calling the program's ``__getattr__`` or ``__getattribute__``."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:  # the program's class has slots alone
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _attribute_parts(value: Any) -> Iterator[Part]:
    return ((f".{key}", inner) for key, inner in list(_attributes(value).items()))


def _slot_parts(slots: Sequence[tuple[str, types.MemberDescriptorType]], value: Any) -> Iterator[Part]:
    for key, slot in slots:
        try:
            yield f".{key}", slot.__get__(value)
        except AttributeError:  # nothing was assigned to it
            continue


def _set_parts(members: Iterable[Any]) -> Iterator[Part]:
    """Yield a set's members: plain values first, in an order that is equal in every process, then the others."""
    plain: list[Any] = []
    others: list[Any] = []
    for member in members:
        (plain if type(member) in PLAIN else others).append(member)
    yield from ((f"[{index}]", member) for index, member in enumerate(sorted(plain, key=repr)))
    yield from (("{}", member) for member in others)
