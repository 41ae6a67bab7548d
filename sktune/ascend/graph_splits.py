"""Which SuperKernels graph-autofusion makes of a captured graph: the rules of its splitter on the npugraph_ex path.

Restated from ``super_kernel/src/aot/sk_scope_split.cpp``, ``sk_candidate_heap.cpp`` and ``sk_optimizer.cpp`` in
graph-autofusion (8d0b4fbc) and held to what they do (``tests/golden/npugraph_ex``). Tasks with the same set of open
scopes are collected from all streams, until every stream is at a task that cannot be fused, that is in other scopes, or
that waits for one of these. Then kernels that synchronize all their blocks, and waits that would never end, split the
group; ``graph_launches`` says whether the rest can be launched.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sktune.ascend.captured_graph import (
    EVENTS,
    UNPAIRED_WAIT,
    CapturedGraph,
    CapturedTask,
    Kind,
    RefusedGraphError,
    SplitNode,
    SplitOptions,
    UnfusedReason,
)
from sktune.ascend.graph_deadlocks import DeadlockCheck
from sktune.ascend.graph_launches import LaunchStatus, launch
from sktune.ascend.graph_order import Candidates, with_late_waits

MAX_ROUNDS = 10


class CutRule(StrEnum):
    """Why a group ends before its scope does; the names are those of ``sk_scope_split.log``."""

    NONE = "the scope ends, or its next tasks wait for others"
    UNFUSIBLE_NODE = "task that cannot be fused"
    DEADLOCK_DETECTED = "streams would wait for each other"
    SYNCALL_OP_DROP = "kernel that synchronizes all its blocks, and needs other cores"


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Tasks that were to become one SuperKernel.

    Attributes:
        name: of the scopes that were open around all of them; ``none`` without scopes.
        tasks: their indices, in the order in which they would run; a marker is one task.
        rule: why it ends, as far as graph-autofusion says.
        cut: the task that ends it.
    """

    name: str
    tasks: tuple[int, ...]
    status: LaunchStatus
    rule: CutRule
    cut: int | None


@dataclass(frozen=True, slots=True)
class FusedTasks:
    """A SuperKernel.

    Attributes:
        tasks: the kernels, and the events that it waits for, records or resets.
        launched_at: the task in whose place it is launched; it may be a marker.
    """

    name: str
    tasks: tuple[int, ...]
    launched_at: int


@dataclass(frozen=True, slots=True)
class LeftTask:
    """A task with a reason for which it is not fused, or at which a group ends.

    Attributes:
        is_fusable: whether it could have been fused in other surroundings.
        reason: None for tasks that are no kernels, and values in memory.
        detail: as logs name it.
    """

    task: int
    is_fusable: bool
    reason: UnfusedReason | None
    detail: str


@dataclass(frozen=True, slots=True)
class GraphSplit:
    """What becomes of a captured graph; with a failure, capturing it fails and nothing is fused."""

    superkernels: tuple[FusedTasks, ...] = ()
    groups: tuple[TaskGroup, ...] = ()
    left: tuple[LeftTask, ...] = ()
    failure: str = ""


@dataclass(slots=True)
class _Group:
    scopes: frozenset[str]
    nodes: list[SplitNode] = field(default_factory=list)
    rule: CutRule = CutRule.NONE
    cut: SplitNode | None = None

    @property
    def kernels(self) -> list[int]:
        return sorted(node.id for node in self.nodes if node.kind is Kind.KERNEL and not node.is_marker)

    def parts(self, border: int, after: int, rule: CutRule, cut: SplitNode) -> tuple["_Group", "_Group"]:
        """Return the nodes before ``border`` and those from ``after`` on; a first part that is whole keeps its rule."""
        first = replace(self, nodes=self.nodes[:border])
        if first.kernels != self.kernels:
            first.rule, first.cut = rule, cut
        return first, replace(self, nodes=self.nodes[after:])


def split(tasks: Sequence[CapturedTask], device: tuple[int, int], options: SplitOptions | None = None) -> GraphSplit:
    """Return the SuperKernels of a captured graph.

    Args:
        device: its cube cores and vector cores.

    Every stream must have a task. Streams, and the waits for one event, are looked at in the order of up to 13 of them;
    more have made no difference.
    """
    options = options or SplitOptions()
    try:
        graph = CapturedGraph(tasks, options)
        named, fused = [], []
        for each in _Splitter(graph, device, options).groups():
            status, nodes, main = launch(graph, each.nodes)
            name = graph.scope_name(each.scopes)
            cut = each.cut.task if each.cut else None
            named.append(TaskGroup(name, _tasks(each.nodes), status, each.rule, cut))
            if status is not LaunchStatus.SUCCESS:
                for node in each.nodes:
                    node.refuse(UnfusedReason.SCOPE_FUSE_PART, status.name)
                continue
            ordered = with_late_waits(nodes) if options.auto_op_parallel else nodes
            fused.append(FusedTasks(name, _tasks(ordered), graph.nodes[main].task))
    except RefusedGraphError as error:
        return GraphSplit(failure=str(error))
    left = [
        LeftTask(node.task, node.can_fuse, node.reason, node.detail)
        for node in graph.nodes
        if not node.is_marker and (node.reason or not node.can_fuse)
    ]
    return GraphSplit(tuple(fused), tuple(named), tuple(left))


