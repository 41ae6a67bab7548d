"""Verification: how much of a plan was compared with the baseline, and the bound that follows.

No number of equal steps proves that the next one is equal, but it gives a bound: if ``n`` steps drawn alike were all
equal, the share of steps that differ is below ``1 - 0.05 ** (1 / n)`` with 95% confidence, about ``3 / n`` (the rule of
three: Hanley and Lippman-Hand 1983, JAMA 249:1743).
"""

from dataclasses import dataclass
from math import expm1, floor, log1p, log10
from typing import Annotated

CONFIDENCE = 0.95
DEFAULT_VERIFY_STEPS = 2048
"""Decode steps on which a plan is compared with the baseline before it is called identical."""
EXACT_VERIFY_STEPS = 256
"""The same for a plan whose regions are all exact by construction. Its bound is that of ``DEFAULT_VERIFY_STEPS``: plans
of this kind have been compared on far more steps, and the share of those that differ as often as the bound allows is
smaller than the doubt of 5% that the bound leaves (``benchmarks/exact_plans.py``)."""


def steps_needed(steps: int, is_exact: bool) -> int:
    """Return how many steps a plan is compared on: fewer than the default if it is exact by construction."""
    return EXACT_VERIFY_STEPS if is_exact and steps == DEFAULT_VERIFY_STEPS else steps


@dataclass(frozen=True, slots=True)
class RegionCheck:
    """One distinct region of a plan, compared with the kernels that it replaces.

    Attributes:
        label: of the first scope with this region.
        key: identifies the region and its options in every process; may be empty.
        elements: number of output elements compared, on recorded activations and on variations of them.
        is_exact: whether all its operators are exact by construction: fused, they equal their separate kernels.
        difference: where it differs; empty if it does not.
    """

    label: str
    key: str = ""
    elements: int = 0
    is_exact: bool = False
    difference: str = ""


@dataclass(frozen=True, slots=True)
class VerificationSummary:
    """How much of a plan was compared with the baseline, and the bound that follows.

    Attributes:
        steps: number of decode steps whose outputs and state were compared.
        contexts: number of different prefills that these steps started from.
        elements: number of elements of outputs and state, over all steps.
        confidence: of ``differing_share_below``, from 0 to 1.
        differing_share_below: upper bound of the share of steps that differ.
        regions: number of distinct regions, each compared with its own kernels.
        exact_regions: how many of these are exact by construction.
        text: a summary in one line.
    """

    steps: Annotated[int, ("minimum", 0)]
    contexts: Annotated[int, ("minimum", 0)]
    elements: Annotated[int, ("minimum", 0)]
    confidence: float
    differing_share_below: float
    regions: Annotated[int, ("minimum", 0)]
    exact_regions: Annotated[int, ("minimum", 0)]
    text: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of a plan with the baseline.

    Attributes:
        steps: number of decode steps whose outputs and state were compared.
        contexts: number of different prefills that these steps started from.
        elements: number of elements of outputs and state compared, over all steps.
        regions: of a plan on Inductor, each distinct region against the kernels that it replaces.
        difference: the first difference between plan and baseline; empty if all bits were equal.
        code_digest: of the code that was verified; empty if the compiler does not report it.
        changes_bits: labels of the scopes known to change bits.
        is_broken: whether the plan no longer compiles or runs; ``difference`` says why.
    """

    steps: int = 0
    contexts: int = 0
    elements: int = 0
    regions: tuple[RegionCheck, ...] = ()
    difference: str = ""
    code_digest: str = ""
    changes_bits: tuple[str, ...] = ()
    is_broken: bool = False

    @property
    def is_identical(self) -> bool:
        """Whether steps were compared and nothing differed."""
        return self.steps > 0 and not self.difference and not self.differing_regions

    @property
    def differing_regions(self) -> tuple[RegionCheck, ...]:
        """The regions that differ from their kernels."""
        return tuple(region for region in self.regions if region.difference)

    @property
    def is_exact(self) -> bool:
        """Whether every region is exact by construction."""
        return bool(self.regions) and all(region.is_exact for region in self.regions)

    @property
    def differing_share(self) -> float:
        """Upper bound of the share of steps that differ, with 95% confidence; 1 if nothing was compared."""
        steps = self.steps
        if self.is_exact and steps >= EXACT_VERIFY_STEPS:
            steps = max(steps, DEFAULT_VERIFY_STEPS)
        return -expm1(log1p(-CONFIDENCE) / steps) if steps else 1.0

    def suffices(self, steps: int) -> bool:
        """Return whether as many steps were compared as ``steps_needed`` asks for."""
        return self.steps >= steps_needed(steps, self.is_exact)

    @property
    def one_in(self) -> int:
        """The bound as N of "fewer than 1 step in N", rounded down to two digits."""
        exact = 1 / self.differing_share
        unit = 10 ** max(0, floor(log10(exact)) - 1)
        return int(exact // unit * unit)

    @property
    def of_regions(self) -> str:
        """The checks of the regions in one line; empty if there were none."""
        if not self.regions:
            return ""
        exact = sum(region.is_exact for region in self.regions)
        regions = "1 region is" if len(self.regions) == 1 else f"{len(self.regions)} regions are"
        if exact == len(self.regions):
            return f"its {regions} exact by construction"
        tested = min(region.elements for region in self.regions if not region.is_exact)
        which = f"its {regions}" if not exact else f"{len(self.regions) - exact} of its {regions}"
        return f"{which} tested against its own kernels, on at least {tested:,} elements each"

    @property
    def summary(self) -> VerificationSummary:
        """The figures of it that are shown."""
        text = "; ".join(filter(None, (str(self), self.of_regions)))
        exact = sum(region.is_exact for region in self.regions)
        return VerificationSummary(
            self.steps, self.contexts, self.elements, CONFIDENCE, self.differing_share, len(self.regions), exact, text
        )

    def __str__(self) -> str:
        if self.difference or self.differing_regions:
            return self.difference or self.differing_regions[0].difference
        if not self.steps:
            return "not verified"
        steps = "1 step" if self.steps == 1 else f"{self.steps:,} steps"
        return f"identical on {steps}; at 95% fewer than 1 step in {self.one_in:,} differs"
