"""What people see: a console and log messages on which text from files cannot move the cursor or hide other text."""

import logging
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sktune.core.printable import printable


class Terminal(Console):
    """A console that prints text from files as text only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)  # a:b:c stays as it is

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with printable text."""
        for segment in super().render(renderable, options):
            text = encodable(printable(segment.text), self.encoding)
            yield segment if segment.control else Segment(text, segment.style)


def encodable(text: str, encoding: str) -> str:
    """Return ``text`` with an escape for each character that a terminal's or a file's encoding does not have."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


class PrintableFormatter(logging.Formatter):
    """Formats log messages, one line each, as printable text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message."""
        return printable(super().format(record))
