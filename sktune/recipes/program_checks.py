"""What a program's own checks say about changed settings: its conditions before ``raise``, decided without a run."""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sktune.core.files import source_text

_CHECKING = re.compile(r"check|valid|verify|__init__|__post_init__")
"""Names of functions that are called in every mode. In others, a mode may be what the caller has chosen already."""
_SETTINGS = re.compile(r"config|settings|params|args")
"""Names of mappings of settings: what they lack has the default that the program gives."""
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda value, values: value in values, ast.NotIn: lambda value, values: value not in values,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


class _Unknown:
    """The value of what only a run would tell."""


UNKNOWN = _Unknown()
Truth = bool | _Unknown


@dataclass(frozen=True, slots=True)
class Check:
    """A condition under which the program raises.

    Attributes:
        file, line: of the condition.
        condition: its source in one line.
    """

    file: Path
    line: int
    condition: str


@dataclass(frozen=True, slots=True)
class CheckedSettings:
    """What the checks say of changed settings.

    Attributes:
        refusing: refuse the changed settings, but not those before.
        undecided: may refuse the changed settings, but not those before.
        refused_before: refuse the settings before.
    """

    refusing: tuple[Check, ...] = ()
    undecided: tuple[Check, ...] = ()
    refused_before: frozenset[Check] = frozenset()


class ProgramChecks:
    """The checks in a program's sources that mention ``setting``."""

    def __init__(self, files: Iterable[Path], setting: str) -> None:
        self._functions: list[tuple[Path, ast.FunctionDef]] = []
        for file in files:
            text = source_text(file)
            if setting not in text or "raise" not in text:
                continue
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError):
                continue  # not a source of this Python's
            functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
            self._functions += [(file, node) for node in functions if _CHECKING.search(node.name)]

    def verdict(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> CheckedSettings:
        """Return what the checks say of the settings ``after``, if they accept ``before``.

        Settings are values by name. A name is looked up wherever the program reads an attribute or a key of that name;
        what else a condition depends on is followed within its function, or unknown.
        """
        refusing, undecided, refused_before = [], [], []
        for file, function in self._functions:
            readings = _Reading(before), _Reading(after)
            for reading in readings:
                reading.run(function.body, {}, True, None)
            old, new = (reading.raised for reading in readings)
            refused_before += [Check(file, *where) for where, truth in old.items() if truth is True]
            for where, truth in new.items():
                was = old.get(where, False)
                if truth is True and was is not True:
                    refusing.append(Check(file, *where))
                elif truth is UNKNOWN and was is False:
                    undecided.append(Check(file, *where))
        return CheckedSettings(tuple(refusing), tuple(undecided), frozenset(refused_before))


@dataclass
class _Reading:
    """Follows the statements of one function with what is known of the settings.

    Attributes:
        raised: whether the conditions before each ``raise`` hold, by line and source.
    """

    settings: Mapping[str, Any]
    raised: dict[tuple[int, str], Truth] = field(default_factory=dict)

    def run(self, body: Sequence[ast.stmt], names: dict[str, Any], reached: Truth, condition: ast.expr | None) -> bool:
        """Follow statements that are ``reached`` under ``condition``; return whether they always leave the function."""
        for statement in body:
            if isinstance(statement, ast.Raise):
                if condition is not None:
                    self.raised[condition.lineno, ast.unparse(condition)] = reached
                return True
            if isinstance(statement, ast.Return):
                return True
            if isinstance(statement, ast.If):
                if self._branch(statement, names, reached):
                    return True
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                self._assign(statement, names)
            elif isinstance(statement, ast.With):
                if self.run(statement.body, names, reached, condition):
                    return True
            elif not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                _forget(statement, names)
        return False

    def _branch(self, statement: ast.If, names: dict[str, Any], reached: Truth) -> bool:
        truth = _truth(self._value(statement.test, names))
        if truth is True:
            return self.run(statement.body, names, reached, statement.test)
        otherwise = ast.copy_location(ast.UnaryOp(ast.Not(), statement.test), statement.test)
        if truth is False:
            return self.run(statement.orelse, names, reached, otherwise)
        other = dict(names)
        leaves = self.run(statement.body, names, UNKNOWN, statement.test)
        other_leaves = self.run(statement.orelse, other, UNKNOWN, otherwise)
        if leaves and not other_leaves:
            names.clear()
            names.update(other)
        elif not other_leaves:
            for name in names.keys() | other.keys():
                same = name in names and name in other and names[name] == other[name]
                names[name] = names[name] if same else UNKNOWN
        return leaves and other_leaves

    def _assign(self, statement: ast.Assign | ast.AnnAssign, names: dict[str, Any]) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                names[target.id] = self._value(statement.value, names) if statement.value else UNKNOWN
            else:
                _forget(target, names)

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                values = [self._value(part, names) for part in parts]
                return UNKNOWN if UNKNOWN in values else values
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name) if name.isupper():  # a module's global that holds a setting: _PLATFORM_VERSION
                return self.settings.get(name.strip("_").lower(), UNKNOWN)
            case ast.Attribute(attr=name):
                return self.settings.get(name, UNKNOWN)
            case ast.Call(func=ast.Attribute(attr="get", value=owner), args=[ast.Constant(value=str(name)), *rest]):
                if name in self.settings:
                    return self.settings[name]
                is_settings = any(_SETTINGS.search(word) for word in _words(owner))
                return self._value(rest[0], names) if rest and is_settings else UNKNOWN
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = _truth(self._value(operand, names))
                return UNKNOWN if truth is UNKNOWN else not truth
            case ast.BoolOp(op=operation, values=parts):
                return _joined(isinstance(operation, ast.And), [_truth(self._value(part, names)) for part in parts])
            case ast.Compare(left=left, ops=operations, comparators=others):
                return self._compared(left, operations, others, names)
        return UNKNOWN

    def _compared(
        self, left: ast.expr, operations: list[ast.cmpop], others: list[ast.expr], names: Mapping[str, Any]
    ) -> Truth:
        values = [self._value(each, names) for each in (left, *others)]
        truths: list[Truth] = []
        for operation, one, another in zip(operations, values, values[1:], strict=False):
            if one is UNKNOWN or another is UNKNOWN:
                truths.append(UNKNOWN)
                continue
            try:
                truths.append(bool(_COMPARED[type(operation)](one, another)))
            except TypeError:  # the program compares values that have no order, such as None and a number
                truths.append(UNKNOWN)
        return _joined(True, truths)


def _truth(value: Any) -> Truth:
    return UNKNOWN if value is UNKNOWN else bool(value)


def _joined(is_and: bool, truths: Sequence[Truth]) -> Truth:
    decisive = not is_and
    if decisive in truths:
        return decisive
    return UNKNOWN if UNKNOWN in truths else is_and


def _words(node: ast.expr) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name | ast.Attribute):
            yield child.id if isinstance(child, ast.Name) else child.attr


def _forget(node: ast.AST, names: dict[str, Any]) -> None:
    """Mark every name that a statement may change as unknown."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store | ast.Del):
            names[child.id] = UNKNOWN
