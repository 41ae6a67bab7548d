"""What is known of Inductor in each version of torch. Nothing here imports torch.

Found by ``tests/backends`` on a CPU, with torch 2.8.0, 2.10.0, 2.13.0, 2.14.0 and 2.15.0, each in an environment of its
own. A version between two of these is taken for the less exact one.

``torch_private`` has the names on which this package relies, and says what has changed in them.
"""

from __future__ import annotations

import re

OLDEST, NEWEST = (2, 8), (2, 15)
"""Outside of these, nobody knows which operators keep their bits."""
DIVIDES_BY_CONSTANTS_SINCE = (2, 10)
"""Before, a quotient by a constant is a product with its reciprocal, unless ``numerics`` prevents it."""
ORDERS_WRITES_SINCE = (2, 10)
"""Before, memory may be written before it was read, unless ``numerics`` prevents it."""
COMPARES_LONG_INTEGERS_SINCE = (2, 10)
"""Before, a 16-bit fraction and a long integer are compared in another type than in eager execution."""
KEEPS_MARKS_SINCE = (2, 10)
"""Before, Inductor removes operators without outputs, as marks are, from what it compiles."""
ROUNDS_FACTORS_SINCE = (2, 15)
"""From then on, a number that multiplies or divides 16-bit fractions is rounded to 16 bits first."""


def number_of(version: str) -> tuple[int, ...]:
    """Return major and minor version of torch."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def problem_with(version: str) -> str:
    """Return why plans for Inductor are refused with a version of torch, in one line; empty if they are not."""
    if OLDEST <= number_of(version) <= NEWEST:
        return ""
    first, last = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    return (
        f"it is not known which bits the Inductor of torch {version} keeps; "
        f"use torch {first} to {last} for --backend inductor, or another backend"
    )
