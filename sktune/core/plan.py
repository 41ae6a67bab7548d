"""Plans: which runs of units become scopes, and with which options.

A plan is a value: plans that compile to the same thing are equal, so "was this tried before?" is one
lookup. This module depends neither on torch nor on a device.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sktune.core.errors import PlanError

Option = bool | int | str
Options = tuple[tuple[str, Option], ...]
Ranges = tuple[tuple[str, str], ...]
"""First and last unit of each scope of a plan."""

MAX_LABEL_LENGTH = 255  # documented limit of aclskScopeBegin; used for GE, too


def options_text(options: Options) -> str:
    """Return options as ``name=value, ...``; empty without any."""
    return ", ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options)


@dataclass(frozen=True, slots=True)
class Scope:
    """The units from ``first`` to ``last``, both included, by module path, and their options.

    ``name`` is the user's own label, if any; scopes that differ only in it are equal.
    """

    first: str
    last: str
    options: Options = ()
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if len(self.name) > MAX_LABEL_LENGTH:
            raise PlanError(f"a label can have at most {MAX_LABEL_LENGTH} characters, got {len(self.name)}; shorten it")
        if not self.first or not self.last:
            raise PlanError(
                f"a scope needs its first and last unit, got {self.first!r} to {self.last!r}; "
                "name both, or the same unit twice"
            )
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    @property
    def label(self) -> str:
        """Name of the scope, unique in its plan and of at most 255 characters.

        GE groups operators by label: two scopes with the same label would be compiled as one.
        """
        label = self.name or (self.first if self.first == self.last else f"{self.first}..{self.last}")
        if len(label) <= MAX_LABEL_LENGTH:
            return label
        digest = hashlib.sha256(label.encode()).hexdigest()[:16]
        return f"{label[: MAX_LABEL_LENGTH - 17]}-{digest}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Disjoint scopes in execution order, and compiler options for the whole step.

    The empty plan is the baseline. Only a layout knows the order of units: ``Layout.check`` checks whether a plan fits
    a model.
    """

    scopes: tuple[Scope, ...] = ()
    options: Options = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(sorted(self.options)))
        edges = [edge for scope in self.scopes for edge in {scope.first, scope.last}]
        if len(edges) != len(set(edges)):
            duplicate = next(edge for edge in edges if edges.count(edge) > 1)
            raise PlanError(f"unit {duplicate!r} belongs to two scopes; end the first scope before it")
        labels = [scope.label for scope in self.scopes]
        if len(labels) != len(set(labels)):
            duplicate = next(label for label in labels if labels.count(label) > 1)
            raise PlanError(f"two scopes have the label {duplicate!r} and would become one; give them different labels")

    @property
    def is_baseline(self) -> bool:
        """Whether the plan changes nothing."""
        return not self.scopes and not self.options

    @property
    def complexity(self) -> tuple[int, int]:
        """Sort key that prefers the simpler of equally fast plans: fewest scopes, then fewest options."""
        return len(self.scopes), sum(len(scope.options) for scope in self.scopes) + len(self.options)

    @property
    def ranges(self) -> Ranges:
        """First and last unit of each scope: the plan without its options."""
        return tuple((scope.first, scope.last) for scope in self.scopes)

    def with_option(self, name: str, value: Option) -> "Plan":
        """Return the plan with one more option in every scope."""
        scopes = (replace(scope, options=(*scope.options, (name, value))) for scope in self.scopes)
        return replace(self, scopes=tuple(scopes))

    def with_options(self, of_scope: Options, of_step: Options) -> "Plan":
        """Return the plan with its options replaced, the same in every scope."""
        return Plan(tuple(Scope(scope.first, scope.last, of_scope, scope.name) for scope in self.scopes), of_step)

    @property
    def digest(self) -> str:
        """64 hexadecimal digits; equal for equal plans, in every process."""
        unnamed = replace(self, scopes=tuple(replace(scope, name="") for scope in self.scopes))
        text = json.dumps(unnamed.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for YAML and JSON."""
        return {
            "scopes": [
                {
                    "first": scope.first,
                    "last": scope.last,
                    "options": dict(scope.options),
                    **({"label": scope.name} if scope.name else {}),
                }
                for scope in self.scopes
            ],
            **({"options": dict(self.options)} if self.options else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """Inverse of ``to_dict``.

        Raises:
            PlanError: a key is missing, unknown, or of the wrong type.
        """
        scopes = tuple(_scope(item) for item in _list(data, "scopes"))
        return cls(scopes, _options(data.get("options") or {}, "a plan"))


def _list(data: Any, key: str) -> list[Any]:
    if not isinstance(data, Mapping) or not isinstance(data.get(key), list):
        raise PlanError(
            f"a plan must be a mapping with the list {key!r}, got {type(data).__name__}; see docs/reference/plan.md"
        )
    return list(data[key])


def _scope(item: Any) -> Scope:
    if not isinstance(item, dict | Mapping):  # a dict is told at once, which counts for studies of 100,000 scopes
        raise PlanError(
            f"a scope must be a mapping of first, last and options, got {item!r}; see docs/reference/plan.md"
        )
    if unknown := set(item) - {"first", "last", "options", "label"}:
        raise PlanError(f"a scope has no key {min(unknown)!r}; its keys are first, last, options and label")
    first, last = item.get("first"), item.get("last")
    if not isinstance(first, str) or not isinstance(last, str):
        raise PlanError(
            f"first and last of a scope must be names of units, got {first!r} and {last!r}; use module paths"
        )
    label = item.get("label") or ""
    if not isinstance(label, str):
        raise PlanError(f"a scope's label must be text, got {label!r}; leave it out to have one made of first and last")
    return Scope(first, last, _options(item.get("options") or {}, "a scope"), label)


def _options(options: Any, owner: str) -> Options:
    if not isinstance(options, dict | Mapping) or not all(isinstance(key, str) for key in options):
        raise PlanError(f"options of {owner} must be a mapping of names to values, got {options!r}")
    for key, value in options.items():
        if not isinstance(value, bool | int | str):
            raise PlanError(f"option {key!r} must be true, false, an integer or text, got {value!r}")
    return tuple(options.items())
