"""Front ends: what TorchAir and npugraph_ex have in each release of torch_npu, as data with versions.

Options were added in post-releases, side by side on several lines: 2.7.1.post11 has options that 2.10.0 lacks. What is
said of a tested release is held to the true front end (``tests/torchair/test_front_ends.py``).
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What one release of torch_npu has.

    Attributes:
        torch_npu: its version.
        superkernel: names of the options of npugraph_ex's SuperKernels; none if it has no such SuperKernels.
        takes_none: whether None is a scope of TorchAir.
        is_tested: whether the conformance suites run against it; else its wheel was only read.
        unconverted: operators that TorchAir does not convert, but does in the newest release.
    """

    torch_npu: str
    superkernel: tuple[str, ...]
    takes_none: bool = True
    is_tested: bool = False
    unconverted: tuple[str, ...] = ()


@cache
def front_ends() -> tuple[FrontEnd, ...]:
    """Return the releases that are known, the oldest first."""
    releases = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))["releases"]
    found = []
    for version, facts in releases.items():
        values: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in facts.items()}
        found.append(FrontEnd(version, **values))
    return tuple(found)


def front_end(torch_npu: str) -> FrontEnd | None:
    """Return the newest known release that is not newer than ``torch_npu``; None if there is none."""
    if (wanted := _key(torch_npu)) is None:
        return None
    return next((each for each in reversed(front_ends()) if (_key(each.torch_npu) or ()) <= wanted), None)


def releases_with(option: str = "") -> str:
    """Return which releases have an option of npugraph_ex's SuperKernels, in words: the first one of each line.

    Args:
        option: its name; by default any.
    """
    first: dict[tuple[int, ...], str] = {}
    for each in front_ends():
        if option in each.superkernel or (not option and each.superkernel):
            first.setdefault((_key(each.torch_npu) or ())[:3], each.torch_npu)
    return ", ".join(first.values())


def what_is_tested(torch_npu: str) -> str:
    """Return in words which tested release stands for ``torch_npu``: itself, or the newest one that is not newer."""
    known = [each.torch_npu for each in front_ends() if each.is_tested]
    if torch_npu in known:
        return "its front ends are tested"
    older = [each for each in known if (_key(each) or ()) <= (_key(torch_npu) or ())]
    return f"its front ends are not tested; those of {older[-1] if older else known[0]} are"


def _key(version: str) -> tuple[int, ...] | None:
    match = _VERSION.match(version)
    return tuple(int(number or 0) for number in match.groups()) if match else None