def _tasks(nodes: Sequence[SplitNode]) -> tuple[int, ...]:
    return tuple(node.task for index, node in enumerate(nodes) if not index or nodes[index - 1].task != node.task)


class _Splitter:
    """The passes, which start again with fewer tasks when one of them leaves tasks out."""

    def __init__(self, graph: CapturedGraph, device: tuple[int, int], options: SplitOptions) -> None:
        self._graph, self._device, self._options = graph, device, options

    def groups(self) -> list[_Group]:
        """Return all groups, also those that cannot be launched."""
        if self._options.task_breaker_bypass:
            for node in self._graph.nodes:
                node.can_fuse = node.can_fuse or node.kind is Kind.OTHER
        if self._options.debug_per_op_max_core_num:
            nodes = (self._graph.nodes[each] for ids in self._graph.streams for each in ids)
            return [_Group(frozenset(), [node]) for node in nodes if node.kind is Kind.KERNEL and node.can_fuse]
        for _ in range(MAX_ROUNDS):
            groups = self._round()
            if groups is not None:
                return groups
        return []

    def _round(self) -> list[_Group] | None:
        """Return the groups, or None if a task was left out."""
        groups = _Collector(self._graph, self._options.auto_op_parallel).groups()
        groups = [part for each in groups for part in _repeatedly(_by_cores, each)]
        groups = self._without_deadlocks(groups)
        if self._options.task_breaker_bypass:
            if _refused_others(groups):
                return None
            # A group goes on without the streams that have tasks that are no kernels.
            others = [_streams(each.nodes, Kind.OTHER) for each in groups]
            groups = [
                replace(each, nodes=[node for node in each.nodes if node.stream not in removed])
                for each, removed in zip(groups, others, strict=True)
            ]
            groups = self._without_deadlocks([each for each in groups if each.nodes])
        return None if _refused_events(groups) else groups

    def _without_deadlocks(self, groups: Sequence[_Group]) -> list[_Group]:
        parts: list[_Group] = []
        for each in groups:
            for part in _repeatedly(self._by_deadlock, each):
                parts.append(part)
                # For the check of later groups: records hold the cores of their SuperKernel, nodes know its streams.
                kernels = [node.cores for node in part.nodes if node.kind is Kind.KERNEL]
                most = (
                    max((cubes for cubes, _ in kernels), default=0),
                    max((vectors for _, vectors in kernels), default=0),
                )
                streams = frozenset(node.stream for node in part.nodes)
                for node in part.nodes:
                    node.scope_streams = streams
                    if node.kind is Kind.RECORD:
                        node.expanded = most
        for node in self._graph.nodes:
            node.expanded, node.scope_streams = (0, 0), frozenset()
        return parts

    def _by_deadlock(self, group: _Group) -> tuple[_Group, _Group] | None:
        """Leave out the last wait before a node that would wait for ever."""
        keeps = bool(self._options.value_breaker_bypass & UNPAIRED_WAIT)
        check = DeadlockCheck(self._graph, self._device, keeps)
        wait: int | None = None
        for index, node in enumerate(group.nodes):
            wait = index if node.kind is Kind.WAIT else wait
            if check.accepts(node):
                continue
            if wait is None:
                raise RefusedGraphError(f"task {node.task} needs more cores than the device has, or waits for ever")
            node.reason = UnfusedReason.EXIST_DEADLOCK
            return group.parts(wait, wait + 1, CutRule.DEADLOCK_DETECTED, node)
        return None


def _repeatedly(divide: Callable[[_Group], tuple[_Group, _Group] | None], group: _Group) -> Iterator[_Group]:
    """Yield the parts of a group, of which each rest is divided again."""
    parts = divide(group)
    while parts:
        first, group = parts
        if first.nodes:
            yield first
        parts = divide(group)
    if group.nodes:
        yield group


