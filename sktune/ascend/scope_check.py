"""What the compiler will make of a plan's scopes, and what it will refuse, before it is started.

Before a compile TorchAir's graph is known: the operators in order, their types and streams, and which comes after
which. Not known are the types that can be fused, apart from those that a study has seen, the cores that a kernel is
launched on, and whether it calls SyncAll. The rules are those of ``superkernel_pass`` and ``superkernel_code``, applied
as if every other operator could be fused; a refusal that follows without this is certain.

A certain refusal also holds if GE merges operators or leaves some out: it rests on operators of cube units alone, which
GE neither removes nor merges with each other. It assumes that GE adds no operator outside of the scope between them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from sktune.ascend.ge_graph import GeGraph
from sktune.ascend.superkernel_code import generate
from sktune.ascend.superkernel_parts import KernelType, Refusal, SubKernel
from sktune.ascend.superkernel_pass import STRICT, Cut, FusedGroup, GraphNode, Grouping, PassCut, cuts_text, group
from sktune.ascend.unit_kernels import kernel_core
from sktune.core.fused_scopes import SeenTypes
from sktune.core.layout import KernelCore, Layout
from sktune.core.plan import Option, Plan
from sktune.core.scope_options import parse, render

KEPT_CORES = ("cube", "mix")
"""Operators on these remain tasks of their own, whatever GE merges."""
NOTHING_SEEN = SeenTypes()
_KERNEL_TYPES: Mapping[KernelCore, KernelType] = {"cube": KernelType.AIC_ONLY, "mix": KernelType.MIX_AIC_1_2}


@dataclass(frozen=True, slots=True)
class PlannedOperator:
    """An operator of a step under a plan, before its kernel is compiled.

    Attributes:
        name: in the graph, or of its unit.
        type: GE's.
        label, options: of its scope; empty outside of scopes.
        stream: the name that the model's code gives its stream; empty for the step's own.
        after: indices of operators on other streams that it must come after.
        follows_view: whether a view lies between it and the operator before, which cuts a scope if GE leaves it there.
    """

    name: str
    type: str
    label: str = ""
    options: str = ""
    stream: str = ""
    after: tuple[int, ...] = ()
    follows_view: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether it remains a task, whatever GE merges."""
        return kernel_core(self.type) in KEPT_CORES

    def __str__(self) -> str:
        return f"{self.type} ({self.name}) on {f'stream {self.stream!r}' if self.stream else 'the main stream'}"


@dataclass(frozen=True, slots=True)
class CheckedScope:
    """What the compiler will make of a scope.

    Attributes:
        label: of the scope.
        operators: number of its tasks.
        superkernels: how many it becomes, if all operators can be fused that are not known to be refused.
        cuts: types of operators at which it is cut or dropped, with the rule, see ``PassCut``.
        refusal: why it is refused, with what to change; empty if it is not.
        is_certain: whether it is refused, whatever is not known before the compile.
    """

    label: str
    operators: int
    superkernels: int = 0
    cuts: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    is_certain: bool = False

    def __str__(self) -> str:
        if self.refusal:
            if self.is_certain:
                return f"refused: {self.refusal}"
            return f"refused if its operators can be fused, which only a compile shows: {self.refusal}"
        count = f"{self.superkernels} SuperKernel{'s' * (self.superkernels != 1)}" if self.superkernels else "not fused"
        cuts = f"; cut at {cuts_text(self.cuts)}" if self.cuts else ""
        return f"{self.operators} operator{'s' * (self.operators != 1)}; {count}{cuts}"


def operators_of_graph(graph: GeGraph) -> tuple[PlannedOperator, ...]:
    """Return the operators of TorchAir's graph of a step under a plan."""
    return tuple(
        PlannedOperator(task.name, task.type, task.scope, task.options, task.stream, after, follows_view)
        for task, after, follows_view in zip(graph.device_tasks, graph.crossings, graph.views_before, strict=True)
    )


def operators_of_layout(layout: Layout, plan: Plan) -> tuple[PlannedOperator, ...]:
    """Return the operators of a step under a plan, from the kernels of its units; empty if these are not known."""
    operators: list[PlannedOperator] = []
    scopes = {scope.first: scope for scope in plan.scopes}
    label = options = ""
    for unit in layout.units:
        if scope := scopes.get(unit.name):
            label, options, last = scope.label, render(dict(scope.options)), scope.last
        for inside, kernels in ((True, unit.kernels), (False, unit.between)):
            if label and not inside and unit.name == last:
                label = options = ""
            for kernel in kernels:
                after = tuple(len(operators) - back for back in kernel.after if back <= len(operators))
                of_scope = label, options
                operators.append(
                    PlannedOperator(unit.name, kernel.type, *of_scope, kernel.stream, after, kernel.follows_view)
                )
    return tuple(operators)


def check_scopes(
    operators: Sequence[PlannedOperator],
    labels: Iterable[str],
    seen: SeenTypes = NOTHING_SEEN,
    *,
    keeps_order: bool = True,
) -> tuple[CheckedScope, ...]:
    """Return what the compiler will make of each scope.

    Args:
        operators: of the step under the plan.
        labels: of the plan's scopes.
        seen: types that are known.
        keeps_order: whether GE keeps the operators' order, as its sorting ``StableRDFS`` does (``compute_graph.cc`` in
            hicann/ge); without it, no refusal is certain.

    Raises:
        SpaceError: a scope has options that the compiler rejects.
    """
    streams = {name: number for number, name in enumerate(dict.fromkeys(["", *(each.stream for each in operators)]))}
    nodes = [
        GraphNode(
            each.name, each.type, each.label, each.options, streams[each.stream], each.type not in seen.alone,
            waits_for=tuple({operators[index].stream: index for index in each.after}.values()),
        )
        for each in operators
    ]  # fmt: skip
    failed: dict[str, Grouping] = {}
    while (grouping := group(nodes)).failure:
        failed[grouping.blamed] = grouping
        nodes = [replace(node, label="", options="") if node.label == grouping.blamed else node for node in nodes]
    return tuple(_checked(label, operators, failed.get(label, grouping), seen, keeps_order) for label in labels)


