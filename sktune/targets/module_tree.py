"""Module trees as ``sktune_program.module_tree.describe`` describes them, of this process or of a program's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class ModuleClass:
    """A class of modules.

    Attributes:
        name, qualname: as Python has them.
        list_kind: ``list`` for subclasses of ``nn.ModuleList``, ``sequential`` for those of ``nn.Sequential``, or "".
    """

    name: str
    qualname: str
    list_kind: str


class ModuleTree:
    """A tree of modules, which are numbers here.

    Args:
        description: from ``describe``.

    Raises:
        LookupError, ValueError, TypeError: it is none.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._classes = [ModuleClass(*map(str, each)) for each in description["classes"]]
        self._parameters = [(tuple(map(int, shape)), str(dtype)) for shape, dtype in description["parameters"]]
        self._kinds: list[int] = []
        self._children: list[list[tuple[str, int]]] = []
        self._own: list[list[tuple[str, int]]] = []
        for kind, children, own in description["modules"]:
            self._kinds.append(int(kind))
            self._children.append([(str(name), int(number)) for name, number in children])
            self._own.append([(str(name), int(number)) for name, number in own])
        _check(self._kinds, self._classes)
        _check([0, *(number for children in self._children for _, number in children)], self._kinds)
        _check([number for own in self._own for _, number in own], self._parameters)
        self.modules: Mapping[str, int] = dict(self.named_modules(0))
        """All modules by path, each once, the root with an empty one."""

    def class_of(self, module: int) -> ModuleClass:
        """Return a module's class."""
        return self._classes[self._kinds[module]]

    def class_number(self, module: int) -> int:
        """Return the number of a module's class: classes may have the same name."""
        return self._kinds[module]

    def children(self, module: int) -> list[str]:
        """Return the names of a module's children."""
        seen: dict[int, str] = {}
        for name, number in self._children[module]:
            seen.setdefault(number, name)
        return list(seen.values())

    def named_modules(self, module: int) -> Iterator[tuple[str, int]]:
        """Yield the modules of a subtree by path in it, as ``nn.Module.named_modules`` does."""
        seen = set[int]()
        stack = [("", module)]
        while stack:
            path, number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            yield path, number
            inner = ((f"{path}.{name}".removeprefix("."), child) for name, child in self._children[number])
            stack += reversed(list(inner))

    def named_parameters(self, module: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Yield path, shape and type of the parameters of a subtree, each once."""
        seen = set[int]()
        for path, inner in self.named_modules(module):
            for name, number in self._own[inner]:
                if number not in seen:
                    seen.add(number)
                    yield (f"{path}.{name}".removeprefix("."), *self._parameters[number])

    def size(self, module: int) -> int:
        """Return the number of elements of the parameters of a subtree."""
        return sum(prod(shape) for _, shape, _ in self.named_parameters(module))


def _check(numbers: Sequence[int], of: Sequence[Any]) -> None:
    if any(not 0 <= number < len(of) for number in numbers):
        raise IndexError(f"a number is none of {len(of)}")
