"""Leases: one for each trial, and only its holder's result counts."""

from pathlib import Path

from sktune.study.leases import Leases
from sktune.study.storage import open_storage


def leases(folder: Path, token: str) -> Leases:
    """Return the leases of a study, as seen by a coordinator."""
    return Leases(open_storage(f"sqlite:///{folder / 'study.db'}").engine, "s", token)


def test_a_lease_is_settled_once(tmp_path: Path) -> None:
    """The second result of an attempt is dropped."""
    ours = leases(tmp_path, "us")
    lease = ours.grant(3, 1, "npu 0")
    assert ours.settle(lease)
    assert not ours.settle(lease)
    assert ours.all() == ()


def test_a_later_attempt_revokes_an_earlier_one(tmp_path: Path) -> None:
    """Whichever result comes first."""
    ours = leases(tmp_path, "us")
    first, second = ours.grant(3, 1, "npu 0"), ours.grant(3, 2, "npu 1")
    assert not ours.settle(first)
    assert ours.settle(second)


def test_a_lease_expires_some_time_after_its_worker_has_begun(tmp_path: Path) -> None:
    """Until then it has no end: the worker may have been busy."""
    ours = leases(tmp_path, "us")
    lease = ours.grant(3, 1, "npu 0")
    assert ours.all()[0].until is None
    ours.begin(lease, 1234.5)
    assert ours.all()[0].until == 1234.5


def test_leases_of_the_dead_are_revoked(tmp_path: Path) -> None:
    """Those of a search that works beside us are not; a result that arrives later is dropped."""
    dead, other = leases(tmp_path, "dead"), leases(tmp_path, "other")
    lost, kept = dead.grant(1, 1, "npu 0"), other.grant(2, 1, "npu 0")
    ours = leases(tmp_path, "us")
    assert ours.revoke({"us", "other"}) == (lost,)
    assert not dead.settle(lost)
    assert ours.all() == (kept,)
