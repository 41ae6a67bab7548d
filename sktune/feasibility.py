"""Which scopes fail: learned from failures, from what was blamed for them, and from what went well.

A logistic model of segment classes, unit types and options (normal priors, posterior mode by Newton's method). What
was shown to run is safe, what was blamed is not proposed again; blame that cannot be pinned on one scope is shared
among the suspects in proportion to their odds, and moves when one of them is seen to run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sktune.plan import Option, Options
from sktune.segments import SegmentCatalogue

Vector = npt.NDArray[np.float64]
Key = tuple[int, Options]
"""A class of segments and its scope's options."""

PRIOR_LOGIT, PRIOR_LOGIT_SD = -3.0, 1.5
TYPE_SD, OPTION_SD, SEGMENT_SD = 1.0, 3.0, 3.0
NEWTON_STEPS = 10
BANNED = 0.5
"""A class that failed with other options is left alone where it is more likely to fail than not."""


@dataclass
class _Record:
    good: int = 0
    bad: float = 0.0


@dataclass
class Feasibility:
    """What is known of failures; ``options`` are the values that differ from the compiler's defaults."""

    catalogue: SegmentCatalogue
    options: Sequence[tuple[str, Option]]
    _records: dict[Key, _Record] = field(default_factory=dict)
    _suspects: list[tuple[Key, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = list(dict.fromkeys(self.catalogue.types))
        spans = [
            set(self.catalogue.types[first : last + 1])
            for first, last in zip(self.catalogue.first, self.catalogue.last, strict=True)
        ]
        self._types = np.array([[float(name in span) for name in names] for span in spans])

    @property
    def has_failures(self) -> bool:
        """Whether anything failed so far."""
        return bool(self._suspects) or any(record.bad for record in self._records.values())

    def succeeded(self, scopes: Sequence[Key]) -> None:
        """Take note of scopes that compiled and kept every bit."""
        for key in scopes:
            self._records.setdefault(key, _Record()).good += 1

    def failed(self, scopes: Sequence[Key], blamed: Key | None) -> None:
        """Take note of a plan that failed, and of the scope to blame if that is known."""
        unknown = [key for key in dict.fromkeys(scopes) if not self._is_good(key)]
        if blamed is None and len(unknown) == 1:
            blamed = unknown[0]
        if blamed is None:
            self._suspects.append(tuple(unknown))
        else:
            self._records.setdefault(blamed, _Record()).bad += 1

    def blamed(self) -> list[Key]:
        """Return what is known to fail, and was never seen to run."""
        return [key for key, record in self._records.items() if record.bad and not record.good]

    def log_safe(self, options: Sequence[Options]) -> Vector:
        """Return the logarithm of the probability that a scope works, shape (n_classes, len(options)).

        It is 0 where the scope was seen to run, and ``-inf`` where it is known to fail.
        """
        weights, segments = self._mode()
        width = self._types.shape[1]
        logit = weights[0] + self._types @ weights[1 : 1 + width]
        for index, segment in enumerate(segments):
            logit[segment] += weights[1 + width + len(self.options) + index]
        of_options = [
            sum(weights[1 + width + index] for index, option in enumerate(self.options) if option in combination)
            for combination in options
        ]
        table = -np.logaddexp(0.0, logit[:, None] + np.array(of_options)[None, :])
        for (segment, known), record in self._records.items():
            for column, combination in enumerate(options):
                if combination == known and record.good:
                    table[segment, column] = 0.0
                elif record.bad and not record.good and not self._is_good((segment, combination)):
                    is_same = combination == known
                    if is_same or table[segment, column] < np.log(1 - BANNED):
                        table[segment, column] = -np.inf
        return table

    def _is_good(self, key: Key) -> bool:
        return key in self._records and self._records[key].good > 0

    def _mode(self) -> tuple[Vector, list[int]]:
        """Return the weights (constant, unit types, options, segments that are or may be to blame), and the latter."""
        cases = [(key, record.good, record.bad) for key, record in self._records.items()]
        shared: dict[Key, float] = {}
        suspects = [tuple(key for key in group if not self._is_good(key)) for group in self._suspects]
        for group in suspects:
            for key in group:
                shared[key] = max(shared.get(key, 0.0), 1.0 / len(group))
        cases += [(key, 0, share) for key, share in shared.items() if key not in self._records]
        segments = list(dict.fromkeys(key[0] for key, _, bad in cases if bad))
        rows = np.array([self._row(key, segments) for key, _, _ in cases]).reshape(len(cases), -1)
        sd = np.array(
            [PRIOR_LOGIT_SD]
            + [TYPE_SD] * self._types.shape[1]
            + [OPTION_SD] * len(self.options)
            + [SEGMENT_SD] * len(segments)
        )
        prior = np.zeros(len(sd))
        prior[0] = PRIOR_LOGIT
        weights = prior.copy()
        if not len(cases):
            return weights, segments
        # A scope that ran once will run again: how often tells nothing more.
        good = np.array([float(good > 0) for _, good, _ in cases])
        bad = np.array([min(1.0, bad) * (not good) for _, good, bad in cases])
        for _ in range(NEWTON_STEPS):
            chance = 1.0 / (1.0 + np.exp(-rows @ weights))
            gradient = rows.T @ (bad - (good + bad) * chance) - (weights - prior) / sd**2
            curvature = rows.T @ (rows * ((good + bad) * chance * (1 - chance))[:, None]) + np.diag(sd**-2.0)
            weights = weights + np.linalg.solve(curvature, gradient)
        return weights, segments

    def _row(self, key: Key, segments: Sequence[int]) -> Vector:
        segment, options = key
        return np.concatenate(
            [
                [1.0],
                self._types[segment],
                [float(option in options) for option in self.options],
                [float(segment == other) for other in segments],
            ]
        )
