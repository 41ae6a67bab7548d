"""Storages: their URLs, whose studies they hold, and how their failures end."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sktune.core.errors import StudyError
from sktune.study.snapshot import snapshot_names
from sktune.study.storage import shown, sqlite_path
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import sktune_command, succeeded

NAMES = st.binary(min_size=1, max_size=20).map(os.fsdecode).filter(lambda name: not set(name) & {"/", "\0"})
SEARCH = ("search", "--model", "llama", "--backend", "sim")


@given(NAMES)
def test_the_url_of_a_folder_leads_back_to_it(name: str) -> None:
    """Whatever bytes its name has, and whatever they mean in a URL, in a template or to Optuna."""
    url = sqlite_url(Path("/runs") / name)
    assert sqlite_path(url) == Path("/runs") / name / "study.db"
    assert optuna.storages.RDBStorage._fill_storage_url_template(url) == url
    assert shown(url) == url


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b", "a{b}", "u:p@h", "a&mode=memory", "日本", "a\udcffb", "a\nb"])
def test_a_study_is_where_its_folder_is(name: str, tmp_path: Path) -> None:
    """Nothing is made beside it, and every reader finds it there."""
    folder = tmp_path / name
    folder.mkdir()
    url = sqlite_url(folder)
    TuningStudy.open("s", url, create=True)
    assert list(tmp_path.iterdir()) == [folder]
    assert snapshot_names(url) == ["s"]
    assert TuningStudy.open("s", url, create=False).finished() == 0


def test_two_folders_have_two_studies(tmp_path: Path) -> None:
    """Trials of one never appear in the other; a search continues its own."""
    for runs, trials in ((tmp_path / "a#b", "3"), (tmp_path / "a#c", "2"), (tmp_path / "a#b", "3")):
        done = succeeded(*SEARCH, "--trials", trials, "--runs", str(runs))
        assert f"{trials} trials:" in done.stdout
        succeeded("show", "llama-tiny-sim-cpu", "--runs", str(runs))
    assert {path.name for path in tmp_path.iterdir()} == {"a#b", "a#c"}


@pytest.mark.parametrize("trials", [0, 3])
def test_a_study_of_another_program_is_refused_and_stays_as_it_is(trials: int, tmp_path: Path) -> None:
    """Also one without trials."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    foreign = optuna.create_study(study_name="llama-tiny-sim-cpu", storage=url)
    foreign.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=trials)
    command = (*SEARCH, "--trials", "4", "--storage", url, "--runs", str(tmp_path))
    for again in (command, ("show", "llama-tiny-sim-cpu", "--storage", url), command):
        done = sktune_command(*again)
        assert done.returncode == 2
        assert "was not made by sktune" in done.stderr and done.stderr.count("\n") == 1
    stored = optuna.load_study(study_name="llama-tiny-sim-cpu", storage=url)
    assert len(stored.trials) == trials and not stored.user_attrs
    assert sktune_command(*command, "--study", "mine").returncode == 0  # beside it


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://user:p/w@host/0", "this is not the URL of a database"),
        ("rediss://host", "this is not the URL of a database"),
        ("redis+sentinel-1://user:pw@host", "this is not the URL of a database"),
        ("postgres://user:pw@host/db", "this is not the URL of a database"),
        ("user:pw@host", "this is not the URL of a database"),
        ("postgresql://user:p/w@host:x/db", "characters that must be written as"),
        ("postgresql://user:n@pw@127.0.0.1/db", "characters that must be written as"),
        ("postgresql://user:n@host:port/db", "its port is no number, or"),
        *((url, "names no file") for url in (
            "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite://", "sqlite:study.db",
            "sqlite://study.db", "sqlite:///a?b/study.db", "sqlite:///file:x?mode=memory&uri=true",
        )),
    ],
)  # fmt: skip
def test_a_url_that_is_none_gets_its_reason_in_one_line(url: str, reason: str, tmp_path: Path) -> None:
    """It never blames a password that is not read, nor shows it."""
    done = sktune_command(*SEARCH, "--trials", "1", "--storage", url, "--runs", str(tmp_path))
    assert done.returncode == 2
    assert reason in done.stderr and done.stderr.count("\n") == 1
    assert "pw" not in done.stderr and "p/w" not in done.stderr


def test_a_server_that_does_not_answer_may_answer_later(tmp_path: Path) -> None:
    """It is no fault of the command, whatever the command does with the storage."""
    for command in ((*SEARCH, "--trials", "1", "--runs", str(tmp_path)), ("studies",)):
        done = sktune_command(*command, "--storage", "postgresql+psycopg://user:pw@127.0.0.1:1/db")
        assert done.returncode == 1
        assert "Connection refused" in done.stderr and "pw" not in done.stderr


@pytest.mark.parametrize("table", ["recipes", "studies"])
def test_a_database_of_another_program_is_not_written_to(table: str, tmp_path: Path) -> None:
    """Optuna's tables are not added to it; a table of that name is not Optuna's."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {table} (title)")
    before = path.read_bytes()
    with pytest.raises(StudyError, match="belongs to another program"):
        TuningStudy.open("s", f"sqlite:///{path}", create=True)
    assert path.read_bytes() == before


def test_a_path_means_the_same_bytes_in_every_locale() -> None:
    """Python reads names of files as ASCII where the locale says so."""
    script = (
        "import os, sys; from sktune.study.storage import sqlite_path; print(os.fsencode(sqlite_path(sys.argv[1])))"
    )
    for url in (sqlite_url(Path("/中文")), "sqlite:////中文/study.db"):
        environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        command = [sys.executable, "-c", script, url]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == repr("/中文/study.db".encode())


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    """It is refused in one line, as the command's fault."""
    with pytest.raises(StudyError, match="unable to open"):
        TuningStudy.open("s", f"sqlite:///{tmp_path}", create=True)
