"""The module classes of a file: which children each one makes, which of its methods run, read from the source."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst
import libcst.matchers as m

LAYER_INDEX = ("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "idx")
"""What models call a layer's number, as parameter and as attribute."""
_LISTS = ("ModuleList", "Sequential")


@dataclass(frozen=True, slots=True)
class Child:
    """A submodule: the classes of this file that it may be of, none where they are not from here."""

    classes: tuple[str, ...]
    is_list: bool


@dataclass(frozen=True)
class ModuleClass:
    """One class of a file."""

    name: str
    node: cst.ClassDef

    @cached_property
    def methods(self) -> Mapping[str, cst.FunctionDef]:
        """Its methods by name."""
        body = self.node.body.body
        return {item.name.value: item for item in body if isinstance(item, cst.FunctionDef)}

    @cached_property
    def assigned(self) -> Mapping[str, cst.BaseExpression]:
        """What ``__init__`` assigns to attributes; of several assignments the last."""
        found: dict[str, cst.BaseExpression] = {}
        init = self.methods.get("__init__")
        for node in m.findall(init, m.Assign()) if init else ():
            assert isinstance(node, cst.Assign)
            for target in node.targets:
                if name := attribute_of_self(target.target):
                    found[name] = node.value
        return found

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of ``__init__``, without ``self``."""
        init = self.methods.get("__init__")
        return parameters_of(init)[1:] if init else ()

    def children(self, known: Sequence[str]) -> Mapping[str, Child]:
        """Return its submodules; ``known`` are the classes of the file."""
        found: dict[str, Child] = {}
        for name, value in self.assigned.items():
            called = [last_name(call.func) for call in m.findall(value, m.Call()) if isinstance(call, cst.Call)]
            is_list = any(name in _LISTS for name in called)
            classes = tuple(dict.fromkeys(name for name in called if name in known))
            if classes or is_list or _makes_module(called):
                found[name] = Child(classes, is_list)
        return found


def _makes_module(called: Sequence[str]) -> bool:
    return any(name[:1].isupper() for name in called)


def classes_of(tree: cst.Module) -> Mapping[str, ModuleClass]:
    """Return the classes at the top of a file, by name."""
    return {item.name.value: ModuleClass(item.name.value, item) for item in tree.body if isinstance(item, cst.ClassDef)}


def parameters_of(function: cst.FunctionDef) -> tuple[str, ...]:
    """Return the names of a function's parameters, ``self`` first."""
    given = function.params
    every = (*given.posonly_params, *given.params, *given.kwonly_params)
    return tuple(parameter.name.value for parameter in every)


def attribute_of_self(node: cst.CSTNode) -> str | None:
    """Return ``x`` of ``self.x``, else None."""
    if m.matches(node, m.Attribute(value=m.Name("self"), attr=m.Name())):
        assert isinstance(node, cst.Attribute)
        return node.attr.value
    return None


def last_name(node: cst.CSTNode) -> str:
    """Return ``c`` of ``a.b.c``, of ``c`` and of ``a[0].c``; empty for what has no name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def calls_in(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls inside an expression or a simple statement, in the order in which they run."""
    for child in node.children:
        if not isinstance(child, cst.Lambda | cst.BaseSuite):
            yield from calls_in(child)
    if isinstance(node, cst.Call):
        yield node
