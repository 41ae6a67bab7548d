"""Runs the ``sktune`` command: errors become one line and an exit code."""

import errno
import logging
import os
import re
import sys
from itertools import pairwise

import typer
from rich.markup import escape

from sktune.cli.app import app
from sktune.cli.terminal import PrintableFormatter, Terminal
from sktune.core.errors import LIMITS_OF_THE_MACHINE, BadInputError, ExitCode, InterruptedSearchError, SktuneError

MAX_MESSAGE = 2000
"""Characters of an error: names in it may be of any length."""
UNUSABLE_PATHS = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM})
"""Errors of the operating system about a path that was given."""
FAILED_SILENTLY = ("error return without exception set", "without setting an exception")
"""What CPython's SystemError says where there was no memory for a MemoryError either."""
FREE_IT = "free what is missing (see `df`, `free`, `ulimit -a`) and run the same command again"


def main() -> None:
    """Run the command; errors become one line and an exit code."""
    messages = logging.StreamHandler()
    messages.setFormatter(PrintableFormatter("%(message)s"))
    # A library may log that it was interrupted while it tidied up; that a command was stopped is told below.
    messages.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt)))
    logging.basicConfig(level=logging.WARNING, handlers=[messages])
    try:
        _refuse_empty_values()
        if exit_code := app(standalone_mode=False):
            sys.exit(exit_code)
    except InterruptedSearchError as failure:
        _fail(str(failure), failure.exit_code, stopped=True)
    except SktuneError as failure:
        _fail(str(failure), failure.exit_code)
    except typer.TyperException as failure:
        if message := failure.format_message():  # empty if help was shown
            _fail(message, ExitCode.BAD_INPUT)
        sys.exit(ExitCode.BAD_INPUT)
    except (typer.Abort, KeyboardInterrupt):
        _fail("stopped; run the same command to continue", ExitCode.FAILED, stopped=True)
    except OSError as failure:
        if failure.errno in UNUSABLE_PATHS and failure.filename is not None:
            _fail(f"{failure.strerror}: {failure.filename}; give another path", ExitCode.BAD_INPUT)
        if failure.errno not in LIMITS_OF_THE_MACHINE:
            _print_event_of(failure)
            raise
        _fail(f"{failure}; {FREE_IT}", ExitCode.FAILED)
    except MemoryError:
        _fail(f"out of memory; {FREE_IT}", ExitCode.FAILED)
    except SystemError as failure:
        if not str(failure).endswith(FAILED_SILENTLY):
            _print_event_of(failure)
            raise
        _fail(f"Python failed without a reason, as it does when it is out of memory; {FREE_IT}", ExitCode.FAILED)
    except Exception as failure:
        _print_event_of(failure)
        raise


def _refuse_empty_values() -> None:
    """Refuse what a script's unset variable leaves: an empty path is the current folder, an empty URL no URL."""
    for before, argument in pairwise(sys.argv):
        if not argument.strip() or re.fullmatch(r"--[\w-]+=\s*", argument):
            raise BadInputError(f"the value after {argument.strip() or before} is empty; give one, or leave it out")


def _print_event_of(failure: Exception) -> None:
    _print_failure(" ".join(f"{type(failure).__name__}: {failure}".split()), ExitCode.FAILED)


def _print_failure(message: str, exit_code: int, *, stopped: bool = False) -> None:
    """Print the last event, if events are printed; it works even if the options could not be parsed."""
    if "--json" in sys.argv:
        from sktune.core.events.lines import print_failure  # help needs no events

        print_failure(message, exit_code, stopped=stopped)


def _fail(message: str, exit_code: int, *, stopped: bool = False) -> None:
    message = " ".join(message.split())
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}..."
    try:
        _print_failure(message, exit_code, stopped=stopped)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # what could not be written must not fail again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    prefix = "" if stopped else "error: "
    Terminal(stderr=True).print(escape(prefix + message), highlight=False, soft_wrap=True)
    sys.exit(exit_code)
