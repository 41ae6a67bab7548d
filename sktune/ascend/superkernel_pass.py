"""Which operators GE puts into one SuperKernel: the rules of its ``SuperKernelPass``.

Restated from ``super_kernel_pass.cc`` in hicann/ge (ffdcbc9) and held to what the pass itself does
(``tests/golden/ge``). The pass runs after streams are assigned, so that an operator's stream is its real one. It does
not know kernel types: ``superkernel_code`` says what is generated, and refused, for the operators of one SuperKernel.

The newest pass then calls a check of ``libascendsk.so``, where that library is installed, which splits scopes further:
because of SyncAll (``sync_all_splits``), or of deadlocks, which is not restated.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

STRICT = "strict-scope-check"
EVENT_TYPES = frozenset({"Send", "Recv", "SendNotify", "RecvNotify", "SendMem", "RecvMem"})
IGNORED_TYPES = EVENT_TYPES | {"Data", "Variable", "Constant", "Const", "ConstPlaceHolder"}
"""Types that lose a scope's label without cutting it."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of the graph before the pass, in topological order.

    Attributes:
        label: of its scope; empty outside of scopes.
        options: of its scope, as marked.
        stream: the number of its stream; GE gives -1 to nodes that it deletes.
        is_supported: whether its kernel was built for SuperKernels (``supportSuperKernel``).
        is_collective: whether HCCL lets it take part (``_hccl``), whatever its kernel.
        uses_local_memory: whether it is a SIMT operator (``local_memory_size``), which is never fused.
        waits_for: indices of nodes on other streams for which an event makes it wait.
    """

    name: str
    type: str
    label: str = ""
    options: str = ""
    stream: int = 0
    is_supported: bool = True
    is_collective: bool = False
    uses_local_memory: bool = False
    waits_for: tuple[int, ...] = ()

    @property
    def can_fuse(self) -> bool:
        """Whether the pass accepts it where a scope surrounds it."""
        return self.is_collective or (self.is_supported and not self.uses_local_memory)

    @property
    def strict(self) -> str | None:
        """Its ``strict-scope-check``; None if it is not given."""
        pairs = [part.split("=") for part in self.options.split(":")]
        return next((pair[1] for pair in reversed(pairs) if len(pair) == 2 and pair[0] == STRICT), None)


class PassCut(StrEnum):
    """Why the pass cuts a scope at an operator, or leaves the scope out because of it."""

    NOT_BUILT = "kernel not built for SuperKernels"
    LOCAL_MEMORY = "SIMT operator"
    OTHER_SCOPE = "of another scope"
    NO_SCOPE = "not in the scope"
    LEFT_OUT = "left out by the compiler"
    """As a graph or a profile shows, which do not say why."""
    DEADLOCK = "streams would wait for each other"
    """By GE's check for deadlocks, as its log says; not restated, so never predicted."""
    SYNC_ALL = "a SyncAll needs other cores than the SuperKernel's"
    """By newer versions of GE, which begin another SuperKernel with the operator; see ``sync_all_splits``."""

    @property
    def fix(self) -> str:
        """What to change in the plan."""
        if self in (PassCut.OTHER_SCOPE, PassCut.NO_SCOPE):
            return "include it in the scope, or end the scope before it"
        if self is PassCut.SYNC_ALL:
            return "end the scope before it, and start another with it"
        return "end the scope before it, and start another after it"


def cuts_text(cuts: Iterable[tuple[str, str]]) -> str:
    """Return types of operators with the rules by which they cut, as ``2 Cast, 1 Add (kernel not built ...)``."""
    types: dict[str, Counter[str]] = {}
    for kind, rule in cuts:
        types.setdefault(rule, Counter())[kind] += 1
    return "; ".join(f"{counts_text(counts)}{f' ({rule})' if rule else ''}" for rule, counts in types.items())


def counts_text(counts: Counter[str]) -> str:
    """Return the commonest of some types of operators with their counts, as ``2 Cast, 1 Add, 3 others``."""
    common = counts.most_common()
    others = sum(count for _, count in common[6:])
    return ", ".join(f"{count} {kind}" for kind, count in common[:6]) + (f", {others} others" if others else "")


@dataclass(frozen=True, slots=True)
class Cut:
    """An operator at which a scope is cut.

    Attributes:
        label: of the scope.
        node: index of the operator.
        rule: why it cuts.
        drops_scope: whether the whole scope is left unfused instead: because of ``strict-scope-check=bypass``, or as
            no other operator can be fused.
    """

    label: str
    node: int
    rule: PassCut
    drops_scope: bool = False


