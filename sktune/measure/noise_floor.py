"""The noise floor: how far the baseline seems to be from itself. No smaller effect is claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import expm1, log, log1p
from typing import Any

from sktune.core.outcome import Speedup
from sktune.measure.confidence_sequence import Comparison, compare_with_floor

LEAST_FLOOR = 0.001
"""What is claimed is never less: nobody would change a model for it."""
WIDE = 2.5
"""In the final comparison more contenders share the time: intervals up to twice as wide are as good as can be had."""


@dataclass(frozen=True, slots=True)
class NoiseFloorSample:
    """The baseline, compiled once more, against the baseline.

    Attributes:
        before_trial: number of the trial that came next.
        speedup: of the second over the first.
        noise: what the machine did meanwhile; see ``sktune.measure.latency.Measurement``.
        seconds: how long it took, the compile included.
    """

    before_trial: int
    speedup: Speedup
    noise: str = ""
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "NoiseFloorSample":
        """Inverse of ``to_dict``."""
        return cls(**{**data, "speedup": Speedup.from_dict(data["speedup"])})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Threshold:
    """What a plan has to beat.

    Attributes:
        noise_floor: relative effect that means nothing.
        incumbent_ratio: lower bound of the incumbent's speedup. A plan whose interval lies below it, by more than the
            noise floor, is measured no longer. Its upper bound is missed with at most 2.5%, over all looks.
    """

    noise_floor: float = 0.0
    incumbent_ratio: float = 1.0

    def comparison(self, speedup: Speedup) -> Comparison:
        """Return what a measurement says against the baseline."""
        low, high = speedup.bounds
        return compare_with_floor(log(low), log(high), log1p(self.noise_floor))

    def is_out_of_reach(self, speedup: Speedup) -> bool:
        """Whether a plan is surely slower than the incumbent or the baseline."""
        return speedup.bounds[1] * (1 + self.noise_floor) < max(1.0, self.incumbent_ratio)


def noise_floor(copies: Sequence[Speedup]) -> float:
    """Return the largest relative difference that was seen between the baseline and itself.

    Each of ``copies`` is one copy's speedup: two copies of one code may differ for ever, by where their buffers lie.
    One whose interval is ``WIDE`` times the narrowest's shows the machine, and not the copy.
    """
    widths = [log(copy.bounds[1] / copy.bounds[0]) for copy in copies]
    ratios = [copy.ratio for copy, width in zip(copies, widths, strict=True) if width <= WIDE * min(widths)]
    return max([LEAST_FLOOR, *(expm1(abs(log(ratio))) for ratio in ratios)])


def drift(samples: Sequence[NoiseFloorSample]) -> float:
    """Return by how much the baseline's latency went up from the first sample to the last; negative: down."""
    return samples[-1].speedup.baseline_ms / samples[0].speedup.baseline_ms - 1 if samples else 0.0
