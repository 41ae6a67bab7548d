"""The module classes of a file, read from the source: the children that each creates, its methods and parameters."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import libcst as cst
import libcst.matchers as m

LAYER_INDEX = ("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "idx")
"""The models' names for a layer's number, as parameter and as attribute."""
_LISTS = ("ModuleList", "Sequential")

Conditions = tuple[tuple[cst.BaseExpression, bool], ...]
"""Tests, and whether each of them must hold."""


@dataclass(frozen=True, slots=True)
class Child:
    """A submodule, with its possible classes among those of this file."""

    classes: tuple[str, ...]
    is_list: bool


@dataclass(frozen=True)
class SourceClass:
    """One class of a file."""

    name: str
    node: cst.ClassDef
    base: "SourceClass | None" = None
    """Its first base class, if that is in this file."""

    @property
    def bases(self) -> "Iterator[SourceClass]":
        """Itself, its base, the base of that, and so on, as far as they are in this file."""
        each: SourceClass | None = self
        while each:
            yield each
            each = each.base

    @cached_property
    def methods(self) -> Mapping[str, cst.FunctionDef]:
        """Its methods by name."""
        body = self.node.body.body
        return {item.name.value: item for item in body if isinstance(item, cst.FunctionDef)}

    @cached_property
    def made(self) -> Mapping[str, Sequence[cst.Call]]:
        """The calls in its body by the name that is called, for names that begin as those of classes do."""
        calls: dict[str, list[cst.Call]] = {}
        for call in m.findall(self.node, m.Call(func=m.Name())):
            assert isinstance(call, cst.Call)
            if (name := last_name(call.func))[:1].isupper():
                calls.setdefault(name, []).append(call)
        return calls

    @cached_property
    def initializers(self) -> Sequence[cst.FunctionDef]:
        """``__init__``, and the methods that it calls, directly or indirectly; also those of base classes."""
        functions: dict[cst.FunctionDef, None] = {}
        pending: list[tuple[SourceClass | None, str]] = [(self, "__init__")]
        while pending:
            owner, name = pending.pop(0)
            while owner and name not in owner.methods:
                owner = owner.base
            if owner is None or owner.methods[name] in functions:
                continue
            functions[owner.methods[name]] = None
            for call in calls_in(owner.methods[name]):
                if called := attribute_of_self(call.func):
                    pending.append((self, called))
                elif m.matches(call.func, m.Attribute(value=m.Call(func=m.Name("super")))):
                    pending.append((owner.base, last_name(call.func)))
        return list(functions)

    @cached_property
    def assigned(self) -> Mapping[str, Sequence[cst.BaseExpression]]:
        """The values that ``__init__``, and the methods that it calls, assign to each attribute."""
        values: dict[str, list[cst.BaseExpression]] = {}
        for node in (node for function in self.initializers for node in m.findall(function, m.Assign())):
            assert isinstance(node, cst.Assign)
            for target in node.targets:
                if name := attribute_of_self(target.target):
                    values.setdefault(name, []).append(node.value)
        return values

    @cached_property
    def conditions(self) -> Mapping[cst.BaseExpression, Conditions]:
        """Under which conditions each of the ``assigned`` values is assigned."""
        assigned = (each for function in self.initializers for each in _assignments(function.body, ()))
        return {node.value: above for node, above in assigned}

    @cached_property
    def appended(self) -> Mapping[str, Sequence[cst.BaseExpression]]:
        """The values appended to lists, by the list's name."""
        values: dict[str, list[cst.BaseExpression]] = {}
        for call in (call for function in self.initializers for call in calls_in(function)):
            if m.matches(call, m.Call(func=m.Attribute(attr=m.Name("append")), args=[m.Arg()])):
                assert isinstance(call.func, cst.Attribute)
                values.setdefault(last_name(call.func.value), []).append(call.args[0].value)
        return values

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of ``__init__``, without ``self``."""
        init = self.methods.get("__init__")
        if init is None:
            return self.base.parameters if self.base else ()
        return parameters_of(init)[1:]

    @lru_cache(maxsize=512)  # noqa: B019 - the classes of the latest files
    def children(self, known: tuple[str, ...]) -> Mapping[str, Child]:
        """Return its submodules; ``known`` are the classes of the file."""
        children: dict[str, Child] = {}
        for name, values in self.assigned.items():
            called = [last_name(call.func) for value in values for call in calls_in(value)]
            is_list = any(name in _LISTS for name in called)
            if is_list:
                names = {last_name(node) for value in values for node in m.findall(value, m.Name() | m.Attribute())}
                elements = [value for name in sorted(names) for value in self.appended.get(name, ())]
                called += [last_name(call.func) for value in elements for call in calls_in(value)]
            classes = tuple(dict.fromkeys(name for name in called if name in known))
            if classes or is_list or any(name[:1].isupper() for name in called):
                children[name] = Child(classes, is_list)
        return children


def constructions(classes: Mapping[str, SourceClass], name: str) -> Iterator[tuple[SourceClass, cst.Call, SourceClass]]:
    """Yield where instances of the class ``name`` are made: the class that makes one, the call, and the class of it.

    That is a class with this base, too: it runs the same methods.
    """
    made = [each for each in classes.values() if any(base.name == name for base in each.bases)]
    for owner in classes.values():
        yield from ((owner, call, each) for each in made for call in owner.made.get(each.name, ()))


def argument_of(call: cst.Call, made: SourceClass, parameter: str) -> cst.BaseExpression | None:
    """Return what a call of a class passes for a parameter of its ``__init__``; None if that cannot be seen."""
    for argument in call.args:
        if argument.keyword and argument.keyword.value == parameter:
            return argument.value
    position = made.parameters.index(parameter) if parameter in made.parameters else len(call.args)
    given = call.args[: position + 1]
    if len(given) <= position or any(argument.keyword or argument.star for argument in given):
        return None
    return given[position].value


def _assignments(suite: cst.BaseSuite, above: Conditions) -> Iterator[tuple[cst.Assign, Conditions]]:
    """Yield the assignments below a suite, each with its conditions."""
    for node in suite.body:
        other: cst.If | cst.Else | None = node if isinstance(node, cst.If) else None
        tests = above
        while isinstance(other, cst.If):
            yield from _assignments(other.body, (*tests, (other.test, True)))
            tests, other = (*tests, (other.test, False)), other.orelse
        if other:
            yield from _assignments(other.body, tests)
        elif isinstance(node, cst.For | cst.With | cst.While | cst.Try):
            yield from _assignments(node.body, above)
        elif isinstance(node, cst.SimpleStatementLine):
            yield from ((each, above) for each in node.body if isinstance(each, cst.Assign))


@lru_cache(maxsize=4)
def parsed(text: str) -> cst.Module:
    """Return a file's syntax tree; raises ``cst.ParserSyntaxError``."""
    if _is_nested_too_deeply(text):
        raise cst.ParserSyntaxError("it is nested too deeply", lines=[text[:80]], raw_line=1, raw_column=0)
    return cst.parse_module(text)


