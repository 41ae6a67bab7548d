"""What a study has found, for another one to begin with: effects and failures by name, never bits, figures or code."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sktune.core.plan import Options


@dataclass(frozen=True, slots=True)
class FailedScope:
    """A scope that failed: the digest of the types of its units, and its options."""

    segment: str
    options: Options


@dataclass(frozen=True, slots=True)
class EarlierStudy:
    """The findings of a study.

    Attributes:
        name: of the study.
        trials: that it had finished.
        units: of its decode step, by number.
        types: of its units.
        effects: the mean of each effect, by name, as a share of that study's baseline step.
        under_law: the same if scopes save what the law of SuperKernels says; the law's own in us.
        failed: scopes that failed and never worked.
        baseline_us: of its baseline step, where the law is likely; by it the one here is guessed until it is measured.
    """

    name: str
    trials: int
    units: int
    types: tuple[str, ...] = ()
    effects: Mapping[str, float] = field(default_factory=dict)
    under_law: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[FailedScope, ...] = ()
    baseline_us: float = 0.0
