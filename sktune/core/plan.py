"""Plans: which runs of units become scopes, and with which options.

A plan is a value: plans that compile to the same thing are equal, so "was this tried before?" is one
lookup. This module depends neither on torch nor on a device.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, ValidatorFunctionWrapHandler, model_validator

from sktune.core.codec import LEFT_OUT_IF_EMPTY, encoded
from sktune.program.sktune_program.plan import MAX_LABEL_LENGTH as MAX_LABEL_LENGTH
from sktune.program.sktune_program.plan import (
    MarkedScope,
    check_disjoint,
    check_scope,
    label_of,
    options_of,
    scopes_of,
)
from sktune.program.sktune_program.plan import Option as Option
from sktune.program.sktune_program.plan import Options as Options

OptionsByName = Annotated[
    Options,
    BeforeValidator(lambda options: tuple(options.items()) if isinstance(options, dict) else options),
    PlainSerializer(dict, return_type=Mapping[str, Option]),
]

Ranges = tuple[tuple[str, str], ...]
"""First and last unit of each scope of a plan."""


def options_text(options: Options) -> str:
    """Return options as ``name=value, ...``; empty without any."""
    return ", ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options)


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope of a plan.

    Attributes:
        first, last: its first and last unit.
        options: of the scope.
        name: the user's own label, if any; scopes that differ only in it are equal.
    """

    first: str
    last: str
    options: OptionsByName = ()
    name: Annotated[str, Field(alias="label", exclude_if=lambda name: not name)] = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_scope(self.first, self.last, self.name)
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    @property
    def label(self) -> str:
        """Name of the scope, unique in its plan and of at most 255 characters.

        GE groups operators by label: two scopes with the same label would be compiled as one.
        """
        return label_of(self.first, self.last, self.name)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan.

    Its scopes are disjoint. The empty plan is the baseline. Only a layout knows the order of units: ``Layout.check``
    checks whether a plan fits a model.

    Attributes:
        scopes: in execution order.
        options: that the whole step is compiled with.
    """

    scopes: tuple[Scope, ...] = ()
    options: Annotated[OptionsByName, LEFT_OUT_IF_EMPTY] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(sorted(self.options)))
        check_disjoint(self.scopes)

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

    @property
    def marked(self) -> tuple[MarkedScope, ...]:
        """The scopes as a program marks them."""
        return tuple(MarkedScope(scope.first, scope.last, scope.label, dict(scope.options)) for scope in self.scopes)

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
        text = json.dumps(encoded(unnamed), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, data: Any, _: ValidatorFunctionWrapHandler) -> "Plan":
        """Return the plan that plain values are.

        Raises:
            PlanError: a key is missing, unknown, or of the wrong type.
        """
        if isinstance(data, Plan):
            return data
        scopes = (Scope(first, last, tuple(options.items()), name) for first, last, name, options in scopes_of(data))
        return cls(tuple(scopes), tuple(options_of(data.get("options") or {}, "a plan").items()))
