"""Whether a die can be trusted, judged by its own record and that of the others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

SLOW = 1.25
"""Identical dies differ by 8% on average and 22% at most (arXiv 2208.11035); one that changes by more has a fault."""
MIN_RECORD = 3
"""Fewest baseline latencies from which a change can be told."""


def expected_ms(records: Mapping[str, Sequence[float]], die: str) -> float | None:
    """Return the baseline latency to expect on a die; None if too little is known.

    It is that of the die's record, changed as the other dies have changed: what slows down all of them is the machine
    or the model.

    Args:
        records: baseline latencies of each die, in order.
        die: of whom.
    """
    own = records.get(die, ())
    known = [record for name, record in records.items() if name != die and len(record) >= MIN_RECORD]
    if len(own) < MIN_RECORD or not known:
        return None
    return median(own) * median(record[-1] / median(record) for record in known)


def is_slow(records: Mapping[str, Sequence[float]], die: str, baseline_ms: float) -> bool:
    """Whether a die has become slow, by a new baseline latency."""
    expected = expected_ms(records, die)
    return expected is not None and baseline_ms > SLOW * expected


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
