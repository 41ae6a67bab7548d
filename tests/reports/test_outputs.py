"""The files of a search: written as a whole, or not at all."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sktune.core.errors import StudyError
from sktune.core.printable import printable
from sktune.reports import outputs
from sktune.reports.study import report_markdown
from sktune.study.claims import locked
from tests.builders import sktune_command, study_of
from tests.reports.page_studies import study_in


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Have every write beyond ``size`` bytes fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_files_stay_as_they_were_if_the_disk_is_full(tmp_path: Path) -> None:
    """Above all the plan; the line says what to do, and nothing half-written is left."""
    result = study_of(tmp_path, "a", [1.3])
    folder = tmp_path / "a"
    outputs.write(result, folder)
    before = {path.name: path.read_text() for path in folder.iterdir() if path.name in outputs.OUTPUTS}
    assert before
    with files_of_at_most(16), pytest.raises(StudyError, match=r"cannot be written .*; fix that and run"):
        outputs.write(result, folder)
    assert {path.name: path.read_text() for path in folder.iterdir() if path.name in outputs.OUTPUTS} == before
    assert not list(folder.glob("*.new"))


def test_a_folder_on_a_full_disk_is_refused_in_one_line(tmp_path: Path) -> None:
    """Although the lock file itself can be opened."""
    with files_of_at_most(0), pytest.raises(StudyError, match="cannot be written") as failure, locked(tmp_path):
        pytest.fail("it was locked")
    assert "\n" not in str(failure.value)
    with locked(tmp_path):
        pass


def test_a_command_on_a_full_disk_fails_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the error comes from; other errors of the system keep their traceback."""

    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(number, os.strerror(number), "a file")

    monkeypatch.setattr("sktune.tuning.loop.search", full)
    number = errno.ENOSPC
    done = sktune_command("search", "--model", "llama", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("run the same command again")
    assert len(done.stderr.strip().splitlines()) == 1
    number = errno.ENOENT
    with pytest.raises(FileNotFoundError):
        sktune_command("search", "--model", "llama", folder=tmp_path)


def test_a_model_cannot_write_into_its_report(tmp_path: Path) -> None:
    """Neither a link that runs a script, nor what a terminal obeys; what it says stays readable."""
    evil = "a\x1b[2Jb [click](javascript:alert(1)) \\[x](data:y) a|b <b>\u202e ends"
    text = report_markdown(study_in(tmp_path, description=evil))
    assert printable(text) == text
    assert "\\[click\\](javascript" in text
    assert "\\\\\\[x\\](data" in text
    assert "a\\|b &lt;b&gt;" in text
