"""Variations of recorded inputs, including values chosen to show where a region's code rounds differently.

A sum in another order, a product that is not rounded before it is added, or another ``exp`` gives the same bits for
most inputs. Differences show for values of very different magnitudes, terms that cancel, results halfway between two
representable numbers, and the ends of the range.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Values = torch.Tensor
"""Shape (rows, elements), float32 or float64; each row is one variation."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers on the device of the varied values."""

    generator: torch.Generator

    @property
    def device(self) -> torch.device:
        """The device of the random numbers."""
        return self.generator.device

    def uniform(self, *size: int) -> torch.Tensor:
        """Return numbers in [0, 1)."""
        return torch.rand(size, generator=self.generator, device=self.device)

    def normal(self, *size: int) -> torch.Tensor:
        """Return normally distributed numbers."""
        return torch.randn(size, generator=self.generator, device=self.device)

    def integers(self, low: int, high: int, *size: int) -> torch.Tensor:
        """Return integers from ``low`` to ``high``, both included."""
        return torch.randint(low, high + 1, size, generator=self.generator, device=self.device)

    def one_of(self, count: int) -> int:
        """Return a number below ``count``."""
        return int(self.integers(0, count - 1))


def _permuted(values: Values, draw: Draw) -> Values:
    rows, count = values.shape
    step = draw.integers(1, 4 * count, rows, 1)
    step = torch.where(torch.gcd(step, torch.tensor(count, device=draw.device)) == 1, step, 1)
    index = (torch.arange(count, device=draw.device) * step + draw.integers(0, count - 1, rows, 1)) % count
    return values.gather(1, index)


def _normal(values: Values, draw: Draw) -> Values:
    finite = values[0].nan_to_num(0.0, 0.0, 0.0)
    spread = finite.square().mean().sqrt()
    return draw.normal(*values.shape) * torch.where(spread > 0, spread, 1.0)


def _near_ties(values: Values, draw: Draw) -> Values:
    """Return numbers of few bits, so that products are exact and sums are halfway between two numbers or near it."""
    halves = draw.integers(-16, 16, *values.shape) / 2
    nearby = 1 + draw.integers(-1, 1, *values.shape) * 2.0**-7
    return halves * torch.where(draw.uniform(values.shape[0], 1) < 0.5, nearby, 1.0)


def _times_odd_factors(values: Values, draw: Draw) -> Values:
    return values * (0.5 + 1.5 * draw.uniform(values.shape[0], 1))