def _is_nested_too_deeply(text: str) -> bool:
    """Whether Python's own parser gives up, long before libcst's has used up its stack and kills the process."""
    try:
        ast.parse(text)
    except (RecursionError, MemoryError):
        return True
    except (SyntaxError, ValueError) as failure:
        return "too many" in str(failure)  # nested parentheses, levels of indentation
    return False


@lru_cache(maxsize=4)
def classes_of(tree: cst.Module) -> Mapping[str, SourceClass]:
    """Return the top-level classes of a file, by name."""
    classes: dict[str, SourceClass] = {}
    for item in tree.body:
        if isinstance(item, cst.ClassDef):
            bases = [classes[name] for name in (last_name(base.value) for base in item.bases) if name in classes]
            classes[item.name.value] = SourceClass(item.name.value, item, bases[0] if bases else None)
    return classes


def parameters_of(function: cst.FunctionDef) -> tuple[str, ...]:
    """Return the names of a function's parameters, ``self`` first."""
    groups = function.params
    parameters = (*groups.posonly_params, *groups.params, *groups.kwonly_params)
    return tuple(parameter.name.value for parameter in parameters)


def attribute_of_self(node: cst.CSTNode) -> str | None:
    """Return ``x`` of ``self.x``, else None."""
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self":
        return node.attr.value
    return None


def code_of(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module([]).code_for_node(node)


def last_name(node: cst.CSTNode) -> str:
    """Return ``c`` of ``a.b.c``, ``c`` and ``a[0].c``; empty for other expressions."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


@lru_cache(maxsize=1 << 15)  # a layer's statements are followed once for each layer
def calls_in(node: cst.CSTNode) -> tuple[cst.Call, ...]:
    """Return the calls inside a piece of code in the order in which they run, without those in nested definitions."""
    return tuple(_calls_in(node))


def _calls_in(node: cst.CSTNode) -> Iterator[cst.Call]:
    for child in node.children:
        if not isinstance(child, cst.Lambda | cst.FunctionDef | cst.ClassDef):
            yield from _calls_in(child)
    if isinstance(node, cst.Call):
        yield node
