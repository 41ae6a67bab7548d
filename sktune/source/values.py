"""What expressions of a model's source evaluate to, as far as the YAML and the model's configuration decide it.

Nothing is executed: constants, comparisons, arithmetic, ``self.x`` as ``__init__`` assigns it, and reads of the YAML
(``infer_config``, ``runner_settings``) and of the configuration (``config``). Everything else is ``UNKNOWN``.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import libcst as cst
import libcst.matchers as m

from sktune.source.classes import SourceClass, attribute_of_self, code_of, last_name, parameters_of

PREFILL = "is_prefill"
"""The models' name of the flag that is set in prefill."""
_KEY = [m.SubscriptElement(m.Index(m.SimpleString(f'"{PREFILL}"') | m.SimpleString(f"'{PREFILL}'")))]
CARRIED_PREFILL = m.Attribute(value=m.Name(), attr=m.Name(PREFILL)) | m.Subscript(value=m.Name(), slice=_KEY)
"""Reads of it from a named object."""
IS_PREFILL = m.Name(PREFILL) | m.Attribute(attr=m.Name(PREFILL)) | m.Subscript(slice=_KEY)
CONFIGURATION = ("config", "hf_config")
"""The models' names of the model's own configuration."""
SETTINGS = ("infer_config", "runner_settings")
"""The models' names of what was read from the YAML."""
MAX_DEPTH = 20


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True)
class _Part:
    """A part of the YAML or of the configuration; what it lacks may be set in code, unless a default is given."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """What is known before the program runs.

    Attributes:
        settings: the recipe's YAML.
        config: the model's configuration.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationPlace:
    """Where an expression is evaluated.

    Attributes:
        owner: the class.
        names: values of local names and of the function's parameters.
        function: the method, for its local names; None for ``__init__``.
        made_with: values of the parameters of ``__init__``, where ``function`` is another.
        pending: local names whose values are being evaluated.
    """

    known: Known
    owner: SourceClass
    names: Mapping[str, Any] = field(default_factory=dict)
    function: cst.FunctionDef | None = None
    made_with: Mapping[str, Any] = field(default_factory=dict)
    pending: frozenset[str] = frozenset()


def truth(node: cst.BaseExpression, place: EvaluationPlace, depth: int = 0) -> bool | None:
    """Return whether a condition holds in a decode step; None if that is not known."""
    return truth_of(evaluate(node, place, depth))


def truth_of(value: Any) -> bool | None:
    """Return whether a value counts as true; None if it is not known."""
    if isinstance(value, _Part):
        return bool(value.values) or None
    return None if value is UNKNOWN else bool(value)


def evaluate(node: cst.CSTNode, place: EvaluationPlace, depth: int = 0) -> Any:
    """Return the value of an expression in a decode step, or ``UNKNOWN``."""
    if depth > MAX_DEPTH:
        return UNKNOWN
    if m.matches(node, IS_PREFILL):
        return False
    depth += 1
    match node:
        case cst.Integer() | cst.Float() | cst.SimpleString() | cst.Tuple() | cst.List():
            try:
                return ast.literal_eval(code_of(node.with_changes(lpar=[], rpar=[])))
            except (ValueError, SyntaxError):
                return UNKNOWN
        case cst.Name():
            return _name(node, place, depth)
        case cst.Attribute():
            return _attribute(node, place, depth)
        case cst.Call():
            return _call(node, place, depth)
        case cst.BooleanOperation():
            return _boolean(node, place, depth)
        case cst.UnaryOperation():
            value = evaluate(node.expression, place, depth)
            if isinstance(node.operator, cst.Not):
                return UNKNOWN if isinstance(value, _Unknown | _Part) else not value
            return -value if isinstance(node.operator, cst.Minus) and isinstance(value, int | float) else UNKNOWN
        case cst.Comparison():
            return _comparison(node, place, depth)
        case cst.BinaryOperation():
            left, right = evaluate(node.left, place, depth), evaluate(node.right, place, depth)
            return _applied(_COMPUTED.get(type(node.operator)), left, right)
        case cst.IfExp():
            test = truth(node.test, place, depth)
            return UNKNOWN if test is None else evaluate(node.body if test else node.orelse, place, depth)
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=index))]):
            return _item(evaluate(node.value, place, depth), evaluate(index, place, depth))
    return UNKNOWN


