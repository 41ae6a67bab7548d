"""Lines that tell a decode step's latency, in the log formats of cann-recipes-infer.

Sources: executor/core/scheduler/scheduler.py (one line a step) and executor/offline/infer.py (averages) of
hicann/cann-recipes-infer, and the runners that models of their own have.
"""

import math
import re
from collections.abc import Sequence

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_MAIN = re.compile(rf"\[Main\] Inference time \(decode\): {_NUMBER} ms")
_DRAFT = re.compile(rf"\[MTP \d+\] Inference time \(decode\): {_NUMBER} ms")
_OTHERS = [
    re.compile(rf"inference time cost of decode is {_NUMBER} ms"),
    re.compile(rf"\[decode\] inference time cost {_NUMBER} ms"),
    re.compile(rf"main and mtp model average inference time cost is {_NUMBER} ms"),
    re.compile(rf"(?:decode )?average inference time cost is {_NUMBER} ms"),
]
"""Those of single steps first: averages leave out what they please."""


def step_latencies_ms(text: str, pattern: str | None = None) -> list[float]:
    """Return the latencies that a log tells, in its order; an average alone counts as one.

    A draft model's part (``[MTP 0]``) belongs to the step before it.

    Args:
        text: the log.
        pattern: a regular expression of the user's own, whose first group is milliseconds; None for those known. What
            is no number there is NaN.
    """
    if pattern is not None:
        return [_milliseconds(found.group(1)) for found in re.finditer(pattern, text)]
    if steps := _with_drafts(text.splitlines()):
        return steps
    for known in _OTHERS:
        if found := [float(number) for number in known.findall(text)]:
            return found
    return []


def _milliseconds(text: str | None) -> float:
    """Return a number as logs write it; NaN where it is none, which no run is measured by."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return math.nan


def _with_drafts(lines: Sequence[str]) -> list[float]:
    steps: list[float] = []
    for line in lines:
        if main := _MAIN.search(line):
            steps.append(float(main.group(1)))
        elif steps and (draft := _DRAFT.search(line)):
            steps[-1] += float(draft.group(1))
    return steps
