"""Events as lines of standard output: one JSON object per line."""

import json
import sys
from contextlib import suppress
from typing import Any

from sktune.core.events.base import Event
from sktune.core.events.commands import CommandFailed, CommandStopped
from sktune.core.plain_data import finite


def print_event(event: Event, study: str | None = None) -> None:
    """Print one event; infinite and NaN figures become null. ``study`` says whose it is, if there are several."""
    keys = event.to_dict() | ({} if study is None else {"study": study})
    is_ascii = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"
    text = json.dumps(finite(keys), ensure_ascii=is_ascii, allow_nan=False)
    # A path that is not UTF-8 has half characters, which JSON can only escape.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def print_failure(message: str, exit_code: int, *, stopped: bool = False) -> None:
    """Print the last line of a command that failed, or that was stopped and can be resumed, if anybody reads it."""
    kind = CommandStopped if stopped else CommandFailed
    with suppress(BrokenPipeError):
        print_event(kind(message=message, exit_code=exit_code))


def parse_event(line: str) -> dict[str, Any] | None:
    """Return the event on a line; None if the line is something else."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
