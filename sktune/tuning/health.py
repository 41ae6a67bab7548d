"""Whether a die can be trusted, judged by its own record and that of the others."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

SLOW = 1.25
"""Identical dies differ by 8% on average and 22% at most (arXiv 2208.11035); one that changes by more has a fault."""
MIN_RECORD = 3
"""Fewest baseline latencies from which a change can be told."""
FAR_SLOWER = 2.0
"""No die is that much slower than the others: outliers are 1.5 times as slow."""


def limit_ms(records: Mapping[str, Sequence[float]], die: str) -> float:
    """Return the baseline latency above which a die has become slow; infinite if too little is known.

    A die is held to its own record, changed as the other dies have changed: what slows down all of them is the machine
    or the model. While its record is short, it is held to theirs.

    Args:
        records: baseline latencies of each die, in order.
        die: of whom.
    """
    own = records.get(die, ())
    others = [record for name, record in records.items() if name != die and record]
    if not others:
        return math.inf
    if len(own) < MIN_RECORD:
        return FAR_SLOWER * median(map(median, others))
    return SLOW * median(own) * median(record[-1] / median(record) for record in others)


def dissenters(digests: Mapping[str, str]) -> set[str] | None:
    """Return the dies whose baseline has other bits than that of most; None if there is no majority.

    Args:
        digests: of each die's baseline; empty where nothing is compared.
    """
    if len(set(digests.values())) <= 1:
        return set()
    (common, votes), *_ = Counter(digests.values()).most_common()
    if 2 * votes <= len(digests):
        return None
    return {die for die, digest in digests.items() if digest != common}
