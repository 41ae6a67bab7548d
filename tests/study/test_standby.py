"""A search on standby: it waits until no other runs the study, in virtual time, and takes over nothing that lives."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

from sktune.core.errors import BadInputError
from sktune.study.claims import Claims, Holder, locked
from sktune.study.heartbeat import LOOK_S, SILENT_S, stand_by
from sktune.study.study import sqlite_url
from sktune.tuning.request import Request
from tests.study.test_claims import ELSEWHERE, holder

FAR = {"host": "far", "place": ELSEWHERE, "pid": 17}


class Waiting:
    """Stands for the module ``time``; ``happens`` is called each time that somebody sleeps."""

    def __init__(self, happens: Callable[[float], None]) -> None:
        self._happens, self.now_s = happens, 1000.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self._happens(self.now_s - 1000.0)


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claims]:
    """Return the claims of a study in a fresh database."""
    engine = sqlalchemy.create_engine(sqlite_url(tmp_path))
    yield Claims(engine, "s")
    engine.dispose()


def waited_s(
    claims: Claims, monkeypatch: pytest.MonkeyPatch, happens: Callable[[float], None] = lambda now_s: None
) -> tuple[float, list[str]]:
    """Return for how long a search is on standby, and for whom; ``happens`` meanwhile."""
    clock, told = Waiting(happens), list[str]()
    monkeypatch.setattr("sktune.study.heartbeat.time", clock)
    stand_by(claims, False, told.append)
    return clock.now_s - 1000.0, told


def test_a_study_that_nobody_runs_is_free(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that never had a holder, and one whose process has ended on this host."""
    assert waited_s(claims, monkeypatch) == (0.0, [])
    claims.acquire(holder(started=1))
    assert waited_s(claims, monkeypatch) == (0.0, [])


def test_a_silent_holder_on_another_host_is_removed(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, counted from its last sign; then it may not give another one."""
    far = holder(**FAR)
    claims.acquire(far)

    def beats(now_s: float) -> None:
        if now_s <= 100.0:
            assert claims.beat(far.token)

    seconds, told = waited_s(claims, monkeypatch, beats)
    assert 100.0 + SILENT_S <= seconds <= 100.0 + SILENT_S + 2 * LOOK_S
    assert told == [str(far)]
    assert claims.holders() == ()
    assert not claims.beat(far.token)


def test_a_holder_on_this_host_is_only_replaced_when_it_ends(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is silent; the wait names each holder once."""
    me, far = holder(), holder(**FAR)
    claims.acquire(me)

    def changes(now_s: float) -> None:
        if now_s == 20 * SILENT_S:
            claims.release(me.token)
            claims.acquire(far)
        elif now_s == 21 * SILENT_S - LOOK_S:
            claims.release(far.token)

    assert waited_s(claims, monkeypatch, changes) == (21 * SILENT_S - LOOK_S, [str(me), str(far)])


def test_of_two_on_standby_one_removes_the_silent_holder(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one waits for it."""
    claims.acquire(holder(**FAR))
    version, _ = claims.read()
    assert version
    assert claims.evict(version)
    claims.acquire(holder())
    assert not claims.evict(version)


def test_silence_is_counted_anew_when_the_database_was_away(
    claims: Claims, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The holder could not reach it either; one line is logged."""
    claims.acquire(holder(**FAR))
    read, seconds = claims.read, [0.0]

    def away() -> tuple[str | None, tuple[Holder, ...]]:
        if SILENT_S - 5 < seconds[0] <= SILENT_S + 5:
            raise OperationalError("", {}, Exception("connection refused"))
        return read()

    monkeypatch.setattr(claims, "read", away)

    def passes(now_s: float) -> None:
        seconds[0] = now_s

    waited, _ = waited_s(claims, monkeypatch, passes)
    assert waited >= 2 * SILENT_S + 5
    assert [record.message.partition(" (")[0] for record in caplog.records] == ["the storage cannot be reached"]


def test_the_lock_of_a_folder_is_waited_for(tmp_path: Path) -> None:
    """Where several searches share a study's folder."""
    told = list[str]()
    waits, is_ours = threading.Event(), threading.Event()

    def on_wait(holder: str) -> None:
        told.append(holder)
        waits.set()

    def wait() -> None:
        with locked(tmp_path, on_wait):
            is_ours.set()

    with locked(tmp_path):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(30)
        assert not is_ours.is_set()
    thread.join(30)
    assert is_ours.is_set()
    assert told[0].startswith("process ")


@pytest.mark.parametrize("option", ["join", "take_over"])
def test_standby_excludes_what_does_not_wait(option: str) -> None:
    """In one line."""
    with pytest.raises(BadInputError, match=r"--standby waits.*leave out --join and --take-over"):
        Request("llama", standby=True, storage="sqlite:///s.db", **{option: True})  # type: ignore[arg-type]
