"""How much a ratio differs between dies, beside how much it differs between processes on one die."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from statistics import mean, variance


@dataclass(frozen=True, slots=True)
class DieSpread:
    """Standard deviations of a log ratio.

    Attributes:
        between_dies: of the dies' own values; with one process on each die, it contains the processes' luck.
        between_processes: of the processes on one die; None if no die has several.
    """

    between_dies: float
    between_processes: float | None


def die_spread(log_ratios: Iterable[float], dies: Sequence[str]) -> DieSpread:
    """Return the spread of the log ratios of processes, which ran on two dies or more.

    The estimate by moments of a random effect with unequal numbers, from the unweighted means of dies (Thomas and
    Hultquist 1978, Ann. Stat. 6:582). A few dies tell little about it; intervals do not depend on this split.
    """
    ordered = sorted(zip(dies, log_ratios, strict=True))
    of_dies = [[value for _, value in group] for _, group in groupby(ordered, key=lambda pair: pair[0])]
    of_means = variance([mean(values) for values in of_dies])
    if not (degrees := len(ordered) - len(of_dies)):
        return DieSpread(sqrt(of_means), None)
    centres = [mean(values) for values in of_dies]
    squares = sum((value - centre) ** 2 for values, centre in zip(of_dies, centres, strict=True) for value in values)
    within = squares / degrees
    of_luck = within * mean(1 / len(values) for values in of_dies)
    return DieSpread(sqrt(max(0.0, of_means - of_luck)), sqrt(within))
