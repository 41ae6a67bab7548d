"""The files of a search: written as a whole, or not at all."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sktune.core.errors import StudyError
from sktune.reports import outputs
from tests.builders import study_of


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
