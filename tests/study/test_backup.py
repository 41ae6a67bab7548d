"""A study's database that was damaged comes back from its backup, and nothing is lost without a word."""

import itertools
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from sktune.core.errors import StudyError
from sktune.study.backup import Backup
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import one_line_error
from tests.study.test_study import FAST, ask

TRIALS = 3


def opened(folder: Path) -> TuningStudy:
    """Open or create the study as a search does."""
    return TuningStudy.open("study", sqlite_url(folder), create=True, backup=Backup(folder))


def run_trials(folder: Path) -> list[dict[str, object]]:
    """Run trials as a process that is killed after them; return what is stored."""
    study = opened(folder)
    for _ in range(TRIALS):
        study.tell(ask(study), FAST, 8.0)
    study.storage.engine.dispose()
    return stored(study)


def stored(study: TuningStudy) -> list[dict[str, object]]:
    """Return all trials of a study, without what only this process knows."""
    return [{"params": trial.params, "values": trial.values, "attributes": trial.user_attrs}
            for trial in study.trials() if trial.state.is_finished()]  # fmt: skip


def emptied(database: Path) -> None:
    """As a disk that was full leaves it."""
    os.truncate(database, 0)


def cut_off(database: Path) -> None:
    """In the middle of a page."""
    os.truncate(database, database.stat().st_size // 2 + 100)


def overwritten(database: Path) -> None:
    """From its beginning."""
    with database.open("r+b") as file:
        file.write(os.urandom(8192))


def changed(database: Path) -> None:
    """In a way that SQLite does not notice: a digit of an outcome."""
    data = database.read_bytes()
    assert b'"ratio": 1.25' in data
    database.write_bytes(data.replace(b'"ratio": 1.25', b'"ratio": 9.25'))


def another(database: Path) -> None:
    """A database of another program."""
    database.unlink()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE other (x)")


@pytest.mark.parametrize("damage", [emptied, cut_off, overwritten, changed, another, Path.unlink])
def test_a_damaged_study_is_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    """With all its trials; one warning says so, and what was there is kept."""
    before = run_trials(tmp_path)
    database = tmp_path / "study.db"
    damage(database)
    rest = database.read_bytes() if database.exists() else None
    with caplog.at_level(logging.WARNING):
        again = opened(tmp_path)
    assert stored(again) == before
    assert len(caplog.messages) == 1
    assert "it was restored from its backup" in caplog.messages[0]
    damaged = tmp_path / "study.db.damaged"
    assert (damaged.read_bytes() if damaged.exists() else None) == rest
    again.tell(ask(again), FAST, 8.0)
    assert len(stored(opened(tmp_path))) == TRIALS + 1


def test_a_sound_study_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whether its backup is older, damaged or missing."""
    before = run_trials(tmp_path)
    backup = tmp_path / "study.db.backup"
    for text in (backup.read_bytes()[:-40], b"", None):
        backup.unlink()
        if text is not None:
            backup.write_bytes(text)
        with caplog.at_level(logging.WARNING):
            assert stored(opened(tmp_path)) == before
        Backup(tmp_path).save()
    assert not caplog.messages


def test_damage_during_a_search_ends_it_and_spares_the_backup(tmp_path: Path) -> None:
    """The line says that the same command restores the study."""
    before = run_trials(tmp_path)
    study = opened(tmp_path)
    proposal = ask(study)
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection, connection:
        connection.execute("UPDATE trial_user_attributes SET value_json = '{}' WHERE key = 'sktune:outcome'")
    with one_line_error(StudyError, r"damaged while the search ran.*; run the same command again"):
        study.tell(proposal, FAST, 8.0)
    study.storage.engine.dispose()
    assert stored(opened(tmp_path)) == before


def test_a_backup_that_cannot_be_written_costs_no_trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is a warning, once."""
    study = opened(tmp_path)
    (tmp_path / "study.db.backup.new").mkdir()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            study.tell(ask(study), FAST, 8.0)
    assert len(stored(study)) == 2
    assert [message.partition(":")[0] for message in caplog.messages] == ["the study's backup cannot be written"]


def test_tables_of_another_optuna_are_refused_with_the_command_that_upgrades_them(tmp_path: Path) -> None:
    """In one line; upgraded, the study is as before."""
    before = run_trials(tmp_path)
    change = "UPDATE alembic_version SET version_num = ?"
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection:
        version = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        with connection:
            connection.execute(change, ("v3.0.0.d",))
        with one_line_error(StudyError, "another version of Optuna; run `optuna storage upgrade"):
            opened(tmp_path)
        with connection:
            connection.execute(change, version)
    assert stored(opened(tmp_path)) == before


def test_a_backup_that_takes_long_is_not_made_after_each_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take longer than the trials of a large study on many dies; however a search ends, its end makes one."""
    seconds = itertools.count()
    monkeypatch.setattr("sktune.study.backup.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    study, backup = opened(tmp_path), tmp_path / "study.db.backup"
    before = backup.read_bytes()
    with pytest.raises(ZeroDivisionError), study.claimed({"model": "llama"}):
        study.tell(ask(study), FAST, 8.0)
        assert backup.read_bytes() == before
        for _ in range(20):  # seconds
            study.tell(ask(study), FAST, 8.0)
        assert (later := backup.read_bytes()) != before
        study.tell(ask(study), FAST, 8.0)
        assert backup.read_bytes() == later
        raise ZeroDivisionError
    expected = stored(study)
    study.storage.engine.dispose()
    (tmp_path / "study.db").unlink()
    assert stored(opened(tmp_path)) == expected
