"""The options that plans may have on a backend.

A default is the compiler's behaviour without the option, so a plan only lists other values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sktune.core.errors import PlanError
from sktune.core.plan import Option, Plan
from sktune.core.space import OptionRules
from sktune.program.sktune_program.listed_options import OptionSpec as OptionSpec
from sktune.program.sktune_program.listed_options import check_listed, options_on


class BackendOptions(Protocol):
    """The options of one backend."""

    @property
    def rules(self) -> OptionRules:
        """The defaults, the options of the whole step, and how to drop options without effect."""
        ...

    def check_searched(self, device: str, name: str, value: Option) -> None:
        """Raise ``SpaceError`` unless a search on ``device`` may try ``name=value``."""
        ...

    def check_step(self, plan: Plan) -> None:
        """Raise ``PlanError`` unless the backend supports the plan's options of the whole step."""
        ...

    def default_choices(self, device: str) -> dict[str, tuple[Option, ...]]:
        """Return the values of every option to try if a space lists none; none of them may change bits."""
        ...

    def bit_changing_values(self, device: str) -> Mapping[str, tuple[Option, ...]]:
        """Return all values of each option that has a value that may change bits."""
        ...


@dataclass(frozen=True, slots=True)
class ListedOptions:
    """Options of scopes, each with a list of values; none is for the whole step.

    Args:
        backend: its name, for messages.
        table: options by name.
    """

    backend: str
    table: Mapping[str, OptionSpec] = field(default_factory=dict)

    @property
    def rules(self) -> OptionRules:
        """See ``BackendOptions``."""
        changes_bits = {
            (name, value)
            for name, spec in self.table.items()
            for value in spec.values
            if spec.exact is not None and value != spec.exact
        }
        return OptionRules(
            {name: spec.default for name, spec in self.table.items()}, changes_bits=frozenset(changes_bits)
        )

    def check(self, device: str, name: str, value: Option) -> None:
        """Raise ``SpaceError`` unless ``name=value`` is an option on ``device``."""
        check_listed(f"{self.backend} on {device}", options_on(device, self.table), name, value)

    check_searched = check

    def check_step(self, plan: Plan) -> None:
        """See ``BackendOptions``."""
        for name, _ in plan.options:
            raise PlanError(f"only the backend npu has options of the whole step, got {name!r}; leave it out")

    def default_choices(self, device: str) -> dict[str, tuple[Option, ...]]:
        """See ``BackendOptions``."""
        known = options_on(device, self.table)
        return {name: spec.values if spec.exact is None else (spec.exact,) for name, spec in known.items()}

    def bit_changing_values(self, device: str) -> Mapping[str, tuple[Option, ...]]:
        """See ``BackendOptions``."""
        return {name: spec.values for name, spec in options_on(device, self.table).items() if spec.exact is not None}


def step_options(options: BackendOptions, plan: Plan) -> dict[str, Option]:
    """Return every option of the whole step, with its value under ``plan``."""
    rules = options.rules
    values = {**rules.defaults, **dict(plan.options)}
    return {name: values[name] for name in sorted(rules.of_step)}


def with_bit_changing(
    options: BackendOptions, choices: Mapping[str, Sequence[Option]], device: str
) -> dict[str, list[Option]]:
    """Return ``choices``, extended by the values that may change bits."""
    extended = {name: list(values) for name, values in choices.items()}
    exact = options.default_choices(device)
    for name, values in options.bit_changing_values(device).items():
        listed = extended.setdefault(name, list(exact[name]))
        listed += [value for value in values if value not in listed]
    return extended