def _name(node: cst.Name, place: EvaluationPlace, depth: int) -> Any:
    constants = {"True": True, "False": False, "None": None}
    if node.value in constants:
        return constants[node.value]
    if node.value in place.pending:
        return UNKNOWN
    if node.value in place.names:
        return place.names[node.value]
    if node.value in CONFIGURATION:
        return _Part(place.known.config)
    if node.value in SETTINGS:
        return _Part(place.known.settings)
    functions = [place.function] if place.function else place.owner.initializers
    values = [value for function in functions for value in locals_of(function).get(node.value, ())]
    is_given = place.function is not None and node.value in parameters_of(place.function)
    if len(values) != 1 or values[0] is None or is_given:  # a parameter may only be set where none is given
        return UNKNOWN
    # What a name's own value reads of it is what it was before: x = x if x is not None else y.
    return evaluate(values[0], replace(place, pending=place.pending | {node.value}), depth)


def _attribute(node: cst.Attribute, place: EvaluationPlace, depth: int) -> Any:
    if name := attribute_of_self(node):
        values = place.owner.assigned.get(name, ())
        inside = replace(place, function=None, names=place.made_with, pending=frozenset()) if place.function else place
        if not values and name in CONFIGURATION + SETTINGS:
            return _name(cst.Name(name), inside, depth)
        return evaluate(values[0], inside, depth) if len(values) == 1 else UNKNOWN
    return _item(evaluate(node.value, place, depth), node.attr.value)


def _item(part: Any, key: Any, default: Any = UNKNOWN) -> Any:
    if isinstance(part, _Part):
        value = part.values.get(key, default)
        return _Part(value) if isinstance(value, Mapping) else value
    if isinstance(part, Sequence) and isinstance(key, int) and -len(part) <= key < len(part):
        return part[key]
    return UNKNOWN


def _call(node: cst.Call, place: EvaluationPlace, depth: int) -> Any:
    arguments = [argument.value for argument in node.args if argument.keyword is None and not argument.star]
    if m.matches(node.func, m.Attribute(attr=m.Name("get"))) and len(arguments) in (1, 2):
        assert isinstance(node.func, cst.Attribute)
        return _get(node.func.value, arguments, place, depth)
    if m.matches(node.func, m.Name("getattr")) and len(arguments) in (2, 3):
        return _get(arguments[0], arguments[1:], place, depth)
    if m.matches(node.func, m.Name("bool") | m.Name("int")) and len(arguments) == 1:
        value = evaluate(arguments[0], place, depth)
        if isinstance(value, bool | int | float):
            return bool(value) if last_name(node.func) == "bool" else int(value)
    return UNKNOWN


def _get(owner: cst.BaseExpression, arguments: Sequence[cst.BaseExpression], place: EvaluationPlace, depth: int) -> Any:
    """Return what ``owner.get(key, default)`` and ``getattr(owner, key, default)`` return."""
    part, key = evaluate(owner, place, depth), evaluate(arguments[0], place, depth)
    default = evaluate(arguments[1], place, depth) if len(arguments) == 2 else None
    if _is_absent(owner, place):
        return default
    return _item(part, key, default) if isinstance(part, _Part) and isinstance(key, str) else UNKNOWN


def _is_absent(node: cst.BaseExpression, place: EvaluationPlace) -> bool:
    """Whether the YAML lacks a part that is read from it, as ``custom_params``: the program takes it as empty."""
    reading = reading_of(node, place.owner, place.function)
    if reading is None or reading.root not in SETTINGS:
        return False
    part: Any = place.known.settings
    for key in reading.keys:
        part = part.get(key) if isinstance(part, Mapping) else None
    return part is None


def _boolean(node: cst.BooleanOperation, place: EvaluationPlace, depth: int) -> Any:
    left, right = evaluate(node.left, place, depth), evaluate(node.right, place, depth)
    decisive = isinstance(node.operator, cst.Or)
    for value in (left, right):
        if isinstance(value, _Part) and decisive and value.values:
            return value
        if not isinstance(value, _Unknown | _Part) and bool(value) is decisive:
            return value
    return UNKNOWN if UNKNOWN in (left, right) else right


_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    cst.Equal: operator.eq, cst.NotEqual: operator.ne, cst.LessThan: operator.lt, cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt, cst.GreaterThanEqual: operator.ge, cst.Is: operator.is_, cst.IsNot: operator.is_not,
    cst.In: lambda a, b: a in b, cst.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_COMPUTED: Mapping[type, Callable[[Any, Any], Any]] = {
    cst.Add: operator.add, cst.Subtract: operator.sub, cst.Multiply: operator.mul,
    cst.FloorDivide: operator.floordiv, cst.Modulo: operator.mod,
}  # fmt: skip


