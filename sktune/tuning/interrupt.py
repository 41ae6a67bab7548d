"""Ctrl-C: a search stops after the running trial, or immediately. SIGTERM and SIGHUP: it stops immediately."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from sktune.core.errors import InterruptedSearchError

logger = logging.getLogger(__name__)

AGAIN_S = 0.05
"""Delay of a signal that came where no exception can be raised: in a finalizer."""


@dataclass
class Stop:
    """Whether the user asked to stop after what runs, what that is, and the signal that stopped the search at once."""

    requested: bool = False
    after: str = "this trial"
    by: str = ""


_of_main: list[Stop] = []
"""The stops of searches in the main thread, innermost last; searches in other threads share the last one, as only the
main thread gets signals."""


@contextmanager
def stoppable() -> Iterator[Stop]:
    """First Ctrl-C: stop after the running trial. Second, SIGTERM, SIGHUP: stop immediately.

    A signal that is ignored, such as SIGHUP below ``nohup``, stays ignored. One that came where no exception can be
    raised stops the search at the latest when it ends; it does not outlive it.
    """
    stop, again, is_over = Stop(), list[threading.Timer](), False
    if threading.current_thread() is not threading.main_thread():
        yield _of_main[-1] if _of_main else stop  # only the main thread can handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if is_over:
            return  # it was sent again just before the search ended
        if number != signal.SIGINT:
            stop.by = f" by {signal.Signals(number).name}"
        if stop.requested or stop.by:
            raise KeyboardInterrupt
        stop.requested = True
        logger.warning("stopping after %s; press Ctrl-C again to stop immediately", stop.after)

    def not_raised(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            number = signal.Signals[stop.by.rpartition(" ")[2] or "SIGINT"]
            again.append(threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)))
            again[-1].start()
        else:
            hook_before(unraisable)

    hook_before, sys.unraisablehook = sys.unraisablehook, not_raised
    handled = [signal.SIGINT, *(each for each in (signal.SIGTERM, signal.SIGHUP) if _has_default(each))]
    before = {number: signal.signal(number, handle) for number in handled}
    _of_main.append(stop)
    try:
        yield stop
        if again:
            raise KeyboardInterrupt
    except InterruptedSearchError:
        raise
    except BaseException as failure:
        if not _comes_of_interrupt(failure):
            raise
        raise InterruptedSearchError(
            f"stopped immediately{stop.by}; run the same command to continue with the trial that was running"
        ) from failure
    finally:
        is_over = True
        for timer in again:  # afterwards its signal would end the process
            timer.cancel()
            timer.join()
        _of_main.pop()
        sys.unraisablehook = hook_before
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopped_at_once(what: str) -> Iterator[None]:
    """Ctrl-C, SIGTERM, SIGHUP: end what was begun, and raise ``InterruptedSearchError``; ``what`` was stopped."""

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()  # only it can handle signals
    handled = [signal.SIGINT, *(each for each in (signal.SIGTERM, signal.SIGHUP) if _has_default(each))]
    before = {number: signal.signal(number, handle) for number in handled} if is_main else {}
    try:
        yield
    except KeyboardInterrupt as failure:
        raise InterruptedSearchError(f"{what} was stopped; run the same command to start again") from failure
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _comes_of_interrupt(failure: BaseException | None) -> bool:
    """Whether it is a KeyboardInterrupt, or was raised for one: libraries make errors of their own of it."""
    while failure is not None and not isinstance(failure, KeyboardInterrupt):
        failure = failure.__cause__ or failure.__context__
    return failure is not None


def _has_default(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL
