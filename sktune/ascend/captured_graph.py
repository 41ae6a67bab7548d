"""A captured graph as graph-autofusion reads it: which scope each task is in, which may be fused, which events pair.

Restated from ``super_kernel/src/aot/sk_graph.cpp``, ``sk_node.cpp`` and ``sk_scope_launch.cpp`` in graph-autofusion
(8d0b4fbc) and held to what they do (``tests/golden/npugraph_ex``). ``graph_splits`` says which SuperKernels result.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, pairwise

from sktune.core.errors import SktuneError

MAX_SCOPES = 1024
UNFUSED_NAME = "default_sk_scope_name"
"""The name that stands for None in a captured marker; a scope of this name is not fused either."""
PAIRED_WAIT, UNPAIRED_WAIT = 1, 2
"""Bits of ``value_breaker_bypass``."""


class Kind(StrEnum):
    """What a task does."""

    KERNEL = "kernel"
    BEGIN = "begin"
    END = "end"
    RECORD = "record"
    WAIT = "wait"
    RESET = "reset"
    WRITE = "write"
    WAIT_VALUE = "wait_value"
    OTHER = "other"
    """AICPU, copies, callbacks, and whatever else is captured."""


MARKERS = frozenset({Kind.BEGIN, Kind.END})
EVENTS = frozenset({Kind.RECORD, Kind.WAIT, Kind.RESET})


class Core(StrEnum):
    """On which cores a kernel runs; one block of ``mix2`` takes a cube core and two vector cores."""

    CUBE = "cube"
    VECTOR = "vector"
    MIX_1_1 = "mix1"
    MIX_1_2 = "mix2"
    OTHER = "other"

    def cores(self, blocks: int) -> tuple[int, int]:
        """Return the cube and vector cores that a number of blocks takes."""
        cubes = 0 if self in (Core.VECTOR, Core.OTHER) else blocks
        vectors = {Core.VECTOR: blocks, Core.MIX_1_1: blocks, Core.MIX_1_2: 2 * blocks}
        return cubes, vectors.get(self, 0)


class UnfusedReason(StrEnum):
    """Why a task is not fused; the names are those of ``sk_fusion_fail_reasons.log``."""

    OP_UNSUPPORT = "kernel not built for SuperKernels"
    DYNAMIC_TASK_UNSUPPORT = "kernel whose task is updated between runs"
    NOT_IN_SCOPE = "not in a scope"
    IN_UNFUSIBLE_SCOPE = "in a scope named None"
    RESET_TYPE_NODE = "reset of an event"
    ISOLATED_EVENT = "only events are left of its stream"
    EXIST_DEADLOCK = "streams would wait for each other"
    SCOPE_FUSE_PART = "what is left of its scope cannot become a SuperKernel"
    EXTERNAL_DEPEND = "event from outside of the graph"
    DEFAULT_NODE = "not a kernel"
    EXCEED_SCOPE_MAX = f"more than {MAX_SCOPES} names of scopes"


class RefusedGraphError(SktuneError):
    """graph-autofusion refuses the whole graph, so that nothing is fused."""


@dataclass(frozen=True, slots=True)
class CapturedTask:
    """A task of the captured graph, in the order of capture.

    Attributes:
        name: of the scope that a marker opens or closes; None marks tasks that are not to be fused.
        obstacle: why a kernel cannot be fused anywhere: ``OP_UNSUPPORT`` or ``DYNAMIC_TASK_UNSUPPORT``.
        needs_all_cores: whether the kernel synchronizes all its blocks (its schedule mode is 1).
        event: the number of an event, or the address of a value.
        value: what is written, or waited for.
        flag: how a value is compared: 0 at least, 1 equal, 2 common bits, 3 not all bits.
    """

    kind: Kind
    stream: int = 0
    name: str | None = None
    core: Core = Core.VECTOR
    blocks: int = 1
    obstacle: UnfusedReason | None = None
    needs_all_cores: bool = False
    event: int = 0
    is_external: bool = False
    value: int = 0
    flag: int = 1


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """The options of ``super_kernel_optimize`` that decide which SuperKernels result."""

    auto_op_parallel: bool = False
    task_breaker_bypass: bool = False
    value_breaker_bypass: int = 0
    debug_per_op_max_core_num: bool = False


@dataclass(slots=True)
class SplitNode:
    """A task while the graph is split; a marker is three nodes.

    ``waits`` are the nodes that wait for a record, ``notify`` the record for which a node waits. ``expanded`` are the
    cores of the SuperKernel that contains a record, ``scope_streams`` the streams of the one that contains a node.
    """

    id: int
    task: int
    kind: Kind
    stream: int
    core: Core = Core.VECTOR
    cores: tuple[int, int] = (0, 0)
    needs_all_cores: bool = False
    can_fuse: bool = False
    reason: UnfusedReason | None = None
    detail: str = ""
    marker: Kind | None = None
    is_marker: bool = False
    name: str = ""
    scopes: frozenset[str] = frozenset()
    event: tuple[str, int] = ("", 0)
    value: int = 0
    flag: int = 1
    has_address: bool = False
    position: int = 0
    previous: int | None = None
    next: int | None = None
    notify: int | None = None
    waits: tuple[int, ...] = ()
    expanded: tuple[int, int] = (0, 0)
    scope_streams: frozenset[int] = frozenset()

    @property
    def held(self) -> tuple[int, int]:
        """Cube and vector cores that it holds while it runs."""
        return self.expanded if self.kind is Kind.RECORD else self.cores

    def refuse(self, reason: UnfusedReason, detail: str = "") -> None:
        """Leave it out."""
        self.can_fuse, self.reason, self.detail = False, reason, detail


class CapturedGraph:
    """The nodes of a graph with their scopes and events.

    Attributes:
        nodes: in the order of capture, which is that of their ids.
        streams: the ids of each stream's nodes.
        names: of scopes, in the order in which streams, one after the other, name them.
    """

    def __init__(self, tasks: Sequence[CapturedTask], options: SplitOptions) -> None:
        self.nodes = list(_nodes(tasks))
        streams = range(1 + max((task.stream for task in tasks), default=-1))
        self.streams = [[node.id for node in self.nodes if node.stream == stream] for stream in streams]
        self.names: list[str] = []
        self._notifies: dict[tuple[str, int], int] = {}
        self._waits: dict[tuple[str, int], list[int]] = {}
        for ids in self.streams:
            for position, each in enumerate(ids):
                node = self.nodes[each]
                node.position = position
                if node.is_marker and node.name and node.can_fuse:
                    if len(self.names) >= MAX_SCOPES:
                        node.refuse(UnfusedReason.EXCEED_SCOPE_MAX)
                    elif node.name not in self.names:
                        self.names.append(node.name)
                if node.kind in EVENTS:
                    self._add_event(node)
            for one, another in pairwise(ids):
                self.nodes[one].next, self.nodes[another].previous = another, one
        self._read_scopes()
        self._read_values(options.value_breaker_bypass)
        for event, notify in self._notifies.items():
            self.nodes[notify].waits = waits = tuple(_hash_order(self._waits.get(event, [])))
            for each in waits:
                self.nodes[each].notify = notify

    def scope_name(self, scopes: frozenset[str]) -> str:
        """Return the name of a set of scopes, as in logs and in names of SuperKernels."""
        return "_".join(name for name in self.names if name in scopes) or "none"

    def _add_event(self, node: SplitNode) -> None:
        if node.kind is Kind.RECORD:
            if node.event in self._notifies:
                raise RefusedGraphError(f"{node.event[0]} {node.event[1]} is recorded twice")
            self._notifies[node.event] = node.id
        elif node.kind is Kind.WAIT:
            self._waits.setdefault(node.event, []).append(node.id)

    def _read_scopes(self) -> None:
        """Give each node the set of open named scopes; with names in the graph, all outside of scopes is left out."""
        opened: list[tuple[str, UnfusedReason | None]] = []
        for node in self.nodes:
            if node.marker is Kind.BEGIN:
                refused = node.reason or UnfusedReason.IN_UNFUSIBLE_SCOPE
                opened.append((node.name, None if node.can_fuse else refused))
            node.scopes = frozenset(name for name, reason in opened if reason is None)
            if node.marker is Kind.END:
                # The scope of its name that was opened last, wherever it is: scopes may overlap.
                last = next((at for at in reversed(range(len(opened))) if opened[at][0] == node.name), None)
                if last is not None:
                    del opened[last]
            elif not node.is_marker:
                reason = next((reason for _, reason in reversed(opened) if reason), None)
                if self.names and not opened:
                    node.refuse(UnfusedReason.NOT_IN_SCOPE)
                elif reason:
                    node.refuse(reason)
            if node.is_marker:
                node.can_fuse = True

    def _read_values(self, bypass: int) -> None:
        """Make events of values in memory: they may be fused if no task waits, or as ``value_breaker_bypass`` says."""
        kinds = (Kind.WRITE, Kind.WAIT_VALUE)
        for event in dict.fromkeys(node.event for node in self.nodes if node.kind in kinds):
            of_event = [node for node in self.nodes if node.event == event]
            of_event.sort(key=lambda node: (node.stream, node.position))
            writes, waits = ([node for node in of_event if node.kind is kind] for kind in kinds)
            if not waits:
                for node in writes:
                    node.kind, node.can_fuse = Kind.RECORD if node.value else Kind.RESET, True
            else:
                expected = {(node.value, node.flag) for node in waits}
                if writes and len(expected) > 1:
                    raise RefusedGraphError("tasks wait for different values at one address")
                value, flag = next(iter(expected))
                notifies = [node for node in writes if _satisfies(node.value, value, flag)]
                if len(notifies) > 1:
                    raise RefusedGraphError("several writes satisfy a wait for a value")
                can_fuse = bool(bypass & (PAIRED_WAIT if notifies else UNPAIRED_WAIT))
                for node in writes:
                    node.kind = Kind.RECORD if node in notifies else Kind.RESET
                for node in waits:
                    node.kind = Kind.WAIT
                for node in [*notifies, *waits]:
                    node.can_fuse = can_fuse
            for node in [*writes, *(self.nodes[each] for each in _hash_order(node.id for node in waits))]:
                self._add_event(node)


def _satisfies(written: int, value: int, flag: int) -> bool:
    full = (1 << 64) - 1
    holds = (written >= value, written == value, bool(written & value), ~(written | value) & full != 0)
    return holds[flag] if flag < len(holds) else False


def _nodes(tasks: Sequence[CapturedTask]) -> Iterator[SplitNode]:
    """Yield the nodes of tasks: two placeholders follow a begin, and precede an end."""
    numbers = count()
    for index, task in enumerate(tasks):
        markers: tuple[Kind | None, ...] = (None,)
        if task.kind in MARKERS:
            markers = (Kind.BEGIN, None, None) if task.kind is Kind.BEGIN else (None, None, Kind.END)
        for marker in markers:
            node = SplitNode(next(numbers), index, task.kind, task.stream)
            if task.kind in MARKERS:
                named = task.name not in (None, UNFUSED_NAME)
                node.kind, node.cores, node.marker, node.is_marker = Kind.KERNEL, (0, 1), marker, True
                node.can_fuse, node.name = named, task.name or "" if named else ""
            elif task.kind is Kind.KERNEL:
                node.core, node.cores = task.core, task.core.cores(task.blocks)
                node.needs_all_cores = task.needs_all_cores
                node.can_fuse, node.reason = task.obstacle is None, task.obstacle
            elif task.kind in EVENTS:
                node.event, node.can_fuse = ("event", task.event), not task.is_external
                node.reason = UnfusedReason.EXTERNAL_DEPEND if task.is_external else None
                if task.kind is Kind.RESET:
                    node.refuse(UnfusedReason.RESET_TYPE_NODE)
            elif task.kind is not Kind.OTHER:
                node.event, node.value, node.flag = ("address", task.event), task.value, task.flag
                node.has_address = True
            yield node


def _hash_order(ids: Iterable[int]) -> list[int]:
    """Return ids in the order of libstdc++'s ``unordered_set``, up to 13 of them.

    The check for deadlocks depends on which of a record's waits comes first.
    """
    order: list[int] = []
    for each in ids:
        order.insert(next((at for at, other in enumerate(order) if other % 13 == each % 13), 0), each)
    return order