def _comparison(node: cst.Comparison, place: EvaluationPlace, depth: int) -> Any:
    left, held = evaluate(node.left, place, depth), True
    for target in node.comparisons:
        right = evaluate(target.comparator, place, depth)
        value = _applied(_COMPARED.get(type(target.operator)), left, right)
        if value is UNKNOWN:
            return UNKNOWN
        held, left = held and bool(value), right
    return held


def _applied(function: Callable[[Any, Any], Any] | None, left: Any, right: Any) -> Any:
    if function is None or any(isinstance(value, _Unknown | _Part) for value in (left, right)):
        return UNKNOWN
    try:
        return function(left, right)
    except (TypeError, ArithmeticError):  # the source adds text to a number, or divides by zero
        return UNKNOWN


@dataclass(frozen=True, slots=True)
class Reading:
    """An expression that reads a value by a path of keys: ``infer_config.model_config.custom_params.get("flag")``.

    Attributes:
        root: the parameter at which the path begins.
        keys: the path.
    """

    root: str
    keys: tuple[str, ...]


def reading_of(node: cst.CSTNode, owner: SourceClass, function: cst.FunctionDef | None = None) -> Reading | None:
    """Return the path that an expression reads, followed through local names and attributes; None if it is none."""
    return _reading(node, owner, function, 0)


def _reading(node: cst.CSTNode, owner: SourceClass, function: cst.FunctionDef | None, depth: int) -> Reading | None:
    def inside(value: cst.CSTNode, key: str = "", within: cst.FunctionDef | None = function) -> Reading | None:
        found = _reading(value, owner, within, depth + 1)
        return Reading(found.root, (*found.keys, key)) if found and key else found

    if depth > MAX_DEPTH:
        return None
    if isinstance(node, cst.Name):
        functions = [function] if function else owner.initializers
        values = [value for each in functions for value in locals_of(each).get(node.value, ())]
        if len(values) == 1 and values[0] is not None:
            return inside(values[0])
        return None if values else Reading(node.value, ())
    if isinstance(node, cst.BooleanOperation):  # custom_params or {}
        return inside(node.left)
    if name := attribute_of_self(node):
        assigned = owner.assigned.get(name, ())
        return inside(assigned[0], "", None) if len(assigned) == 1 else Reading(name, ())
    if isinstance(node, cst.Attribute):
        return inside(node.value, node.attr.value)
    match node:
        case (
            cst.Call(
                func=cst.Attribute(value=of, attr=cst.Name("get")),
                args=[cst.Arg(value=cst.SimpleString(text)), *others],
            )
            | cst.Call(func=cst.Name("getattr"), args=[cst.Arg(value=of), cst.Arg(cst.SimpleString(text)), *others])
        ) if len(others) < 2:
            return inside(of, ast.literal_eval(text))
        case cst.Subscript(value=of, slice=[cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString(text)))]):
            return inside(of, ast.literal_eval(text))
        case cst.Call(func=cst.Name("bool"), args=[cst.Arg(value=of)]):
            return inside(of)
    return None


@lru_cache(maxsize=1024)
def locals_of(function: cst.FunctionDef) -> Mapping[str, Sequence[cst.BaseExpression | None]]:
    """Return the values that a function assigns to each local name; None where it unpacks, loops or computes on."""
    found: dict[str, list[cst.BaseExpression | None]] = {}
    for node in m.findall(function.body, m.Assign() | m.AnnAssign() | m.AugAssign() | m.For() | m.NamedExpr()):
        if isinstance(node, cst.Assign):
            for target in node.targets:
                names = m.findall(target.target, m.Name()) if isinstance(target.target, cst.Tuple | cst.List) else ()
                for name in names:
                    found.setdefault(last_name(name), []).append(None)
                if isinstance(target.target, cst.Name):
                    found.setdefault(target.target.value, []).append(node.value)
        elif isinstance(node, cst.AnnAssign | cst.NamedExpr | cst.AugAssign) and isinstance(node.target, cst.Name):
            plain = isinstance(node, cst.AnnAssign) and node.value is not None
            found.setdefault(node.target.value, []).append(node.value if plain else None)
        elif isinstance(node, cst.For):
            for name in m.findall(node.target, m.Name()):
                found.setdefault(last_name(name), []).append(None)
    return found
