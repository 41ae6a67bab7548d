"""The base of all events, and their conversion to JSON."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, get_type_hints

from pydantic import PlainSerializer

from sktune.core.codec import encoded


class Absent(Enum):
    """The default of a key that may be absent, and may be null where it is present."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened during a command.

    The fields of an event are its keys, in order. A field without a default is always present; one with a default is
    left out while it has that value.
    """

    event: ClassVar[str]
    """Its name for programs, whose meaning never changes."""

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dictionary, for listeners and ``--json``; figures may be infinite or NaN."""
        result: dict[str, Any] = {"event": self.event}
        own_forms = _own_forms(type(self))
        for key in fields(self):
            value = getattr(self, key.name)
            if key.default is MISSING or value != key.default:
                form = own_forms.get(key.name)
                result[key.name] = encoded(value, form) if form else _plain(value)
        return result


Listener = Callable[[Event], None]


def _find_own_forms(kind: type) -> dict[str, Any]:
    """Return the types of those keys that are written in a form of their own, such as rounded figures."""
    hints = get_type_hints(kind, include_extras=True)
    is_own = {name: any(isinstance(each, PlainSerializer) for each in getattr(hint, "__metadata__", ()))
              for name, hint in hints.items()}  # fmt: skip
    return {name: hints[name] for name in hints if is_own[name]}


_own_forms: Callable[[Any], dict[str, Any]] = cache(_find_own_forms)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return encoded(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