def certainly_refused(checked: Iterable[CheckedScope]) -> CheckedScope | None:
    """Return the first scope that is refused for certain."""
    return next((scope for scope in checked if scope.is_certain), None)


def _checked(
    label: str, operators: Sequence[PlannedOperator], grouping: Grouping, seen: SeenTypes, keeps_order: bool
) -> CheckedScope:
    places = [place for place, each in enumerate(operators) if each.label == label]
    groups = [each for each in grouping.groups if each.label == label]
    cuts = [cut for cut in grouping.cuts if cut.label == label]
    checked = CheckedScope(
        label, len(places), len(groups), tuple((operators[cut.node].type, str(cut.rule)) for cut in cuts)
    )
    if not places:
        return checked
    options = parse(operators[places[0]].options)
    strict = options.get(STRICT)
    if keeps_order and options.get("stream-fusion") != 1 and strict != "bypass":
        known = None if strict == "abort" else seen.fused
        for runs in _unlinked_runs(places, operators):
            if _is_certainly_unlinked(*runs, operators, known):
                return replace(checked, refusal=_unlinked(*runs, operators), is_certain=True)
    if grouping.blamed == label:
        is_certain = not cuts or (keeps_order and _is_certain_cut(cuts[0], places, operators))
        return replace(checked, refusal=grouping.failure, is_certain=is_certain)
    problem = next(filter(None, (_refused(each, operators, options) for each in groups)), "")
    return replace(checked, refusal=problem)


def _refused(each: FusedGroup, operators: Sequence[PlannedOperator], options: Mapping[str, Option]) -> str:
    """Return why the generator refuses a SuperKernel whose operators can all be fused; empty if it does not."""
    streams = {stream: number for number, stream in enumerate(dict.fromkeys(op.stream for op in operators))}
    events = each.events
    kernels = [
        SubKernel(
            _KERNEL_TYPES.get(kernel_core(operators[node].type), KernelType.AIV_ONLY), 1,
            streams[operators[node].stream], *((events[place].sends, events[place].receives) if events else ()),
        )
        for place, node in enumerate(each.nodes)
    ]  # fmt: skip
    found = generate(kernels, options)
    if not isinstance(found, Refusal):
        return ""
    if found is Refusal.UNLINKED_STREAMS:
        return next((_unlinked(*runs, operators) for runs in _unlinked_runs(each.nodes, operators)), "")
    return f"{found} (EB0500); {found.fix}"


def _unlinked(run: Sequence[int], following: Sequence[int], operators: Sequence[PlannedOperator]) -> str:
    why = Refusal.UNLINKED_STREAMS
    return f"{operators[run[-1]]} and {operators[following[0]]} are {why} (EB0500); {why.fix}"


def _is_certainly_unlinked(
    run: Sequence[int], following: Sequence[int], operators: Sequence[PlannedOperator], known: frozenset[str] | None
) -> bool:
    """Return whether a scope is refused for two of its runs on different streams that no event can link.

    Args:
        run, following: the operators of each.
        operators: of the step.
        known: types that can be fused; None if the scope is refused where one cannot.
    """
    last = max((place for place in run if operators[place].is_kept), default=None)
    first = next((place for place in following if operators[place].is_kept), None)
    if last is None or first is None:
        return False
    between = operators[last : first + 1]
    is_whole = all(each.label == operators[last].label and kernel_core(each.type) != "other" for each in between)
    if known is None:
        return is_whole
    has_view = any(each.follows_view for each in between[1:])
    return is_whole and not has_view and known.issuperset(each.type for each in between)


def _unlinked_runs(
    places: Sequence[int], operators: Sequence[PlannedOperator]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield neighbouring runs of operators on different streams that no event can link."""
    runs = [list(run) for _, run in groupby(places, key=lambda place: operators[place].stream)]
    for run, following in pairwise(runs):
        if not _may_share_an_event(run, following, operators):
            yield run, following


def _may_share_an_event(run: Sequence[int], following: Sequence[int], operators: Sequence[PlannedOperator]) -> bool:
    """Return whether an event can link the end of a run of one stream with the beginning of the next.

    An edge further inside becomes such an event only if GE merges what is between, which two kept operators prevent.
    """
    inside = set(run)
    for place in following:
        head = sum(operators[each].is_kept for each in following if each <= place)
        for source in inside.intersection(operators[place].after):
            tail = sum(operators[each].is_kept for each in run if each >= source)
            if head < 2 and tail < 2:
                return True
    return False


def _is_certain_cut(cut: Cut, places: Sequence[int], operators: Sequence[PlannedOperator]) -> bool:
    """Return whether ``strict-scope-check=abort`` meets a foreign operator that remains, between others that remain.

    That an operator of the scope ran outside of SuperKernels before does not show why.
    """
    if not operators[cut.node].is_kept or cut.rule not in (PassCut.OTHER_SCOPE, PassCut.NO_SCOPE):
        return False
    kept = [
        place for place in places
        if operators[place].is_kept and operators[place].stream == operators[cut.node].stream
    ]  # fmt: skip
    return any(place < cut.node for place in kept) and any(place > cut.node for place in kept)