@dataclass(frozen=True, slots=True)
class Events:
    """The events of one operator in a SuperKernel: numbers of those that it sends and receives."""

    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FusedGroup:
    """The operators of one SuperKernel.

    Attributes:
        label: of the scope; ``scope`` is the pass' name for it, which says between which nodes a fragment lies.
        nodes: indices, in execution order.
        stream: on which it runs.
        links: pairs of its nodes on two streams with an event between them.
        waits, notifies: how many events from and to nodes outside each of its nodes has inside the SuperKernel.
    """

    label: str
    scope: str
    nodes: tuple[int, ...]
    stream: int
    links: frozenset[tuple[int, int]] = frozenset()
    waits: Mapping[int, int] = field(default_factory=dict)
    notifies: Mapping[int, int] = field(default_factory=dict)

    @property
    def events(self) -> tuple[Events, ...]:
        """The numbered events of each of its operators; empty if there are none."""
        if not (self.links or self.waits or self.notifies):
            return ()
        place = {node: index for index, node in enumerate(self.nodes)}
        sends: list[list[int]] = [[] for _ in self.nodes]
        receives: list[list[int]] = [[] for _ in self.nodes]
        number = 0
        for source, target in sorted(self.links):
            number += 1
            sends[place[source]].append(number)
            receives[place[target]].append(number)
        for of_node, into in ((self.notifies, sends), (self.waits, receives)):
            for node, count in of_node.items():
                into[place[node]] += range(number + 1, number + 1 + count)
                number += count
        return tuple(Events(tuple(sent), tuple(received)) for sent, received in zip(sends, receives, strict=True))


@dataclass(frozen=True, slots=True)
class Grouping:
    """What the pass makes of a graph.

    Attributes:
        groups: the SuperKernels.
        failure: why compilation fails; empty if it does not. There are no groups then.
        blamed: label of the scope that makes it fail.
        cuts: where scopes are cut, in execution order; if compilation fails, the cut that ends it, if one does.
    """

    groups: tuple[FusedGroup, ...]
    failure: str = ""
    blamed: str = ""
    cuts: tuple[Cut, ...] = ()


def group(nodes: Sequence[GraphNode], splits_of: Callable[[Sequence[int]], Sequence[int]] | None = None) -> Grouping:
    """Return the SuperKernels that the pass forms.

    Args:
        nodes: of the graph.
        splits_of: for a version of GE that splits because of SyncAll: given the nodes of a SuperKernel, those that
            begin another.
    """
    scopes, invalid = _scopes(nodes)
    if invalid:
        return Grouping((), failure=f"{STRICT} of scope {invalid} is invalid; use bypass or abort", blamed=invalid)
    groups: list[FusedGroup] = []
    cuts: list[Cut] = []
    for scope in sorted(scopes, key=lambda each: each.label):
        obstacles = _obstacles(scope, nodes)
        if obstacles and scope.strict == "abort":
            cut, node = _cut(scope, obstacles[0], nodes), nodes[obstacles[0]]
            failure = (
                f"{STRICT}=abort: {node.type} ({node.name}) cuts scope {cut.label}: {cut.rule}; "
                f"{cut.rule.fix}, or leave {STRICT} out"
            )
            return Grouping((), failure, scope.label, (cut,))
        # A node that cannot be fused cuts the scope only on a stream where the scope keeps a node.
        removed = dict.fromkeys(node for stream in sorted(scope.streams) for node in scope.removed[stream])
        foreign = [] if scope.strict == "bypass" else [node for node in obstacles if node not in removed]
        if points := [*removed, *foreign]:
            groups += _parts(scope.label, scope.kept, points, nodes, left_out=points)
            cuts += [_cut(scope, node, nodes) for node in points]
        elif dropping := obstacles if scope.kept else scope.lost:
            cuts += [replace(_cut(scope, node, nodes), drops_scope=True) for node in dropping]
        else:
            groups.append(_group(scope.label, scope.label, scope.kept, nodes))
    if splits_of:
        whole, groups = groups, []
        for each in whole:
            starts = splits_of(each.nodes)
            groups += _parts(each.label, each.nodes, starts, nodes) if starts else [each]
            cuts += [Cut(each.label, node, PassCut.SYNC_ALL) for node in starts]
    if len({node.stream for node in nodes if node.type not in IGNORED_TYPES}) != 1:
        # Events inside each group, and those from and to the outside, in the order in which the pass merges.
        merging = _Merging(nodes)
        links = {each: merging.merge(each) for each in sorted(groups, key=lambda each: each.scope)}
        groups = [replace(merging.with_outer_events(each), links=links[each]) for each in groups]
    formed = sorted(groups, key=lambda each: each.nodes)
    return Grouping(tuple(formed), cuts=tuple(sorted(cuts, key=lambda cut: cut.node)))


@dataclass(slots=True)
class _Scope:
    """A scope after its labels were read.

    ``kept`` are the nodes that keep the label; ``removed`` those that lost it, by stream.
    """

    label: str
    kept: list[int] = field(default_factory=list)
    removed: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    strict: str | None = None
    streams: set[int] = field(default_factory=set)

    @property
    def lost(self) -> list[int]:
        """All nodes that lost the label."""
        return sorted(node for each in self.removed.values() for node in each)


