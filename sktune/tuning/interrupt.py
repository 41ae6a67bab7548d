"""Ctrl-C: a search stops after the running trial, or immediately."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from sktune.core.errors import InterruptedSearchError

logger = logging.getLogger(__name__)


@dataclass
class Stop:
    """Whether the user asked to stop after the running trial."""

    requested: bool = False


@contextmanager
def stoppable() -> Iterator[Stop]:
    """First Ctrl-C: stop after the running trial. Second: stop immediately."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        logger.warning("stopping after this trial; press Ctrl-C again to stop immediately")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    except KeyboardInterrupt as failure:
        raise InterruptedSearchError(
            "stopped immediately; run the same command to continue with the trial that was running"
        ) from failure
    finally:
        signal.signal(signal.SIGINT, before)
