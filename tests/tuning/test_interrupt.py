"""Signals that stop a search, wherever they arrive."""

import os
import signal
import time

import pytest

from sktune.core.errors import InterruptedSearchError
from sktune.tuning.interrupt import stoppable


class Finalized:
    """Gets a signal while it is finalized, where Python cannot raise an exception."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def test_a_signal_that_comes_in_a_finalizer_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    """It stops the search a moment later, and Python prints no traceback."""
    with pytest.raises(InterruptedSearchError, match="stopped immediately by SIGTERM"), stoppable():
        held = Finalized()
        del held
        time.sleep(5)
        pytest.fail("the search went on")
    assert "Traceback" not in capfd.readouterr().err
