"""A walk over objects that knows none of them: every tensor that can be reached, by name, and on request plain values.

Nothing of the program's own is called. Built-in containers and what inherits from them are iterated by their own
methods, and everything else is looked at through its attributes and slots, which is where a container written in
Python keeps its content. Only a type without either, written in C, is asked for its items, if it is registered as a
sequence, mapping or set. Iterators and generators are never advanced. The walk keeps a stack of its own, so that
depth has no limit, and visits an object once, so that cycles end.
"""

import gc
import io
import logging
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray, range, type(...)))
"""Types of values that hold no other object."""
_VALUES = (*(kind for kind in PLAIN if kind is not type(None)), np.generic)
_CLOSED = (
    type, types.ModuleType, types.CodeType, types.FrameType, types.GeneratorType, types.CoroutineType,
    types.AsyncGeneratorType, logging.Logger, logging.Handler, logging.Filter, threading.Thread, io.IOBase,
    weakref.ref, FakeTensor,
)  # fmt: skip
"""Types that are not looked into: they hold code, or lead to everything that runs in the process."""
_DICTS: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
_VIEWS = tuple(type(view) for made in _DICTS for view in (made.keys(), made.values(), made.items()))
_MACHINERY = ("sktune.", "torch._dynamo.", "torch._inductor.", "torch._functorch.", "torch.fx.")
"""Where the types and functions come from that compile a step: what they keep is not the program's."""
_HOOKS = (OrderedDict, dict, set)
"""What a module keeps its hooks in: a dozen empty ones in each."""
_LIBRARIES = ("builtins.", "torch.", "numpy.")
"""Packages whose classes have no attributes that are state."""


@dataclass(frozen=True, slots=True)
class Values:
    """The plain values of one container, each with its key."""

    items: tuple[tuple[str, Any], ...]


Leaf = torch.Tensor | npt.NDArray[Any] | Values
Part = tuple[str, Any]
"""How a part is reached from its whole, such as ``.keys`` or ``[3]``, and the part."""
Way = Callable[[Any], Iterable[Part]]
"""Yields the parts of an object."""


class Walk:
    """One walk; ``leaves`` may be called again and goes on where nothing was visited yet.

    Args:
        values: yield plain values, too.
        behind: look into closures and defaults of functions and into the attributes of classes as well.
        modules: names of modules whose functions' global variables are looked into, where ``behind``.
    """

    def __init__(self, *, values: bool = False, behind: bool = False, modules: Collection[str] = ()) -> None:
        self._values, self._behind, self._modules = values, behind, frozenset(modules)
        self._seen: dict[int, Any] = {}  # keeps what it names alive: ids are reused
        self._kinds: dict[type, tuple[Way, ...]] = {}
        self._containers: tuple[tuple[Any, Way], ...] = (
            (dict, lambda value: self._mapping_parts(list(dict.items(value)))),
            (list, lambda value: self._sequence_parts(list.__iter__(value))),
            (tuple, lambda value: self._sequence_parts(tuple.__iter__(value))),
            (deque, lambda value: self._sequence_parts(list(deque.__iter__(value)))),
            ((set, frozenset), lambda value: _set_parts(frozenset(value))),
            ((types.MappingProxyType, *_VIEWS), _referent_parts),
            (types.CellType, _cell_parts),
        )
        self._protocols: tuple[tuple[Any, Way], ...] = (
            (Mapping, lambda value: self._mapping_parts(list(value.items()))),
            (AbstractSet, lambda value: _set_parts(list(value))),
            (Sequence, lambda value: self._sequence_parts(list(value))),
        )

    def leaves(self, name: str, value: Any) -> Iterator[tuple[str, Leaf]]:
        """Yield the tensors, arrays and values that ``value`` leads to, by name, in the order in which they stand.

        Members of a set have no order: they share one name.
        """
        stack: list[Part] = [(name, value)]
        if self._values and _is_value(value):
            yield name, Values((("", value),))
        while stack:
            name, value = stack.pop()
            is_known = id(value) in self._seen
            self._seen[id(value)] = value
            # Whether two outputs are one tensor is up to the compiler: each place counts.
            kind = type(value)  # not value.__class__, which may be the program's
            if _is_leaf(value, kind) and (self._values or not (is_known or isinstance(value, nn.Parameter))):
                yield name, value
            if is_known:
                continue
            ways = self._kinds.get(kind)
            if ways is None:
                ways = self._kinds[kind] = self._ways_into(kind)
                if ways and self._behind:
                    stack += self._class_parts(name, kind)
            if not ways:
                continue
            parts = [part for way in ways for part in way(value)]
            if self._values and (plain := tuple((key, own) for key, own in parts if _is_value(own))):
                yield name, Values(plain)
            stack += [(name + key, inner) for key, inner in reversed(parts) if type(inner) not in PLAIN]

    def _ways_into(self, kind: type) -> tuple[Way, ...]:
        """Return what yields the parts of an object of type ``kind``."""
        if issubclass(kind, nn.Module):
            return (_module_parts,)
        if issubclass(kind, _CLOSED) or _is_from(kind, _MACHINERY):
            return ()
        if issubclass(kind, types.FunctionType):
            return (self._function_parts,) if self._behind else ()
        if issubclass(kind, types.MethodType):
            return (_method_parts,) if self._behind else ()
        if issubclass(kind, torch.Tensor):
            return (_wrapper_parts if hasattr(kind, "__tensor_flatten__") else _attribute_parts,)
        if issubclass(kind, np.ndarray):
            return (lambda array: self._sequence_parts(array.ravel().tolist()),)
        ways = [way for base, way in self._containers if issubclass(kind, base)]
        slots = [(key, own) for base in kind.__mro__ for key, own in vars(base).items() if _is_slot(key, own)]
        if slots:
            ways.append(partial(_slot_parts, tuple(slots)))
        if kind.__dictoffset__:
            ways.append(_attribute_parts)
        if not ways:  # a type written in C
            ways += [way for base, way in self._protocols if issubclass(kind, base)][:1]
        return tuple(ways)

    def _sequence_parts(self, members: Iterable[Any]) -> Iterable[Part]:
        keeps = self._values  # vocabularies are long
        return [(f"[{index}]", own) for index, own in enumerate(members) if keeps or type(own) not in PLAIN]

    def _mapping_parts(self, items: Iterable[tuple[Any, Any]]) -> Iterator[Part]:
        for index, (key, own) in enumerate(items):
            if type(key) in PLAIN:
                if self._values or type(own) not in PLAIN:
                    yield f"[{key!r}]", own
            else:  # its repr may hold an address, or be the program's own code
                yield f"[{index}]", own
                yield f"[{index}:key]", key

    def _class_parts(self, name: str, kind: type) -> list[Part]:
        """Return what hangs on a class and on those that it inherits from, each class once."""
        bases = [base for base in kind.__mro__ if id(base) not in self._seen and not _is_from(base, _LIBRARIES)]
        self._seen.update({id(base): base for base in bases})
        own = [(key, value) for base in bases for key, value in vars(base).items()]
        return [(f"{name}.{key}", value) for key, value in own if not key.startswith("__") or _is_code(value)]

    def _function_parts(self, function: types.FunctionType) -> Iterator[Part]:
        if _is_from(function, ("sktune.", *_LIBRARIES)):
            return
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield from ((f".{key}", own) for own in _content(cell))
        yield from ((f".{index}", own) for index, own in enumerate(function.__defaults__ or ()))
        yield from ((f".{key}", own) for key, own in (function.__kwdefaults__ or {}).items())
        yield from _attribute_parts(function)
        if function.__module__ in self._modules:
            names = _global_names(function.__code__)
            yield from ((f".{key}", function.__globals__[key]) for key in names if key in function.__globals__)


