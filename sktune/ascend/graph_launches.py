"""Whether graph-autofusion can launch a group of tasks as one SuperKernel.

Restated from ``super_kernel/src/aot/sk_scope_postprocess.cpp`` in graph-autofusion (8d0b4fbc). Tasks of the captured
graph are overwritten, never added: a task of one stream launches the SuperKernel, and tasks of every other stream hold
that stream back before and after. So a group is lost if a stream has too few tasks in it; a marker counts as three.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sktune.ascend.captured_graph import EVENTS, CapturedGraph, Kind, RefusedGraphError, SplitNode


class LaunchStatus(StrEnum):
    """What becomes of a group; the names are those of the logs."""

    SUCCESS = "it becomes a SuperKernel"
    NO_TARGET_NODE = "no kernel is left, or no stream has a task for the launch"
    RESOURCE_INSUFFICIENT = "a stream has too few tasks to wait for the SuperKernel"


@dataclass(slots=True, eq=False)
class _Stream:
    """A stream in a group; ``used`` are the tasks that are overwritten to order it."""

    nodes: list[SplitNode]
    waits_before: bool
    waits_after: bool
    main: int | None = None
    used: int = 0

    @property
    def needed(self) -> int:
        return 2 * self.waits_before + 2 * self.waits_after

    @property
    def is_full(self) -> bool:
        return self.used > len(self.nodes)


def launch(graph: CapturedGraph, nodes: Sequence[SplitNode]) -> tuple[LaunchStatus, list[SplitNode], int]:
    """Return whether a group is launched, what is left of it, and the node in whose place it is launched.

    The groups of a graph are launched one after the other.

    Raises:
        RefusedGraphError: an earlier group has left out a task between this one's, or an event is not complete.
    """
    streams: dict[int, _Stream] = {}
    for node in nodes:
        known = streams.setdefault(node.stream, _Stream([], node.previous is not None, False))
        known.nodes.append(node)
        known.waits_after = node.next is not None
    for number, stream in streams.items():
        between = graph.streams[number][stream.nodes[0].position : stream.nodes[-1].position + 1]
        if not all(graph.nodes[each].can_fuse for each in between):
            raise RefusedGraphError(f"a task between others of stream {number} cannot be fused")
    kept = _without_inner_events(nodes)
    if not any(node.kind is Kind.KERNEL for node in kept):
        return LaunchStatus.NO_TARGET_NODE, [], 0
    status, main = _placed(list(streams.values()))
    # The events that are left work by addresses, which needs a record, a wait and a reset of each.
    for node in kept if status is LaunchStatus.SUCCESS else ():
        if node.kind in EVENTS and not node.has_address:
            of_event = [other for other in graph.nodes if other.event == node.event]
            if {other.kind for other in of_event} != EVENTS:
                raise RefusedGraphError(f"event {node.event[1]} is not recorded, waited for and reset in the graph")
            for other in of_event:
                other.has_address = True
    return status, kept, main


def _without_inner_events(nodes: Sequence[SplitNode]) -> list[SplitNode]:
    """Return the nodes without markers, and without events of which all waits are inside."""
    outside: Counter[tuple[str, int]] = Counter()
    seen = {node.event for node in nodes if node.kind in (Kind.RECORD, Kind.WAIT)}
    for node in nodes:
        if node.kind is Kind.RECORD:
            outside[node.event] += len(node.waits)
        elif node.kind is Kind.WAIT:
            outside[node.event] -= 1

    def is_inner(node: SplitNode) -> bool:
        if node.kind is Kind.RECORD:
            return not outside[node.event] and (not node.has_address or bool(node.waits))
        if node.kind is Kind.RESET:
            return node.event in seen and not outside[node.event]
        return node.kind is Kind.WAIT and outside[node.event] >= 0

    return [node for node in nodes if not node.is_marker and not is_inner(node)]


def _placed(streams: Sequence[_Stream]) -> tuple[LaunchStatus, int]:
    """Return the node that launches the SuperKernel, once all other streams wait for it."""
    before = sum(stream.waits_before for stream in streams)
    for each in streams:
        reserved = int(before - each.waits_before > 0)
        each.main = next((node.id for node in each.nodes[reserved:] if node.kind is Kind.KERNEL), None)
        if each.main is None and each.needed - each.waits_before > len(each.nodes):
            return LaunchStatus.RESOURCE_INSUFFICIENT, 0
    if len(streams) == 1:
        return (LaunchStatus.NO_TARGET_NODE, 0) if streams[0].main is None else (LaunchStatus.SUCCESS, streams[0].main)
    chosen = _chosen(streams)
    if chosen is None:
        return LaunchStatus.NO_TARGET_NODE, 0
    main, entry = chosen
    others = [each for each in streams if each not in (main, entry) and each.needed <= len(each.nodes)]
    status = _hold_back(main, [*others, entry])
    return status, main.main or 0


def _chosen(streams: Sequence[_Stream]) -> tuple[_Stream, _Stream] | None:
    """Return the stream of the launch, and the one that waits first, with which all streams have enough tasks."""
    able = [each for each in streams if each.needed <= len(each.nodes)]
    entries = [each for each in streams if each.needed - each.waits_before <= len(each.nodes)]
    for main in (each for each in streams if each.main is not None):
        for entry in entries:
            if entry is not main and all(any(each is one for one in (*able, main, entry)) for each in streams):
                return main, entry
    return None


def _hold_back(main: _Stream, others: Sequence[_Stream]) -> LaunchStatus:
    last = main
    for each in others:
        if each.waits_before:
            each.used += 1
            last.used += 1
            if each.is_full or last.is_full:
                return LaunchStatus.RESOURCE_INSUFFICIENT
            last = each
        if each.waits_after:
            each.used += 2
            if each.is_full:
                return LaunchStatus.RESOURCE_INSUFFICIENT
    return LaunchStatus.SUCCESS
