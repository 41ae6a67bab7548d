"""The two ways to SuperKernels: which operators of a plan's scopes become one, and with which options.

GE's pass works on a graph whose operators have labels; graph-autofusion's splitter works on captured tasks between
markers, with options of the whole step. A SuperKernel of the second way is assumed to cost what one of the first does:
the code that is generated there has not been read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from sktune.ascend import captured_graph, graph_splits
from sktune.ascend.captured_graph import Kind, SplitOptions, UnfusedReason
from sktune.ascend.superkernel_pass import Cut, FusedGroup, GraphNode, Grouping, PassCut, group
from sktune.backends.npugraph_ex.options import OPTIONS as GRAPH_OPTIONS
from sktune.core.errors import SimulationError
from sktune.core.plan import Option, Plan, Scope
from sktune.core.scope_options import check_options, render
from sktune.sim.constants import Constants
from sktune.sim.operators import Operator
from sktune.sim.superkernel import core_in_superkernel, starts_by_sync_all


@dataclass(frozen=True, slots=True)
class ScopeRange:
    """The operators of a scope, or between two scopes: positions of the first and the last one."""

    first: int
    last: int
    scope: Scope | None


class SuperKernelPath(Protocol):
    """One of the two ways, for the operators of one step."""

    def __init__(self, operators: Sequence[Operator], constants: Constants) -> None: ...

    def options(self, plan: Plan, scope: Scope) -> dict[str, Option]:
        """Return the options of a scope under GE's names."""

    def group(self, plan: Plan, ranges: Sequence[ScopeRange]) -> Grouping:
        """Return the SuperKernels of a plan whose scopes lie at these ranges."""


class GePath:
    """GE's pass (``sktune.ascend.superkernel_pass``)."""

    def __init__(self, operators: Sequence[Operator], constants: Constants) -> None:
        self._operators, self._constants = operators, constants
        self._nodes = tuple(map(_node, operators))
        # A collective that is not fused loses the label before the pass (GE, hcom_ops_kernel_builder.cc).
        self._loses_label = [op.core == "communication" and not op.can_fuse for op in operators]

    def options(self, plan: Plan, scope: Scope) -> dict[str, Option]:  # noqa: ARG002 - options of scopes
        """See ``SuperKernelPath``."""
        return dict(scope.options)

    def group(self, plan: Plan, ranges: Sequence[ScopeRange]) -> Grouping:
        """See ``SuperKernelPath``.

        Raises:
            SpaceError: GE would reject an option.
        """
        nodes = list(self._nodes)
        for each in ranges:
            if each.scope is None:
                continue
            options = self.options(plan, each.scope)
            check_options(options)
            text = render(options)
            for index in range(each.first, each.last + 1):
                if not self._loses_label[index]:
                    nodes[index] = replace(nodes[index], label=each.scope.label, options=text)

        def starts(inside: Sequence[int]) -> list[int]:
            places = starts_by_sync_all([self._operators[node] for node in inside], self._constants)
            return [inside[place] for place in places]

        return group(nodes, starts if self._constants.splits_at_sync_all.value else None)


class CapturedPath:
    """graph-autofusion's splitter of captured graphs (``sktune.ascend.graph_splits``), for steps on one stream.

    Collectives are taken to be tasks that are not fused, and operators whose shapes depend on data cannot be captured.

    Raises:
        SimulationError: the operators are on several streams.
    """

    _PRELOADS: ClassVar[Mapping[Option, str]] = {0: "max", 1: "per-func", 2: "none"}

    def __init__(self, operators: Sequence[Operator], constants: Constants) -> None:
        if len({operator.stream for operator in operators}) > 1:
            raise SimulationError(
                "captured graphs are simulated on one stream, and this step has several; simulate it with --backend sim"
            )
        self._device = int(constants["aic_cores"]), int(constants["aiv_cores"])
        self._tasks = [_task(operator, *self._device) for operator in operators]

    def options(self, plan: Plan, scope: Scope) -> dict[str, Option]:  # noqa: ARG002 - options of the whole step
        """See ``SuperKernelPath``; those without a counterpart are left out."""
        value = {**GRAPH_OPTIONS.rules.defaults, **dict(plan.options)}
        return {
            "stream-fusion": value["stream_fusion"],
            "early-start": value["early_start"],
            "preload-code": self._PRELOADS[value["preload_code"]],
            "split-mode": value["split_mode"],
        }

    def group(self, plan: Plan, ranges: Sequence[ScopeRange]) -> Grouping:
        """See ``SuperKernelPath``."""
        if not plan.scopes:  # without any marker the splitter would fuse everything
            return Grouping(())
        tasks: list[captured_graph.CapturedTask] = []
        operator_of: dict[int, int] = {}
        for each in ranges:
            if each.scope:
                tasks.append(captured_graph.CapturedTask(Kind.BEGIN, name=each.scope.label))
            for index in range(each.first, each.last + 1):
                operator_of[len(tasks)] = index
                tasks.append(self._tasks[index])
            if each.scope:
                tasks.append(captured_graph.CapturedTask(Kind.END, name=each.scope.label))
        options = SplitOptions(auto_op_parallel=dict(plan.options).get("auto_op_parallel") == 1)
        split = graph_splits.split(tasks, self._device, options)
        if split.failure:
            return Grouping((), split.failure, plan.scopes[0].label)
        groups = [
            FusedGroup(
                fused.name, fused.name, tuple(operator_of[task] for task in fused.tasks if task in operator_of), 0
            )
            for fused in split.superkernels
        ]
        inside = {node for each in groups for node in each.nodes}
        cuts = [
            Cut(each.scope.label, index, PassCut.NOT_BUILT)
            for each in ranges
            if each.scope
            for index in range(each.first, each.last + 1)
            if index not in inside
        ]
        cuts += [
            Cut(each.name, operator_of[each.cut], PassCut.SYNC_ALL)
            for each in split.groups
            if each.rule is graph_splits.CutRule.SYNCALL_OP_DROP and each.cut is not None
        ]
        return Grouping(tuple(each for each in groups if each.nodes), cuts=tuple(cuts))


def _task(operator: Operator, aic_cores: int, aiv_cores: int) -> captured_graph.CapturedTask:
    """Return what is captured of an operator."""
    if operator.core in ("aicpu", "communication"):
        return captured_graph.CapturedTask(Kind.OTHER)
    unit = core_in_superkernel(operator)
    core = {
        "cube": captured_graph.Core.CUBE,
        "mix": captured_graph.Core.MIX_1_2,
        "vector": captured_graph.Core.VECTOR,
    }[unit]
    blocks = (aiv_cores if unit == "vector" else aic_cores) if operator.is_dynamic else operator.blocks
    obstacle = None if operator.can_fuse else UnfusedReason.OP_UNSUPPORT
    if operator.is_dynamic:
        obstacle = UnfusedReason.DYNAMIC_TASK_UNSUPPORT
    return captured_graph.CapturedTask(
        Kind.KERNEL, core=core, blocks=blocks, obstacle=obstacle, needs_all_cores=operator.calls_sync_all
    )


def _node(operator: Operator) -> GraphNode:
    """Return what GE's pass sees of an operator."""
    is_collective = operator.core == "communication" and operator.can_fuse
    return GraphNode(
        operator.name, operator.type, stream=operator.stream, is_supported=operator.can_fuse and not is_collective,
        is_collective=is_collective, waits_for=operator.after,
    )  # fmt: skip
