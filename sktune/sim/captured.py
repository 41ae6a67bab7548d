"""The backend sim-npugraph-ex, and its way to SuperKernels: graph-autofusion's splitter of captured graphs."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from sktune.ascend import captured_graph, graph_splits
from sktune.ascend.captured_graph import Kind, SplitOptions, UnfusedReason
from sktune.ascend.superkernel_pass import Cut, FusedGroup, Grouping, PassCut
from sktune.backends.npugraph_ex.options import OPTIONS as GRAPH_OPTIONS
from sktune.core.errors import SimulationError
from sktune.core.layout import Layout
from sktune.core.plan import Option, Plan, Scope
from sktune.sim.backend import SimBackend
from sktune.sim.constants import Constants
from sktune.sim.operators import Operator
from sktune.sim.paths import ScopeRange
from sktune.sim.superkernel import core_in_superkernel


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


class CapturedSimBackend(SimBackend):
    """Simulates plans for npugraph_ex: always over a traced step, or a profile."""

    _path = CapturedPath

    def with_operators(self, layout: Layout) -> Layout:
        """See ``Backend.with_operators``: what the sampler concludes from operators are the rules of GE."""
        return layout


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