def _scopes(nodes: Sequence[GraphNode]) -> tuple[list[_Scope], str]:
    """Return the scopes, and the label of one whose ``strict-scope-check`` has no valid value."""
    scopes: dict[str, _Scope] = {}
    for index, node in enumerate(nodes):
        if node.type in IGNORED_TYPES or not node.label:
            continue
        scope = scopes.setdefault(node.label, _Scope(node.label))
        if node.strict is not None:
            if node.strict not in ("bypass", "abort"):
                return [], node.label
            scope.strict = node.strict
        if node.can_fuse or node.strict is not None:
            scope.kept.append(index)
            scope.streams.add(node.stream)
        else:
            scope.removed[node.stream].append(index)
    return list(scopes.values()), ""


def _obstacles(scope: _Scope, nodes: Sequence[GraphNode]) -> list[int]:
    """Return what is between the scope's ends on each of its streams, and cannot be in its SuperKernel."""
    found: list[int] = []
    inside = set(scope.kept)
    for stream in sorted(scope.streams):
        on_stream = [node for node in scope.kept if nodes[node].stream == stream]
        for index in range(on_stream[0], on_stream[-1] + 1):
            node = nodes[index]
            is_other = node.stream != stream or node.type in IGNORED_TYPES
            if not is_other and not (index in inside and node.can_fuse):
                found.append(index)
    return found


def _cut(scope: _Scope, index: int, nodes: Sequence[GraphNode]) -> Cut:
    node = nodes[index]
    if node.label != scope.label:
        rule = PassCut.OTHER_SCOPE if node.label else PassCut.NO_SCOPE
    else:
        rule = PassCut.LOCAL_MEMORY if node.is_supported else PassCut.NOT_BUILT
    return Cut(scope.label, index, rule)


def _parts(
    label: str, kept: Sequence[int], points: Sequence[int], nodes: Sequence[GraphNode], left_out: Collection[int] = ()
) -> Iterator[FusedGroup]:
    """Yield the parts of a scope: a new one begins at each of ``points``, with that node unless it is left out."""
    for low, high in pairwise(sorted([kept[0] - 1, *points, kept[-1] + 1])):
        if inside := [node for node in kept if low <= node < high and node not in left_out]:
            yield _group(label, f"{label}_split_{low}_{high}", inside, nodes)


def _group(label: str, scope: str, inside: Sequence[int], nodes: Sequence[GraphNode]) -> FusedGroup:
    streams = sorted({nodes[node].stream for node in inside})
    stream = nodes[inside[0]].stream
    if nodes[inside[0]].is_collective:
        # A SuperKernel does not run on the stream of collectives, which would need many events.
        firsts = {each: next(nodes[node] for node in inside if nodes[node].stream == each) for each in streams}
        stream = next((each for each in streams if not firsts[each].is_collective), stream)
    return FusedGroup(label, scope, tuple(inside), stream)


class _Merging:
    """The graph while groups become SuperKernels, one after the other: its nodes by stream, and the events left.

    A node is its index, a SuperKernel a negative number. The first node's waits and the last node's notifications are
    the whole SuperKernel's, as are the waits of the first node on any other stream.
    """

    def __init__(self, nodes: Sequence[GraphNode]) -> None:
        self._order = [index for index, node in enumerate(nodes) if node.type not in EVENT_TYPES]
        self._stream = {index: nodes[index].stream for index in self._order}
        self._events = dict.fromkeys((source, index) for index in self._order for source in nodes[index].waits_for)
        self._merged = 0

    def with_outer_events(self, each: FusedGroup) -> FusedGroup:
        """Return a group with how often its nodes wait for the outside and notify it, once all are merged."""
        notifies = Counter(source for source, _ in self._events if source in each.nodes)
        waits = Counter(target for _, target in self._events if target in each.nodes)
        return replace(each, waits=dict(sorted(waits.items())), notifies=dict(sorted(notifies.items())))

    def merge(self, each: FusedGroup) -> frozenset[tuple[int, int]]:
        """Merge a group, and return the events inside it."""
        inside, last = set(each.nodes), each.nodes[-1]
        # The first node on each stream, and the events that order a second stream around the SuperKernel.
        firsts, borders = {each.nodes[0]}, list[tuple[int, int]]()
        for stream in sorted({self._stream[node] for node in each.nodes} - {each.stream}):
            on_stream = [node for node in self._order if self._stream[node] == stream]
            own = [node for node in each.nodes if self._stream[node] == stream]
            first, end = on_stream.index(own[0]), on_stream.index(own[-1])
            firsts.add(own[0])
            borders += [(on_stream[first - 1], own[0])] * (first > 0)
            borders += [(own[-1], node) for node in on_stream[end + 1 : end + 2]]
        events = dict.fromkeys((*self._events, *borders))
        links = frozenset(event for event in events if inside.issuperset(event))
        self._merged -= 1
        self._events = dict.fromkeys(
            (self._merged if source == last else source, self._merged if target in firsts else target)
            for source, target in events
            if (source, target) not in links
        )
        self._order[self._order.index(each.nodes[0])] = self._merged
        self._order = [node for node in self._order if node not in inside]
        self._stream[self._merged] = each.stream
        return links
