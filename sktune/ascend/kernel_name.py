"""Parse the name of a SuperKernel.

GE names it ``sk_<scope>_start_<first operator>_end_<last operator>``, and the scope of a fragment
``<scope>_split_<begin>_<end>``, after the topological ids that cut it (``super_kernel_pass.cc`` in hicann/ge).
npugraph_ex puts a number after ``sk_``. Labels come from the user and may contain any of these words, so the labels of
the plan decide where the label ends.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

SUPERKERNEL = "SuperKernel"
"""The operator type of a fused kernel."""

_PREFIX = re.compile(r"sk_(?:\d+_)?")
_FRAGMENT = re.compile(r"_split_(\d+)_(\d+)$")


@dataclass(frozen=True, slots=True)
class SuperKernelName:
    """The parts of a SuperKernel's name.

    Attributes:
        scope: the label that was marked.
        first, last: names of the first and the last operator inside.
        fragment: the topological ids between which its operators are, if GE split the scope.
    """

    scope: str
    first: str
    last: str
    fragment: tuple[int, int] | None = None

    @property
    def is_fragment(self) -> bool:
        """Whether the scope became several SuperKernels."""
        return self.fragment is not None


def parse_superkernel_name(
    name: str, labels: Collection[str] = (), operators: Collection[str] = ()
) -> SuperKernelName | None:
    """Return the parts of ``name``, or None if it is not the name of a SuperKernel.

    ``labels`` are those of the plan and ``operators`` the names of the marked operators, if known: of several readings
    the one that matches them best is returned.
    """
    readings: list[SuperKernelName] = []
    prefix = _PREFIX.match(name)
    starts = {len("sk_"), prefix.end()} if prefix else set()
    # Without a known label, digits after sk_ are taken as npugraph_ex's number.
    for start in sorted(starts, reverse=True):
        for scope_end in _places(name, "_start_", start + 1):
            scope, fragment = name[start:scope_end], None
            if scope not in labels and (cut := _FRAGMENT.search(scope)):
                scope, fragment = scope[: cut.start()], (int(cut[1]), int(cut[2]))
            first_start = scope_end + len("_start_")
            for first_end in _places(name, "_end_", first_start + 1):
                last = name[first_end + len("_end_") :]
                if last:
                    readings.append(SuperKernelName(scope, name[first_start:first_end], last, fragment))
    return max(
        readings,
        key=lambda read: (read.scope in labels, read.first in operators, read.last in operators),
        default=None,
    )


def _places(text: str, word: str, start: int) -> Iterator[int]:
    place = text.find(word, start)
    while place >= 0:
        yield place
        place = text.find(word, place + 1)
