"""Whether a SuperKernel would wait for tasks that wait for it: graph-autofusion's check for deadlocks.

Restated from ``super_kernel/src/aot/sk_lock_detector.cpp`` in graph-autofusion (8d0b4fbc). A SuperKernel holds its
cores until it ends, also while it waits inside for other streams: what these run until they notify it must fit on the
other cores.
"""

from sktune.ascend.captured_graph import CapturedGraph, Kind, SplitNode, UnfusedReason

Cores = tuple[int, int]


class DeadlockCheck:
    """The nodes of one SuperKernel, added one after the other.

    Attributes:
        detail: why the last node could not be added, as logs name it.
    """

    def __init__(self, graph: CapturedGraph, device: Cores, keeps_unpaired_waits: bool) -> None:
        self._nodes, self._device, self._keeps = graph.nodes, device, keeps_unpaired_waits
        self.detail = ""
        self._visited: set[int] = set()
        self._tentative: list[int] = []
        self._inside: Cores = (0, 0)
        self._before: Cores = (0, 0)
        self._streams: set[int] = set()
        self._ranges: dict[int, tuple[int, int]] = {}

    def accepts(self, node: SplitNode) -> bool:
        """Add a node unless it would wait for ever."""
        if node.id in self._visited:
            return True
        self.detail = ""
        if not self._fits(node):
            if self.detail:
                node.reason, node.detail = UnfusedReason.EXIST_DEADLOCK, self.detail
            return False
        self._streams.add(node.stream)
        self._visited.add(node.id)
        first, last = self._ranges.get(node.stream, (node.position, node.position))
        self._ranges[node.stream] = min(first, node.position), max(last, node.position)
        return True

    def _fits(self, node: SplitNode) -> bool:
        if node.kind is Kind.KERNEL:
            self._inside, fits = _grown(self._inside, node.cores, self._device, self._before)
            return fits
        if node.kind is Kind.RECORD and node.held != (0, 0):
            self.detail = "NOTIFY_INVALID"
            return False
        if node.kind is not Kind.WAIT or (self._keeps and node.has_address and node.notify is None):
            return True
        self._tentative = []
        if self._wait_fits(node):
            return True
        self._visited.difference_update(self._tentative)
        return False

    def _wait_fits(self, node: SplitNode) -> bool:
        if node.notify is None:
            self.detail = "NOTIFY_NOT_IN_GRAPH"
            return False
        if not self._streams:
            self.detail = "FIRST_WAIT"
            return False
        notify = self._nodes[node.notify]
        if notify.stream in self._streams:
            if self._is_after(notify):
                self.detail = "NOTIFY_AFTER_SK_RANGE"
            return not self._is_after(notify)
        if self._streams & notify.scope_streams:
            return True
        if notify.held != (0, 0):
            if not self._grow_before(notify.held):
                self.detail = "NOTIFY_INSUFFICIENT_CORES"
                return False
            self._tentative.append(notify.id)
        return not self._locks(notify)

    def _locks(self, node: SplitNode) -> bool:
        """Whether what runs before a node on its stream needs the cores of the SuperKernel, or its end."""
        paths = [node]  # to go back from, the last one first
        while paths:
            node = paths.pop()
            self._visited.add(node.id)
            self._tentative.append(node.id)
            if node.previous is None or node.previous in self._visited:
                continue
            before = self._nodes[node.previous]
            if before.scope_streams & self._streams:
                continue
            if before.kind is Kind.WAIT:
                if before.notify is None:
                    self.detail = "NOTIFY_NOT_IN_GRAPH"
                    return True
                notify = self._nodes[before.notify]
                if self._is_after(notify):
                    self.detail = "NOTIFY_AFTER_SK_RANGE"
                    return True
                if notify.stream != before.stream and notify.stream not in self._streams:
                    paths.append(notify)
                paths.append(before)
                continue
            if before.kind in (Kind.KERNEL, Kind.RECORD) and not self._grow_before(before.held):
                self.detail = f"{'NOTIFY' if before.kind is Kind.RECORD else 'KERNEL'}_INSUFFICIENT_CORES"
                return True
            if before.kind is Kind.RECORD:
                waiting = self._nodes[before.waits[0]] if before.waits else None
                inside = self._ranges.get(waiting.stream) if waiting else None
                if waiting is None or (inside and waiting.position < inside[0]):
                    continue
            paths.append(before)
        return False

    def _is_after(self, node: SplitNode) -> bool:
        return node.stream in self._ranges and node.position > self._ranges[node.stream][1]

    def _grow_before(self, cores: Cores) -> bool:
        self._before, fits = _grown(self._before, cores, self._device, self._inside)
        return fits


def _grown(held: Cores, cores: Cores, device: Cores, others: Cores) -> tuple[Cores, bool]:
    """Return the cores that are held with more, and whether the device has them besides those of the others."""
    most = (max(held[0], cores[0]), max(held[1], cores[1]))
    if most == held:
        return held, True
    if cores[0] <= device[0] - others[0] and cores[1] <= device[1] - others[1]:
        return most, True
    return held, False
