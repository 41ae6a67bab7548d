"""Options that each have a list of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import SpaceError, nearest
from .plan import Option


@dataclass(frozen=True)
class OptionSpec:
    """One option: its values, the compiler's default, and the device types that support it.

    Attributes:
        exact: the value that does not change bits, if others may: those are searched only on request. None if no value
            changes bits.
        devices: empty for all of the backend's.
    """

    values: tuple[Option, ...]
    default: Option
    effect: str
    devices: tuple[str, ...] = ()
    exact: Option | None = None

    def exists_on(self, device: str) -> bool:
        """Whether the device type supports the option."""
        return not self.devices or device in self.devices

    def takes(self, value: Option) -> bool:
        """Whether ``value`` is allowed, also by type: True == 1 in Python, but a boolean is not a number here."""
        return any(value == allowed and type(value) is type(allowed) for allowed in self.values)


def options_on(device: str, table: Mapping[str, OptionSpec]) -> dict[str, OptionSpec]:
    """Return the options of a table that a device type supports."""
    return {name: spec for name, spec in table.items() if spec.exists_on(device)}


def check_listed(owner: str, known: Mapping[str, OptionSpec], name: str, value: Option) -> None:
    """Raise ``SpaceError`` unless ``name=value`` is among the options of ``owner``."""
    if name not in known:
        raise SpaceError(f"{owner} has no option {name!r}{nearest(name, known)}")
    if not known[name].takes(value):
        raise SpaceError(f"option {name} must be one of {list(known[name].values)}, got {value!r}")
