"""Sufficient statistics: sums over observations from which a linear model is fitted."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class Evidence:
    """Sums over weighted rows, which get longer as new segments are observed."""

    def __init__(self, size: int) -> None:
        self._gram, self._moment = np.zeros((size, size)), np.zeros(size)
        self.squares, self.count = 0.0, 0

    def add(self, rows: Sequence[tuple[Vector, float, float]]) -> None:
        """Add rows of (description, saving, standard deviation)."""
        weights = np.array([1.0 / sd for _, _, sd in rows])
        described = np.array([row for row, _, _ in rows]) * weights[:, None]
        savings = np.array([saving for _, saving, _ in rows]) * weights
        self._grow(described.shape[1])
        size = described.shape[1]
        self._gram[:size, :size] += described.T @ described
        self._moment[:size] += described.T @ savings
        self.squares += float(savings @ savings)
        self.count += len(rows)

    def gram(self, size: int) -> Vector:
        """Return the sum of outer products, shape (size, size): a view, which is not to be written."""
        self._grow(size)
        return self._gram[:size, :size]

    def moment(self, size: int) -> Vector:
        """Return the sum of rows times savings, shape (size,): a view, too."""
        self._grow(size)
        return self._moment[:size]

    def _grow(self, size: int) -> None:
        if size > len(self._moment):
            more = max(size, 2 * len(self._moment)) - len(self._moment)
            self._gram = np.pad(self._gram, ((0, more), (0, more)))
            self._moment = np.pad(self._moment, (0, more))
