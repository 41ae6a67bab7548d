"""A limit for what might hang, so that the test fails instead: no assertion about speed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class HangError(BaseException):
    """Not an ``Exception``, so that no handler of the code under test takes it for one of its own."""


@contextmanager
def no_hang(seconds: float = 30.0) -> Iterator[None]:
    """Raise ``HangError`` in the main thread if the block takes longer."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise HangError(f"still running after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
