"""Scales: values to pixels, with round ticks."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

FAR = 8.0
"""Median absolute deviations from which a value lies far from most."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from the values ``low`` to ``high`` to the pixels ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float, margin: float = 0.06) -> "Scale":
        """Return a scale that shows all finite ``values`` with a margin, as a share of their range."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        room = (high - low) * margin or max(abs(low), 1e-9) * margin
        return cls(low - room, high + room, start, end)

    @classmethod
    def around_most(cls, values: Iterable[float], start: float, end: float) -> "Scale":
        """Return a scale like ``around`` without the values that lie far from most others; these move to its ends."""
        finite = sorted(value for value in values if math.isfinite(value))
        if len(finite) < 4:
            return cls.around(finite, start, end)
        middle = statistics.median(finite)
        room = FAR * statistics.median(abs(value - middle) for value in finite)
        near = [value for value in finite if abs(value - middle) <= room]
        return cls.around(near if room else finite, start, end)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; one outside is moved to the nearer end."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[tuple[float, str]]:
        """Return about ``wanted`` round values in the range, with labels that tell them apart.

        They are multiples of 1, 2 or 5 times a power of ten.
        """
        step = self.step(wanted)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(index * step, self.label(index * step, wanted)) for index in range(first, last + 1)]

    def step(self, wanted: int = 5) -> float:
        """Return the distance of the ticks."""
        rough = (self.high - self.low) / max(1, wanted)
        power = 10.0 ** math.floor(math.log10(rough))
        return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)

    def label(self, value: float, wanted: int = 5) -> str:
        """Return a tick's label, with as many decimals as its distance to the next one needs."""
        decimals = max(0, -math.floor(math.log10(self.step(wanted)) + 1e-9))
        return f"{value + 0.0:,.{decimals}f}"
