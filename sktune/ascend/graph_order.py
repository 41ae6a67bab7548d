"""In which order graph-autofusion takes the tasks of several streams into one SuperKernel.

Restated from ``super_kernel/src/aot/sk_candidate_heap.cpp`` and ``sk_optimizer.cpp`` in graph-autofusion (8d0b4fbc).
Without ``auto_op_parallel``, tasks run in the order of capture; with it, cube and vector kernels of different streams
alternate, and waits come as late as possible.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum

from sktune.ascend.captured_graph import Core, Kind, SplitNode

PARTNERS = {
    Core.CUBE: (Core.VECTOR,), Core.VECTOR: (Core.CUBE,), Core.MIX_1_1: (Core.MIX_1_1, Core.MIX_1_2),
    Core.MIX_1_2: (Core.MIX_1_1, Core.MIX_1_2),
}  # fmt: skip
"""Kernels that are preferred after one, if they are on another stream."""


class _Turn(IntEnum):
    OTHERS = 0
    EVENTS_AND_MARKERS = 1
    KERNELS = 2


class Candidates:
    """The next node of each stream, as far as it may run now."""

    def __init__(self, nodes: Sequence[SplitNode], auto_op_parallel: bool) -> None:
        self._nodes, self._parallel = nodes, auto_op_parallel
        self._ids: set[int] = set()
        self._last: SplitNode | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, node: int) -> bool:
        return node in self._ids

    def push(self, node: SplitNode) -> None:
        """Add a node."""
        self._ids.add(node.id)

    def pop(self) -> SplitNode:
        """Take the node that runs next."""
        nodes = [self._nodes[each] for each in sorted(self._ids)]
        node = self._preferred(nodes) if self._parallel else nodes[0]
        self._ids.remove(node.id)
        return node

    def _preferred(self, nodes: Sequence[SplitNode]) -> SplitNode:
        turn = min(map(_turn, nodes))
        nodes = [node for node in nodes if _turn(node) is turn]
        if turn is not _Turn.KERNELS:
            return nodes[0]
        if self._last is None:
            wanted = [node for node in nodes if node.core in PARTNERS[Core.MIX_1_1]]
        else:
            elsewhere = [node for node in nodes if node.stream != self._last.stream]
            wanted = [node for node in elsewhere if node.core in PARTNERS.get(self._last.core, ())] or elsewhere
        self._last = (wanted or nodes)[0]
        return self._last


def _turn(node: SplitNode) -> _Turn:
    if node.kind is Kind.OTHER:
        return _Turn.OTHERS
    return _Turn.KERNELS if node.kind is Kind.KERNEL and not node.is_marker else _Turn.EVENTS_AND_MARKERS


def with_late_waits(nodes: Sequence[SplitNode]) -> list[SplitNode]:
    """Return nodes with each wait moved to the next kernel of its stream."""
    pending: list[tuple[int, SplitNode]] = []
    ordered: list[SplitNode] = []

    def flush(until: int) -> Iterator[SplitNode]:
        yield from (wait for target, wait in pending if target <= until)
        pending[:] = [each for each in pending if each[0] > until]

    for index, node in enumerate(nodes):
        later = range(index + 1, len(nodes))
        target = next((at for at in later if nodes[at].kind is Kind.KERNEL and nodes[at].stream == node.stream), None)
        if node.kind is Kind.WAIT and target is not None:
            pending.append((target, node))
        else:
            ordered += [*flush(index), node]
    return [*ordered, *flush(len(nodes))]
