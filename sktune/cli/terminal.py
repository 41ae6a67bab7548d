"""What people see: a console and log messages on which text from files cannot move the cursor or hide other text."""

import logging
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sktune.core.printable import printable


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
