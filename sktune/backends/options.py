"""The options that plans may carry on a backend: what every backend says of its own.

A default is what the compiler does when the option is not given, so a plan lists only what differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sktune.core.errors import PlanError, SpaceError, nearest
from sktune.core.plan import Option, Plan
from sktune.core.space import OptionRules


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option: the values that it may have, the compiler's default, and the device types that know it.

    Attributes:
        exact: the value that keeps the bits, where others may change them: these are searched only if they are asked
            for. None where all values keep them.
        devices: none named: all of the backend's.
    """

    values: tuple[Option, ...]
    default: Option
    effect: str
    devices: tuple[str, ...] = ()
    exact: Option | None = None

    def exists_on(self, device: str) -> bool:
        """Whether the device type knows the option."""
        return not self.devices or device in self.devices

    def takes(self, value: Option) -> bool:
        """Whether ``value`` is one of the values; True == 1 in Python, but words and truth values are no numbers."""
        return any(value == allowed and type(value) is type(allowed) for allowed in self.values)


class BackendOptions(Protocol):
    """The options of one backend."""

    @property
    def rules(self) -> OptionRules:
        """The defaults, which options hold for the whole step, and which of them act."""
        ...

    def check_searched(self, device: str, name: str, value: Option) -> None:
        """Raise ``SpaceError`` unless ``name=value`` is something for a search on ``device`` to try."""
        ...

    def check_step(self, plan: Plan) -> None:
        """Raise ``PlanError`` unless the plan's options of the whole step are options of the backend."""
        ...

    def default_choices(self, device: str) -> dict[str, tuple[Option, ...]]:
        """Return what to try of every option, for a space that lists none: nothing that may change bits."""
        ...

    def bit_changing_values(self, device: str) -> Mapping[str, tuple[Option, ...]]:
        """Return all values of the options of which some may change bits."""
        ...


@dataclass(frozen=True, slots=True)
class ListedOptions:
    """Options of scopes that each have a few values; none holds for the whole step.

    Args:
        backend: its name, for messages.
        table: by the options' names.
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
        known = self._known(device)
        if name not in known:
            raise SpaceError(f"{self.backend} on {device} has no option {name!r}{nearest(name, known)}")
        if not known[name].takes(value):
            raise SpaceError(f"option {name} is one of {list(known[name].values)}, got {value!r}")

    check_searched = check

    def check_step(self, plan: Plan) -> None:
        """See ``BackendOptions``."""
        for name, _ in plan.options:
            raise PlanError(f"options of the whole step belong to the backend npu, got {name!r}; leave it out")

    def default_choices(self, device: str) -> dict[str, tuple[Option, ...]]:
        """See ``BackendOptions``."""
        known = self._known(device)
        return {name: spec.values if spec.exact is None else (spec.exact,) for name, spec in known.items()}

    def bit_changing_values(self, device: str) -> Mapping[str, tuple[Option, ...]]:
        """See ``BackendOptions``."""
        return {name: spec.values for name, spec in self._known(device).items() if spec.exact is not None}

    def _known(self, device: str) -> dict[str, OptionSpec]:
        return {name: spec for name, spec in self.table.items() if spec.exists_on(device)}


def step_options(options: BackendOptions, plan: Plan) -> dict[str, Option]:
    """Return every option that holds for the whole step, with its value under ``plan``."""
    rules = options.rules
    values = {**rules.defaults, **dict(plan.options)}
    return {name: values[name] for name in sorted(rules.of_step)}


def with_inexact(
    options: BackendOptions, choices: Mapping[str, Sequence[Option]], device: str
) -> dict[str, list[Option]]:
    """Return ``choices`` and, after them, the values that may change bits."""
    found = {name: list(values) for name, values in choices.items()}
    exact = options.default_choices(device)
    for name, values in options.bit_changing_values(device).items():
        own = found.setdefault(name, list(exact[name]))
        own += [value for value in values if value not in own]
    return found
