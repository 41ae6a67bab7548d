"""Samples are stored, and can be read back."""

from pathlib import Path

import numpy as np
import pytest

from sktune.core.errors import BadInputError
from sktune.measure import samples
from sktune.measure.latency import Measurement


def test_samples_are_read_back_as_written(tmp_path: Path) -> None:
    """Names, seconds and disturbed rounds."""
    taken = Measurement(np.array([[0.005, 0.004], [0.0051, 0.0042]]), np.array([False, True]), min_rounds=40)
    path = tmp_path / samples.FOLDER / "trial-0003.npz"
    samples.write(path, ["baseline", "plan"], taken)
    found = samples.read(path)
    assert found.names == ("baseline", "plan")
    np.testing.assert_allclose(found.seconds, taken.samples, rtol=1e-6)
    assert found.disturbed.tolist() == [False, True]


def test_a_file_of_something_else_is_rejected(tmp_path: Path) -> None:
    """With one line that says what to do; nothing in the file is executed."""
    path = tmp_path / "trial.npz"
    with pytest.raises(BadInputError, match="use a file in a study's samples/"):
        samples.read(path)
    path.write_bytes(b"no archive")
    with pytest.raises(BadInputError, match="contains no samples"):
        samples.read(path)
    np.savez_compressed(path, names=np.array([object()], dtype=object), seconds=np.zeros(1), disturbed=np.zeros(1))
    with pytest.raises(BadInputError, match="contains no samples"):
        samples.read(path)