def _cancelling(values: Values, draw: Draw) -> Values:
    count = values.shape[1]
    left = values[:, : count - count // 2]
    right = -left[:, : count // 2].roll(draw.one_of(max(1, count)), 1)
    return torch.cat((left, right * (1 + draw.integers(-1, 1, *right.shape) * 2.0**-7)), 1)


def _alternating(values: Values, draw: Draw) -> Values:  # noqa: ARG001
    signs = 1 - 2 * (torch.arange(values.shape[1], device=values.device) % 2)
    return values.abs() * signs


def _one_hot(values: Values, draw: Draw) -> Values:
    rows, count = values.shape
    index = draw.integers(0, count - 1, rows, 1)
    return torch.zeros_like(values).scatter_(1, index, values.gather(1, index))


def _constant(values: Values, draw: Draw) -> Values:
    index = draw.integers(0, values.shape[1] - 1, values.shape[0], 1)
    return values.gather(1, index).expand(values.shape)


def _with_infinities(values: Values, draw: Draw) -> Values:
    place = draw.uniform(*values.shape) < 1 / values.shape[1]
    return values.where(~place, math.inf * (1 - 2 * draw.integers(0, 1, *values.shape)))


@dataclass(frozen=True, slots=True)
class Variation:
    """One way to vary values.

    Attributes:
        name: describes it.
        change: computes the values.
        exponents: range of binary exponents for the largest magnitude, relative to the type's smallest normal number
            or, if ``from_top``, to its largest; None does not rescale.
    """

    name: str
    change: Callable[[Values, Draw], Values]
    exponents: tuple[int, int] | None = None
    from_top: bool = False

    @property
    def reaches_limits(self) -> bool:
        """Whether results computed from these values are often NaN."""
        return self.from_top or self.change is _with_infinities


CONTENTS = (
    Variation("recorded", lambda values, draw: values),
    Variation("permuted", _permuted),
    Variation("normally distributed", _normal),
    Variation(
        "of many magnitudes",
        lambda values, draw: draw.normal(*values.shape) * torch.exp2(draw.integers(-6, 6, *values.shape)),
    ),
    Variation("near ties of rounding", _near_ties),
)
COMMON = Variation("times odd factors", _times_odd_factors)
TREATMENTS = (
    Variation("unchanged", lambda values, draw: values),
    Variation(
        "times powers of two", lambda values, draw: values * torch.exp2(draw.integers(-8, 8, values.shape[0], 1))
    ),
    Variation("sums that cancel", _cancelling),
    Variation("alternating signs", _alternating),
    Variation("sparse", lambda values, draw: values.where(draw.uniform(*values.shape) < 0.1, 0.0)),
    Variation("one-hot", _one_hot),
    Variation("constant", _constant),
    Variation("with infinities", _with_infinities),
    Variation("denormal", _times_odd_factors, (-7, 2)),
    Variation("huge", _times_odd_factors, (-24, -1), from_top=True),
)
COMMON_SHARE = 0.6
"""Share of variations in the range of the recorded values; each one exercises other sums and roundings."""


def draw_kind(draw: Draw) -> tuple[Variation, Variation]:
    """Return a random pair of content and treatment; recorded values are left out, since they were compared first."""
    content = CONTENTS[1 + draw.one_of(len(CONTENTS) - 1)]
    if float(draw.uniform(1)) < COMMON_SHARE:
        return content, COMMON
    return content, TREATMENTS[draw.one_of(len(TREATMENTS))]


def vary(recorded: torch.Tensor, rows: int, kind: tuple[Variation, Variation], draw: Draw) -> torch.Tensor:
    """Return ``rows`` variations of ``recorded`` (elements,), of shape (rows, elements) and the same type."""
    wide = torch.float64 if recorded.dtype == torch.float64 else torch.float32
    values = recorded.to(wide).expand(rows, -1)
    content, treatment = kind
    values = treatment.change(content.change(values, draw), draw)
    if treatment.exponents is not None:
        limits = torch.finfo(recorded.dtype)
        origin = math.log2(limits.max) if treatment.from_top else math.log2(limits.tiny)
        exponent = draw.integers(*treatment.exponents, rows, 1) + origin
        largest = values.nan_to_num(0.0, 0.0, 0.0).abs().amax(1, keepdim=True)
        # In two steps, since the factor may be outside of the range.
        values = values / torch.where(largest > 0, largest, 1.0) * torch.exp2(exponent.to(wide))
    return values.to(recorded.dtype)


def vary_whole(recorded: torch.Tensor, rows: int, known: Sequence[int], draw: Draw) -> torch.Tensor:
    """Return ``rows`` variations of integers or booleans, of shape (rows, elements) and the same type.

    Args:
        recorded: shape (elements,).
        rows: their number.
        known: integers to which the region compares: what it does for one token of many happens for these.
        draw: the random numbers.
    """
    if recorded.dtype == torch.bool:
        share = torch.tensor((0.0, 0.05, 0.5, 0.95, 1.0), device=draw.device)[draw.integers(0, 4, rows, 1)]
        return draw.uniform(rows, len(recorded)) < share
    low, high = int(recorded.min()), int(recorded.max())
    limits = torch.iinfo(recorded.dtype)
    candidates = [number for number in known if limits.min <= number <= limits.max] or [low]
    between = draw.integers(low, high, rows, len(recorded))
    chosen = torch.tensor(candidates, device=draw.device)[draw.integers(0, len(candidates) - 1, rows, len(recorded))]
    share = torch.tensor((0.0, 0.3, 1.0), device=draw.device)[draw.integers(0, 2, rows, 1)]
    return torch.where(draw.uniform(rows, len(recorded)) < share, chosen, between).to(recorded.dtype)
