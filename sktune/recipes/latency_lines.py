"""Finds the latencies of decode steps in the log formats of cann-recipes-infer.

Sources: executor/core/scheduler/scheduler.py (one line per step) and executor/offline/infer.py (averages) of
hicann/cann-recipes-infer, and the runners that some of its models have.
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
"""Lines for single steps come first: each average leaves out other steps."""


def step_latencies_ms(text: str, pattern: str | None = None) -> list[float]:
    """Return the latencies in a log, in order; a lone average counts as one latency.

    A draft model's part (``[MTP 0]``) belongs to the step before it.

    Args:
        text: the log.
        pattern: the user's regular expression, whose first group is milliseconds, NaN if it is not a number; None for
            the known formats.
    """
    if pattern is not None:
        return [_milliseconds(match.group(1)) for match in re.finditer(pattern, text)]
    if steps := _with_drafts(text.splitlines()):
        return steps
    for line_format in _OTHERS:
        if latencies := [float(number) for number in line_format.findall(text)]:
            return latencies
    return []


def _milliseconds(text: str | None) -> float:
    """Parse a number that may have thousands separators; NaN, which no run accepts, if it is not a number."""
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
