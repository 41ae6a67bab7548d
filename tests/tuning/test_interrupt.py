"""Signals that stop a search, wherever they arrive."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sktune.core.errors import InterruptedSearchError
from sktune.tuning.interrupt import AGAIN_S, stoppable


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


def test_a_signal_that_comes_in_a_finalizer_does_not_outlive_the_search() -> None:
    """It stops a search that ends just then; sent again later, it would end the process."""
    with pytest.raises(InterruptedSearchError, match="stopped immediately by SIGTERM"), stoppable():
        held = Finalized()
        del held
    time.sleep(2 * AGAIN_S)


def test_a_search_that_fails_meanwhile_fails() -> None:
    """For its own reason."""
    with pytest.raises(ValueError, match="its own"), stoppable():
        held = Finalized()
        del held
        raise ValueError("its own")
    time.sleep(2 * AGAIN_S)


def test_a_library_may_make_an_error_of_its_own_of_it() -> None:
    """As pydantic does while it reads values: the search was stopped all the same."""
    with pytest.raises(InterruptedSearchError, match="stopped immediately by SIGTERM"), stoppable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt as failure:
            raise ValueError("a value cannot be read") from failure
        pytest.fail("the search went on")


def test_a_library_that_tidies_up_prints_no_traceback() -> None:
    """As SQLAlchemy's pool, which logs that it was interrupted."""
    code = (
        "import importlib, logging; command = importlib.import_module('sktune.cli.main'); "
        "log = logging.getLogger('pool').error; "
        "command.app = lambda **_: log('while it is reset', exc_info=KeyboardInterrupt()) or 3; command.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
