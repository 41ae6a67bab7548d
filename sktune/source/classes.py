"""The module classes of a file, read from the source: the children that each creates, its methods and parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst
import libcst.matchers as m

LAYER_INDEX = ("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "idx")
"""The models' names for a layer's number, as parameter and as attribute."""
_LISTS = ("ModuleList", "Sequential")


@dataclass(frozen=True, slots=True)
class Child:
    """A submodule, with its possible classes among those of this file."""

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
    def _initializers(self) -> Sequence[cst.FunctionDef]:
        """``__init__``, and the methods that it calls, directly or indirectly."""
        functions: dict[str, cst.FunctionDef] = {}
        pending = ["__init__"]
        while pending:
            name = pending.pop(0)
            if name in self.methods and name not in functions:
                functions[name] = self.methods[name]
                pending += [attribute_of_self(call.func) or "" for call in calls_in(functions[name])]
        return list(functions.values())

    @cached_property
    def assigned(self) -> Mapping[str, Sequence[cst.BaseExpression]]:
        """The values that ``__init__``, and the methods that it calls, assign to each attribute."""
        values: dict[str, list[cst.BaseExpression]] = {}
        for node in (node for function in self._initializers for node in m.findall(function, m.Assign())):
            assert isinstance(node, cst.Assign)
            for target in node.targets:
                if name := attribute_of_self(target.target):
                    values.setdefault(name, []).append(node.value)
        return values

    @cached_property
    def _appended(self) -> Mapping[str, Sequence[cst.BaseExpression]]:
        """The values appended to lists, by the list's name."""
        values: dict[str, list[cst.BaseExpression]] = {}
        for call in (call for function in self._initializers for call in calls_in(function)):
            if m.matches(call, m.Call(func=m.Attribute(attr=m.Name("append")), args=[m.Arg()])):
                assert isinstance(call.func, cst.Attribute)
                values.setdefault(last_name(call.func.value), []).append(call.args[0].value)
        return values

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of ``__init__``, without ``self``."""
        init = self.methods.get("__init__")
        return parameters_of(init)[1:] if init else ()

    def children(self, known: Sequence[str]) -> Mapping[str, Child]:
        """Return its submodules; ``known`` are the classes of the file."""
        children: dict[str, Child] = {}
        for name, values in self.assigned.items():
            called = [last_name(call.func) for value in values for call in calls_in(value)]
            is_list = any(name in _LISTS for name in called)
            if is_list:
                names = {last_name(node) for value in values for node in m.findall(value, m.Name() | m.Attribute())}
                elements = [value for name in sorted(names) for value in self._appended.get(name, ())]
                called += [last_name(call.func) for value in elements for call in calls_in(value)]
            classes = tuple(dict.fromkeys(name for name in called if name in known))
            if classes or is_list or _makes_module(called):
                children[name] = Child(classes, is_list)
        return children


def _makes_module(called: Sequence[str]) -> bool:
    return any(name[:1].isupper() for name in called)


def classes_of(tree: cst.Module) -> Mapping[str, ModuleClass]:
    """Return the top-level classes of a file, by name."""
    return {item.name.value: ModuleClass(item.name.value, item) for item in tree.body if isinstance(item, cst.ClassDef)}


def parameters_of(function: cst.FunctionDef) -> tuple[str, ...]:
    """Return the names of a function's parameters, ``self`` first."""
    groups = function.params
    parameters = (*groups.posonly_params, *groups.params, *groups.kwonly_params)
    return tuple(parameter.name.value for parameter in parameters)


def attribute_of_self(node: cst.CSTNode) -> str | None:
    """Return ``x`` of ``self.x``, else None."""
    if m.matches(node, m.Attribute(value=m.Name("self"), attr=m.Name())):
        assert isinstance(node, cst.Attribute)
        return node.attr.value
    return None


def last_name(node: cst.CSTNode) -> str:
    """Return ``c`` of ``a.b.c``, ``c`` and ``a[0].c``; empty for other expressions."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def calls_in(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls inside a piece of code in the order in which they run, without those in nested definitions."""
    for child in node.children:
        if not isinstance(child, cst.Lambda | cst.FunctionDef | cst.ClassDef):
            yield from calls_in(child)
    if isinstance(node, cst.Call):
        yield node
