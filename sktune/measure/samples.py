"""Samples: every time that was ever taken for a study, one compressed NumPy file for each measurement, in ``samples/``.

``trial-0012.npz`` is a trial's, ``floor-0010.npz`` the baseline against itself before trial 10, ``qualifying.npz`` and
``final-1.npz``, ``final-2.npz``, ... those of the final comparison, one for each process. A recipe's program leaves one
file for each run, named after its log, with the columns of every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from sktune.core.errors import BadInputError, first_line
from sktune.measure.latency import Measurement

FOLDER = "samples"


@dataclass(frozen=True, slots=True)
class RecordedSamples:
    """What one file holds.

    Attributes:
        names: of the contenders, the baseline first.
        seconds: shape (rounds, contenders); rounds 2k and 2k + 1 are one block.
        disturbed: for each round, whether the machine did other things meanwhile.
    """

    names: tuple[str, ...]
    seconds: npt.NDArray[np.float64]
    disturbed: npt.NDArray[np.bool_]


def write(path: Path, names: Sequence[str], measurement: Measurement) -> None:
    """Write what was measured of the contenders ``names``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        names=np.array(names),
        seconds=measurement.samples.astype(np.float32),
        disturbed=measurement.disturbed,
    )


def read(path: Path) -> RecordedSamples:
    """Read a file back.

    Raises:
        BadInputError: there is no such file, or it holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            names = tuple(str(name) for name in data["names"])
            return RecordedSamples(names, data["seconds"].astype(np.float64), data["disturbed"])
    except (OSError, KeyError, ValueError, BadZipFile) as failure:
        raise BadInputError(
            f"{path} holds no samples ({first_line(failure)}); name a file of a study's samples/"
        ) from failure
