"""What all events have in common, and how one becomes JSON."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, ClassVar


class Absent(Enum):
    """For a key that may also be null where it is there."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, for programs and for what people see.

    The fields of an event are its keys, in their order. One without a default is always there. One with a default is
    left out while it has that value.
    """

    event: ClassVar[str]
    """The name that programs know it by: it never changes its meaning."""
    was: ClassVar[str | None] = None
    """Its former name, where it has been renamed."""

    def to_dict(self) -> dict[str, Any]:
        """Return the event as users' listeners and readers of JSON get it, with figures as they are."""
        shown: dict[str, Any] = {"event": self.event}
        if self.was:
            shown["was"] = self.was
        for own in fields(self):
            value = getattr(self, own.name)
            if own.default is MISSING or value != own.default:
                shown[own.name] = _plain(value)
        return shown


Listener = Callable[[Event], None]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