def _by_cores(group: _Group) -> tuple[_Group, _Group] | None:
    """Split before a kernel that synchronizes all blocks on fewer cores, or that needs more cores after such a one."""
    held: tuple[int, int] | None = None
    synchronizes = False
    for index, node in enumerate(group.nodes):
        if node.kind is not Kind.KERNEL:
            continue
        cubes, vectors = node.cores
        if node.needs_all_cores:
            vectors = vectors or 2 * cubes
            cubes = cubes or (vectors + 1) // 2
        cores = (cubes, vectors)
        if held is None:
            held, synchronizes = cores, node.needs_all_cores
            continue
        pairs = [(own, most) for own, most in zip(cores, held, strict=True) if own]
        drops = node.needs_all_cores and any(own < most for own, most in pairs)
        if drops or (synchronizes and any(own > most for own, most in pairs)):
            return group.parts(index, index, CutRule.SYNCALL_OP_DROP, node)
        held = (max(held[0], cubes), max(held[1], vectors))
        synchronizes = synchronizes or node.needs_all_cores
    return None


def _streams(nodes: Sequence[SplitNode], kind: Kind) -> set[int]:
    return {node.stream for node in nodes if node.kind is kind}


def _refused_others(groups: Sequence[_Group]) -> bool:
    """Leave out tasks that are no kernels where their stream has a kernel in the same group."""
    refused = False
    for each in groups:
        with_kernels = _streams(each.nodes, Kind.KERNEL)
        for node in each.nodes:
            if node.kind is Kind.OTHER and node.stream in with_kernels:
                node.refuse(UnfusedReason.DEFAULT_NODE)
                refused = True
    return refused


def _refused_events(groups: Sequence[_Group]) -> bool:
    """Leave out the events of streams of which a group has nothing else."""
    refused = False
    for each in groups:
        with_others = {node.stream for node in each.nodes if node.kind not in EVENTS}
        for node in each.nodes:
            if node.stream not in with_others and node.can_fuse:
                node.refuse(UnfusedReason.ISOLATED_EVENT)
                refused = True
    return refused


class _Collector:
    """The streams while groups are collected, each at one of its nodes."""

    def __init__(self, graph: CapturedGraph, auto_op_parallel: bool) -> None:
        self._graph, self._parallel = graph, auto_op_parallel
        self._at = [ids[0] if ids else None for ids in graph.streams]
        self._waiting: dict[int, tuple[str, int]] = {}
        self._ended: set[int] = set()
        self._recorded: set[int] = set()

    def groups(self) -> list[_Group]:
        """Return the groups in the order in which they are found."""
        found: list[_Group] = []
        while True:
            self._waiting, self._ended = {}, set()
            for stream in reversed(range(len(self._at))):
                self._skip(stream)
            group = self._collect()
            if group is None:
                return found
            found.append(group)

    def _skip(self, stream: int) -> None:
        """Pass what cannot be fused, up to a wait for what has not run yet."""
        while (at := self._at[stream]) is not None and not self._graph.nodes[at].can_fuse:
            node = self._graph.nodes[at]
            if node.kind is Kind.WAIT and node.notify is not None and node.notify not in self._recorded:
                self._waiting[stream] = self._graph.nodes[node.notify].event
                return
            if node.kind is Kind.RECORD:
                self._recorded.add(at)
                for each in self._resumed(node):
                    self._skip(each)
            self._at[stream] = node.next

    def _resumed(self, record: SplitNode) -> Iterator[int]:
        """Yield the streams that waited for a record."""
        for each in record.waits:
            stream = self._graph.nodes[each].stream
            if self._waiting.get(stream) == record.event:
                del self._waiting[stream]
                yield stream

    def _collect(self) -> _Group | None:
        ready = [at for stream, at in enumerate(self._at) if at is not None and stream not in self._waiting]
        if not ready:
            return None
        group = _Group(self._graph.nodes[min(ready)].scopes)
        candidates = Candidates(self._graph.nodes, self._parallel)
        for stream in reversed(range(len(self._at))):
            self._offer(stream, group, candidates)
        while candidates.ids:
            node = candidates.pop()
            group.nodes.append(node)
            self._at[node.stream] = node.next
            if node.kind is Kind.RECORD:
                self._recorded.add(node.id)
                for each in self._resumed(node):
                    self._offer(each, group, candidates)
            self._offer(node.stream, group, candidates)
        return group if group.nodes else None

    def _offer(self, stream: int, group: _Group, candidates: Candidates) -> None:
        """Make the stream's next node a candidate, unless it ends the group on this stream or has to wait."""
        at = self._at[stream]
        if at is None or stream in self._waiting or stream in self._ended or at in candidates.ids:
            return
        node = self._graph.nodes[at]
        if not node.can_fuse:
            self._ended.add(stream)
            group.rule, group.cut = CutRule.UNFUSIBLE_NODE, node
        elif node.scopes != group.scopes:
            self._ended.add(stream)
        elif node.kind is Kind.WAIT and node.notify is not None and node.notify not in self._recorded:
            self._waiting[stream] = self._graph.nodes[node.notify].event
        else:
            candidates.ids.add(node.id)
