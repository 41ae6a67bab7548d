"""What people see: a console and log messages on which text from files cannot move the cursor or hide other text."""

import logging
import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_NOT_PRINTED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, of which escape starts terminals' commands
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of direction
    "\ud800-\udfff]"  # halves of characters, which cannot be encoded
)


def printable(text: str) -> str:
    """Return ``text`` with U+FFFD for each character that a terminal would not print but obey."""
    return _NOT_PRINTED.sub("\ufffd", text)


class Terminal(Console):
    """A console that prints text from files as text only."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with printable text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class PrintableFormatter(logging.Formatter):
    """Formats log messages, one line each, as printable text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message."""
        return printable(super().format(record))
