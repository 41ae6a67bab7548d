"""Samples: all times measured for a study, one compressed NumPy file per measurement, in ``samples/``.

``trial-0012.npz`` is a trial, ``floor-0010.npz`` the baseline against itself before trial 10, ``qualifying.npz``,
``final-1.npz``, ``final-2.npz``, ... the final comparison, one for each process. A recipe's program leaves one file for
each run, named after its log, with the columns of every rank.
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
    """The content of a file of samples.

    Attributes:
        names: of the contenders, the baseline first.
        seconds: shape (rounds, contenders); rounds 2k and 2k + 1 are one block.
        disturbed: for each round, whether the machine was disturbed meanwhile.
    """

    names: tuple[str, ...]
    seconds: npt.NDArray[np.float64]
    disturbed: npt.NDArray[np.bool_]


def write(path: Path, names: Sequence[str], measurement: Measurement) -> None:
    """Write a measurement of the contenders ``names``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        names=np.array(names),
        seconds=measurement.samples.astype(np.float32),
        disturbed=measurement.disturbed,
    )


def read(path: Path) -> RecordedSamples:
    """Read a file of samples.

    Raises:
        BadInputError: the file does not exist, or contains something else.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            names = tuple(str(name) for name in data["names"])
            return RecordedSamples(names, data["seconds"].astype(np.float64), data["disturbed"])
    except (OSError, KeyError, ValueError, BadZipFile) as failure:
        raise BadInputError(
            f"{path} contains no samples ({first_line(failure)}); use a file in a study's samples/"
        ) from failure
