"""Heartbeats: a search gives signs of life in its claim's row, and one on standby goes on when there are none.

No clocks of two hosts are compared: the one on standby measures for how long the row has not changed.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy.exc import SQLAlchemyError

from sktune.core.errors import StorageError, StudyError, first_line
from sktune.study.claims import Claims

BEAT_S = 5.0
SILENT_S = 30.0
"""A holder on another host is gone after so long without a sign; one that was only paused ends when it goes on."""
LOOK_S = 1.0

logger = logging.getLogger(__name__)


@contextmanager
def beating(claims: Claims, token: str) -> Iterator[None]:
    """Give a sign of life now and then, in a thread, for the search with ``token``.

    Raises:
        StudyError: another search has taken over the study, if something failed meanwhile: that is why.
    """
    ended = threading.Event()

    def beat() -> None:
        is_ours = True
        while is_ours and not ended.wait(BEAT_S):
            with suppress(SQLAlchemyError):  # the search itself tells if that lasts
                is_ours = claims.beat(token)

    thread = threading.Thread(target=beat, name="sktune heartbeat", daemon=True)
    thread.start()
    try:
        yield
    except (StudyError, StorageError):  # a server ends the transaction of a search that is paused
        with suppress(SQLAlchemyError):
            claims.living(token, False)
        raise
    finally:
        ended.set()
        thread.join(BEAT_S)


def stand_by(claims: Claims, has_folder: bool, on_wait: Callable[[str], None]) -> None:
    """Wait until no search runs the study, and remove the claims of those that are silent.

    While the database cannot be reached, nobody can give a sign: silence is counted anew afterwards.

    Args:
        claims: of the study.
        has_folder: whether the caller holds the lock of the storage's folder.
        on_wait: called with a holder, whenever that is another one than before.
    """
    seen: str | None = None
    since_s, shown = 0.0, ""
    while True:
        try:
            version, holders = claims.read()
            living = [holder for holder in holders if not holder.is_gone(has_folder)]
            if version is None or not living:
                return
            if version != seen:
                seen, since_s = version, time.monotonic()
            is_silent = time.monotonic() - since_s > SILENT_S
            if is_silent and not any(holder.is_near for holder in living) and claims.evict(version):
                return
            if shown != (shown := str(living[0])):
                on_wait(shown)
        except SQLAlchemyError as failure:
            if seen is not None:
                logger.warning("the storage cannot be reached (%s); still on standby", first_line(failure))
            seen = None
        time.sleep(LOOK_S)
