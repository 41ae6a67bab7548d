"""What is common to a plan's scopes on both sides: their labels, their options, and that they are disjoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from .errors import PlanError

Option = Union[bool, int, str]
Options = tuple[tuple[str, Option], ...]
MAX_LABEL_LENGTH = 255  # documented limit of aclskScopeBegin; used for GE, too


@dataclass(frozen=True)
class MarkedScope:
    """A scope as it is marked: from before its first unit runs to after its last one has run, by module path."""

    first: str
    last: str
    label: str
    options: Mapping[str, Option] = field(default_factory=dict)


def label_of(first: str, last: str, name: str = "") -> str:
    """Return the label of a scope, ``name`` or one made of its units, of at most 255 characters."""
    label = name or (first if first == last else f"{first}..{last}")
    if len(label) <= MAX_LABEL_LENGTH:
        return label
    digest = hashlib.sha256(label.encode()).hexdigest()[:16]
    return f"{label[: MAX_LABEL_LENGTH - 17]}-{digest}"


def check_scope(first: str, last: str, name: str) -> None:
    """Raise ``PlanError`` unless a scope has two units, and a name that is short enough."""
    if len(name) > MAX_LABEL_LENGTH:
        raise PlanError(f"a label can have at most {MAX_LABEL_LENGTH} characters, got {len(name)}; shorten it")
    if not first or not last:
        raise PlanError(
            f"a scope needs its first and last unit, got {first!r} to {last!r}; name both, or the same unit twice"
        )


def check_disjoint(scopes: Sequence[Any]) -> None:
    """Raise ``PlanError`` if two scopes have a unit or a label in common."""
    edges = [edge for scope in scopes for edge in {scope.first, scope.last}]
    if (edge := _repeated(edges)) is not None:
        raise PlanError(f"unit {edge!r} belongs to two scopes; end the first scope before it")
    if (label := _repeated([scope.label for scope in scopes])) is not None:
        raise PlanError(f"two scopes have the label {label!r} and would become one; give them different labels")


def _repeated(names: Sequence[str]) -> str | None:
    return None if len(names) == len(set(names)) else next(name for name in names if names.count(name) > 1)


def scopes_of(plan: Any) -> Iterator[tuple[str, str, str, dict[str, Option]]]:
    """Yield first unit, last unit, name and options of the scopes of a plan, as a document has them.

    Raises:
        PlanError: a key is missing, unknown, or of the wrong type.
    """
    if not isinstance(plan, Mapping) or not isinstance(plan.get("scopes"), list):
        raise PlanError(
            f"a plan must be a mapping with the list 'scopes', got {type(plan).__name__}; see docs/reference/plan.md"
        )
    return map(_scope_of, plan["scopes"])


def _scope_of(item: Any) -> tuple[str, str, str, dict[str, Option]]:
    if not isinstance(item, (dict, Mapping)):  # a dict is told at once, which counts for studies of 100,000 scopes
        raise PlanError(
            f"a scope must be a mapping of first, last and options, got {item!r}; see docs/reference/plan.md"
        )
    unknown = set(item) - {"first", "last", "options", "label"}
    if unknown:
        raise PlanError(f"a scope has no key {min(unknown, key=str)!r}; its keys are first, last, options and label")
    first, last = item.get("first"), item.get("last")
    if not isinstance(first, str) or not isinstance(last, str):
        raise PlanError(
            f"first and last of a scope must be names of units, got {first!r} and {last!r}; use module paths"
        )
    label = item.get("label") or ""
    if not isinstance(label, str):
        raise PlanError(f"a scope's label must be text, got {label!r}; leave it out to have one made of first and last")
    return first, last, label, options_of(item.get("options") or {}, "a scope")


def options_of(options: Any, owner: str) -> dict[str, Option]:
    """Return the options in a document; ``owner`` names what has them.

    Raises:
        PlanError: they are no mapping, or a value is no option.
    """
    if not isinstance(options, (dict, Mapping)) or not all(isinstance(key, str) for key in options):
        raise PlanError(f"options of {owner} must be a mapping of names to values, got {options!r}")
    for key, value in options.items():
        if not isinstance(value, (bool, int, str)):
            raise PlanError(f"option {key!r} must be true, false, an integer or text, got {value!r}")
    return dict(options)