def _is_leaf(value: Any, kind: type) -> bool:
    if issubclass(kind, torch.Tensor):
        # Nothing can be read of a tensor without memory; a wrapper's bits are those of its inner tensors.
        return not (value.is_meta or issubclass(kind, FakeTensor) or hasattr(kind, "__tensor_flatten__"))
    return issubclass(kind, np.ndarray) and value.dtype != object


def _is_value(value: Any) -> bool:
    return issubclass(type(value), _VALUES)


def _is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


def _is_slot(key: str, value: Any) -> bool:
    return isinstance(value, types.MemberDescriptorType) and key != "__dict__"


def _is_from(kind: Any, places: tuple[str, ...]) -> bool:
    return f"{getattr(kind, '__module__', None)}.".startswith(places)


def _content(cell: types.CellType) -> Sequence[Any]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


def _global_names(code: types.CodeType) -> list[str]:
    """Return the names that a function's code may read from its module, also in the functions inside."""
    found, left = dict.fromkeys(code.co_names), [code]
    while left:
        inner = [own for own in left.pop().co_consts if isinstance(own, types.CodeType)]
        found.update(dict.fromkeys(name for own in inner for name in own.co_names))
        left += inner
    return list(found)


def _module_parts(module: nn.Module) -> Iterator[Part]:
    """Yield buffers, submodules and all else that is no parameter."""
    for key, own in _attributes(module).items():
        if key in ("_buffers", "_modules") and isinstance(own, dict):
            yield from ((f".{name}", inner) for name, inner in own.items())
        elif key != "_parameters" and own is not None and (type(own) not in _HOOKS or own):
            yield f".{key}", own


def _method_parts(method: types.MethodType) -> Iterator[Part]:
    yield "", method.__self__
    yield "", method.__func__


def _wrapper_parts(tensor: Any) -> Iterator[Part]:
    """Yield the inner tensors of a wrapper, such as a quantised or a distributed one."""
    return ((f".{key}", getattr(tensor, key)) for key in tensor.__tensor_flatten__()[0])


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return what ``vars`` does, without the program's ``__getattr__`` and ``__getattribute__``."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _attribute_parts(value: Any) -> Iterator[Part]:
    return ((f".{key}", own) for key, own in list(_attributes(value).items()))


def _slot_parts(slots: Sequence[tuple[str, types.MemberDescriptorType]], value: Any) -> Iterator[Part]:
    for key, slot in slots:
        try:
            yield f".{key}", slot.__get__(value)
        except AttributeError:  # nothing was assigned to it
            continue


def _set_parts(members: Iterable[Any]) -> Iterator[Part]:
    """Yield a set's members: values in an order that is the same in every process, the others without one."""
    plain: list[Any] = []
    others: list[Any] = []
    for own in members:
        (plain if type(own) in PLAIN else others).append(own)
    yield from ((f"[{index}]", own) for index, own in enumerate(sorted(plain, key=repr)))
    yield from (("{}", own) for own in others)


def _referent_parts(value: Any) -> Iterator[Part]:
    """Yield what a view or a proxy shows, without asking it: behind a proxy there may be the program's own code."""
    return (("", own) for own in gc.get_referents(value))


def _cell_parts(cell: types.CellType) -> Iterator[Part]:
    return (("", own) for own in _content(cell))
