"""The noise floor: the measured difference between the baseline and itself. No smaller effect is reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log, log1p
from typing import Annotated

from sktune.core.codec import LEFT_OUT_IF_EMPTY
from sktune.core.outcome import Speedup
from sktune.measure.confidence_sequence import Comparison, compare_with_floor

MIN_FLOOR = 0.001
"""No smaller effect is ever reported: nobody would change a model for it."""
WIDE = 2.5
"""In the final comparison more contenders share the time, so that intervals up to twice as wide are normal."""


@dataclass(frozen=True, slots=True)
class NoiseFloorSample:
    """A second copy of the baseline, measured against the first.

    Attributes:
        before_trial: number of the trial that came next.
        speedup: of the second copy over the first.
        noise: what disturbed the measurement; see ``sktune.measure.latency.Measurement``.
        seconds: time that it took, including the compile.
        die: that it was measured on, if the search had several; empty otherwise.
    """

    before_trial: int
    speedup: Speedup
    noise: str = ""
    seconds: float = 0.0
    die: Annotated[str, LEFT_OUT_IF_EMPTY] = ""


@dataclass(frozen=True, slots=True)
class Threshold:
    """What a plan has to beat.

    Attributes:
        noise_floor: relative effect that is insignificant.
        incumbent_ratio: lower bound of the incumbent's speedup. Measuring stops once a plan's interval is below it by
            more than the noise floor. The true value exceeds the interval with at most 2.5%, over all looks.
    """

    noise_floor: float = 0.0
    incumbent_ratio: float = 1.0

    def comparison(self, speedup: Speedup) -> Comparison:
        """Return the verdict of a measurement against the baseline."""
        low, high = speedup.bounds
        return compare_with_floor(log(low), log(high), log1p(self.noise_floor))

    def is_out_of_reach(self, speedup: Speedup) -> bool:
        """Whether a plan is significantly slower than the incumbent or the baseline."""
        return speedup.bounds[1] * (1 + self.noise_floor) < max(1.0, self.incumbent_ratio)


def noise_floor(copies: Sequence[Speedup]) -> float:
    """Return the largest relative difference measured between the baseline and itself.

    Each of ``copies`` is one copy's speedup: two copies of the same code may differ consistently, as their buffers are
    at different addresses. A copy whose interval is over ``WIDE`` times as wide as the narrowest is left out: it shows
    a disturbance of the machine.
    """
    widths = [log(copy.bounds[1] / copy.bounds[0]) for copy in copies]
    ratios = [copy.ratio for copy, width in zip(copies, widths, strict=True) if width <= WIDE * min(widths)]
    return max([MIN_FLOOR, *(expm1(abs(log(ratio))) for ratio in ratios)])


def drift(samples: Sequence[NoiseFloorSample]) -> float:
    """Return the relative increase of the baseline's latency to the last sample from the first one on the same die.

    Identical dies differ in latency by more than one of them drifts.
    """
    latencies_ms = [sample.speedup.baseline_ms for sample in samples if sample.die == samples[-1].die]
    return latencies_ms[-1] / latencies_ms[0] - 1 if samples else 0.0
