"""The cost model: how long a decode step takes under a plan, on a simulated Atlas A3.

Unfused, each task costs a gap and a head (``launch``). Which operators of a scope become one SuperKernel is what the
compiler does (``paths``), and what is generated for them graph-autofusion's (``superkernel``).
Tasks of one stream run sequentially, streams run in parallel and wait for each other's events.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, groupby, pairwise

import pandas as pd

from sktune.ascend.kernel_name import SUPERKERNEL
from sktune.ascend.superkernel_pass import Cut, FusedGroup
from sktune.core.fused_scopes import FusedPart
from sktune.core.layout import Layout
from sktune.core.outcome import Reason
from sktune.core.plan import Option, Plan, Scope
from sktune.core.scope_options import normalise
from sktune.sim.constants import Constants
from sktune.sim.launch import first_use_us, gaps_us, head_us, superkernel_gaps_us, with_first_uses
from sktune.sim.operators import TABLE_COLUMNS, Operator
from sktune.sim.paths import GePath, ScopeRange, SuperKernelPath
from sktune.sim.superkernel import TERMS, SuperKernel, busy_us, fuse


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """What the device starts once: an operator, or a SuperKernel.

    Attributes:
        operators: indices, in execution order.
        stream: on which it runs.
        gap_us: before it, unless it is its stream's first.
        shares_us: the part of its duration of each operator.
        superkernel: None for an operator of its own.
    """

    operators: tuple[int, ...]
    stream: int
    gap_us: float
    shares_us: tuple[float, ...]
    superkernel: SuperKernel | None = None

    @property
    def duration_us(self) -> float:
        """From its start to its end, if nothing inside has to wait."""
        return sum(self.shares_us)


class DeadlockError(Exception):
    """A SuperKernel and what is outside of it wait for each other, at ``operator``."""

    def __init__(self, operator: int) -> None:
        super().__init__(operator)
        self.operator = operator


@dataclass(frozen=True, slots=True)
class StepPart:
    """A scope, or the operators between two scopes.

    Attributes:
        label: the scope's label; None outside of scopes.
        time_us: how much later the step ends because of it; all spans add up to the step's time.
        baseline_us: the same for these operators in the baseline.
        operators: number of unfused tasks.
        parts: what a scope's operators became; a SuperKernel of a single one gains nothing.
        cuts: types of the operators at which a scope is cut, or because of which it is not fused, each with the rule.
    """

    label: str | None
    time_us: float
    baseline_us: float
    operators: int
    parts: tuple[FusedPart, ...] = ()
    cuts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A step under a plan. All figures are simulated.

    Attributes:
        total_us: the step's time.
        terms: its parts, by ``TERMS``; the sum is ``total_us``.
        spans: scopes and the gaps between them, in execution order.
        tasks: number of tasks that the device starts.
        compile_s: estimate for a compilation without caches; equal SuperKernels are compiled once.
    """

    total_us: float
    terms: Mapping[str, float]
    spans: tuple[StepPart, ...]
    tasks: int
    compile_s: float


@dataclass(frozen=True, slots=True)
class SimulatedFailure:
    """A plan that would not compile, or would hang: reason, one readable line, and the label of the scope at fault."""

    reason: Reason
    detail: str
    blamed: str


class _PlanFailsError(Exception):
    def __init__(self, reason: Reason, detail: str, label: str) -> None:
        super().__init__(detail)
        self.failure = SimulatedFailure(reason, detail, label)


_Piece = tuple[Scope | None, list[DeviceTask]]


class StepModel:
    """Simulates many plans of one step; equal SuperKernels are computed once.

    Deterministic: the same operators, constants and plan give the same figures in every process.

    Attributes:
        busy_us: how long each operator runs, without gap and head.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        layout: Layout,
        constants: Constants,
        path: type[SuperKernelPath] = GePath,
    ) -> None:
        self._operators = with_first_uses(operators)
        self._layout = layout
        self._constants = constants
        self._path = path(self._operators, constants)
        self._gap_us = gaps_us(self._operators, constants)
        self.busy_us = [busy_us(operator, constants) for operator in self._operators]
        self._head_us = [head_us(operator, constants) for operator in self._operators]
        self._first_use_us = [first_use_us(operator, constants) for operator in self._operators]
        self._alone = [
            DeviceTask((i,), op.stream, self._gap_us[i], (self._head_us[i] + self._first_use_us[i] + self.busy_us[i],))
            for i, op in enumerate(self._operators)
        ]
        # Operators that differ only in position and name cost the same, in every layer.
        bare = [replace(op, name="", unit=None, module="", position=0, after=()) for op in self._operators]
        self._class = _classes(bare)
        self._kernel = _classes(replace(op, is_first_use=False) for op in bare)
        self._range: dict[str, tuple[int, int]] = {}
        for index, operator in enumerate(self._operators):
            if operator.unit is not None:
                self._range[operator.unit] = self._range.get(operator.unit, (index, index))[0], index
        self._alone_ends, _ = schedule(self._alone, self._operators)
        self._alone_done = list(accumulate(self._alone_ends, max))
        self._fused: dict[tuple[object, ...], SuperKernel] = {}

    def step(self, plan: Plan) -> SimulatedStep | SimulatedFailure:
        """Return the step's time under ``plan``, or why there is none.

        Raises:
            PlanError: the plan does not fit the layout.
            SpaceError: GE would reject an option.
        """
        try:
            pieces, cuts = self._plan_tasks(plan)
            ends, _ = self._scheduled(pieces)
        except _PlanFailsError as failed:
            return failed.failure
        tasks = _flat(pieces)
        total = max(ends, default=0.0)
        terms = self._terms(tasks, total)
        done = list(accumulate(ends, max))
        counts = list(accumulate(sum(len(task.operators) for task in piece) for _, piece in pieces))
        plan_us = [0.0, *(done[count - 1] for count in counts)]
        baseline_us = [0.0, *(self._alone_done[count - 1] for count in counts)]
        # How much later the step ends because of each piece, under the plan and in the baseline.
        times = [(b - a, d - c) for (a, b), (c, d) in zip(pairwise(plan_us), pairwise(baseline_us), strict=True)]
        spans = tuple(self._span(scope, piece, *each, cuts) for (scope, piece), each in zip(pieces, times, strict=True))
        return SimulatedStep(total, terms, spans, len(tasks), self._compile_s(plan, pieces))

    def time_shares(self) -> dict[str, float]:
        """Return each unit's share of the simulated baseline, gaps included, 0 to 1."""
        spent = dict.fromkeys((unit.name for unit in self._layout.units), 0.0)
        whole = 0.0
        for operator, task in zip(self._operators, self._alone, strict=True):
            whole += task.gap_us + task.duration_us
            if operator.unit in spent:
                spent[operator.unit] += task.gap_us + task.duration_us
        return {name: time_us / whole for name, time_us in spent.items()} if whole else spent

    def timeline(self, plan: Plan) -> pd.DataFrame:
        """Return the simulated tasks as a kernel table with the columns of a measured one; empty if the plan fails.

        Raises:
            PlanError, SpaceError: as in ``step``.
        """
        try:
            pieces, _ = self._plan_tasks(plan)
            _, starts = self._scheduled(pieces)
        except _PlanFailsError:
            return pd.DataFrame(columns=list(TABLE_COLUMNS))
        tasks = [(scope, task) for scope, piece in pieces for task in piece]
        rows = [self._row(scope, task, starts[task.operators[0]]) for scope, task in tasks]
        return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))

    def _scheduled(self, pieces: Sequence[_Piece]) -> tuple[list[float], list[float]]:
        try:
            return schedule(_flat(pieces), self._operators)
        except DeadlockError as failure:
            waiting = self._operators[failure.operator]
            scope = next(
                scope for scope, piece in pieces if scope and any(failure.operator in t.operators for t in piece)
            )
            raise _PlanFailsError(
                Reason.TIMEOUT,
                f"simulated hang in scope {scope.label!r}: its SuperKernel and an operator outside wait for each other "
                f"({waiting.type}, {waiting.name}); end the scope before it",
                scope.label,
            ) from None

    def _plan_tasks(self, plan: Plan) -> tuple[list[_Piece], Sequence[Cut]]:
        self._layout.check(plan)
        ranges = list(self._ranges(plan))
        grouping = self._path.group(plan, ranges)
        if grouping.failure:
            raise _PlanFailsError(Reason.COMPILE_FAILED, f"simulated: {grouping.failure}", grouping.blamed)
        of_label: dict[str, list[FusedGroup]] = {}
        for each in grouping.groups:
            of_label.setdefault(each.label, []).append(each)
        tasks = self._with_gaps((each.scope, self._tasks(plan, each, of_label)) for each in ranges)
        return tasks, grouping.cuts

    def _with_gaps(self, pieces: Iterable[_Piece]) -> list[_Piece]:
        """Return the tasks with the longer gaps before and after SuperKernels."""
        longer_after: dict[int, float] = {}

        def spaced(task: DeviceTask) -> DeviceTask:
            longer_us = longer_after.pop(task.stream, 0.0)
            if task.superkernel:
                first, last = self._operators[task.operators[0]], self._operators[task.operators[-1]]
                kind = task.superkernel.kind
                before_us, longer_after[task.stream] = superkernel_gaps_us(kind, first, last, self._constants)
                longer_us += before_us
            return replace(task, gap_us=task.gap_us + longer_us) if longer_us else task

        return [(scope, [spaced(task) for task in tasks]) for scope, tasks in pieces]

    def _ranges(self, plan: Plan) -> Iterator[ScopeRange]:
        """Yield each scope and each gap between scopes."""
        reached = 0
        names = [unit.name for unit in self._layout.units]
        for scope in plan.scopes:
            inside = names[names.index(scope.first) : names.index(scope.last) + 1]
            ranges = [self._range[name] for name in inside if name in self._range]
            if not ranges:
                continue  # its units have no device tasks
            first, last = min(first for first, _ in ranges), max(last for _, last in ranges)
            if first > reached:
                yield ScopeRange(reached, first - 1, None)
            yield ScopeRange(first, last, scope)
            reached = last + 1
        if reached < len(self._operators):
            yield ScopeRange(reached, len(self._operators) - 1, None)

    def _tasks(self, plan: Plan, each: ScopeRange, groups: Mapping[str, Sequence[FusedGroup]]) -> list[DeviceTask]:
        """Return the tasks of consecutive operators, by their first operator: the groups, and what is in none."""
        own = groups.get(each.scope.label, ()) if each.scope else ()
        if each.scope is None or not own:
            return self._alone[each.first : each.last + 1]
        inside = {node for group in own for node in group.nodes}
        options = self._path.options(plan, each.scope)
        tasks = [self._alone[index] for index in range(each.first, each.last + 1) if index not in inside]
        tasks += [self._superkernel(group, each.scope, options) for group in own]
        return sorted(tasks, key=lambda task: task.operators[0])

    def _superkernel(self, each: FusedGroup, scope: Scope, options: Mapping[str, Option]) -> DeviceTask:
        events = each.events
        key = (tuple(self._class[node] for node in each.nodes), tuple(sorted(normalise(dict(options)).items())), events)
        fused = self._fused.get(key)
        operators = [self._operators[node] for node in each.nodes]
        if fused is None:
            fused = self._fused[key] = fuse(operators, options, self._constants, events)
        if fused.refusal:
            raise _PlanFailsError(
                Reason.COMPILE_FAILED,
                f"simulated: scope {scope.label!r} is refused (EB0500): {fused.refusal}; {fused.refusal.fix}",
                scope.label,
            )
        if fused.hang:
            raise _PlanFailsError(Reason.TIMEOUT, f"simulated hang in scope {scope.label!r}: {fused.hang}", scope.label)
        busy = [self.busy_us[node] for node in each.nodes]
        if not any(busy):  # measured durations that are shorter than their heads
            busy = [1.0] * len(busy)
        shares = tuple(fused.duration_us * time_us / sum(busy) for time_us in busy)
        return DeviceTask(each.nodes, each.stream, self._gap_us[each.nodes[0]], shares, fused)

    def _terms(self, tasks: Sequence[DeviceTask], total: float) -> dict[str, float]:
        terms = dict.fromkeys(TERMS, 0.0)
        seen: set[int] = set()
        for task in tasks:
            if task.stream in seen:
                terms["gap"] += task.gap_us
            seen.add(task.stream)
            if task.superkernel is None:
                terms["busy"] += self.busy_us[task.operators[0]]
                terms["head"] += self._head_us[task.operators[0]]
                terms["icache"] += self._first_use_us[task.operators[0]]
            else:
                for name, value in task.superkernel.terms.items():
                    terms[name] += value
        # Time saved by running in parallel, plus the waits of streams for each other.
        rest = total - sum(terms.values())
        terms["stream_overlap"] += rest if len({operator.stream for operator in self._operators}) > 1 else 0.0
        return terms

    def _span(
        self, scope: Scope | None, tasks: Sequence[DeviceTask], time_us: float, baseline_us: float, cuts: Sequence[Cut]
    ) -> StepPart:
        operators = sum(len(task.operators) for task in tasks)
        if scope is None:
            return StepPart(None, time_us, baseline_us, operators)
        of_scope = ((self._operators[cut.node].type, str(cut.rule)) for cut in cuts if cut.label == scope.label)
        return StepPart(scope.label, time_us, baseline_us, operators, tuple(self._parts(tasks)), tuple(of_scope))

    def _parts(self, tasks: Sequence[DeviceTask]) -> Iterator[FusedPart]:
        """Yield each SuperKernel, and each run of tasks that remain separate."""
        for is_fused, run in groupby(tasks, key=lambda task: task.superkernel is not None):
            if is_fused:
                yield from (FusedPart(len(task.operators), task.superkernel.kind) for task in run if task.superkernel)
            else:
                types = tuple(self._operators[task.operators[0]].type for task in run)
                yield FusedPart(len(types), types=types)

    def _compile_s(self, plan: Plan, pieces: Sequence[_Piece]) -> float:
        constants = self._constants
        seconds = constants["compile_graph_s"]
        compiled: set[tuple[tuple[int, ...], tuple[tuple[str, Option], ...]]] = set()
        for scope, tasks in pieces:
            if scope is None:
                continue
            options = normalise(self._path.options(plan, scope))
            copies = 1 + constants["compile_copy_share"] * int(options.get("split-mode", 4))
            for task in tasks:
                key = (tuple(self._kernel[index] for index in task.operators), tuple(sorted(options.items())))
                if task.superkernel and key not in compiled:
                    compiled.add(key)
                    seconds += constants["compile_superkernel_s"]
                    seconds += len(key[0]) * constants["compile_sub_kernel_s"] * copies
        return seconds

    def _row(self, scope: Scope | None, task: DeviceTask, start: float) -> tuple[object, ...]:
        first, last = self._operators[task.operators[0]], self._operators[task.operators[-1]]
        if task.superkernel is None or scope is None:
            name, kind, core, blocks = first.name, first.type, _CORE_NAMES[first.core], first.blocks
        else:
            name = f"sk_{scope.label}_start_{first.name}_end_{last.name}"
            kind, blocks = SUPERKERNEL, task.superkernel.blocks
            core = "MIX_AIV" if task.superkernel.kind.startswith("MIX_AIV") else "MIX_AIC"
        return 0, 0, task.stream, name, kind, core, start, task.duration_us, task.gap_us, blocks


_CORE_NAMES: Mapping[str, str] = {
    "cube": "AI_CORE",
    "vector": "AI_VECTOR_CORE",
    "mix": "MIX_AIC",
    "aicpu": "AI_CPU",
    "communication": "HCCL",
}


def _classes(operators: Iterable[Operator]) -> list[int]:
    """Return for each operator the number of its class; equal ones share one."""
    classes: dict[Operator, int] = {}
    return [classes.setdefault(operator, len(classes)) for operator in operators]


def _flat(pieces: Sequence[_Piece]) -> list[DeviceTask]:
    return [task for _, tasks in pieces for task in tasks]


def schedule(tasks: Sequence[DeviceTask], operators: Sequence[Operator]) -> tuple[list[float], list[float]]:
    """Return end and start of each operator in us, by its index.

    A SuperKernel begins when its stream is free, when everything that its first operator waits for has ended, and what
    comes before its first operator on each other stream. Its other operators wait inside it.

    Raises:
        DeadlockError: tasks wait for each other.
    """
    if len({operator.stream for operator in operators}) <= 1:
        return _in_order(tasks, len(operators))
    waits = _waits(tasks, operators)
    shares = {index: share for task in tasks for index, share in zip(task.operators, task.shares_us, strict=True)}
    starts, ends = [0.0] * len(operators), [0.0] * len(operators)
    order = TopologicalSorter(dict(enumerate(waits)))
    with suppress(CycleError):  # what waits for itself, or for such an operator, never becomes ready
        order.prepare()
    left = set(range(len(operators)))
    while ready := order.get_ready():
        for index in ready:
            starts[index] = max((ends[each] + gap_us for each, gap_us in waits[index].items()), default=0.0)
            ends[index] = starts[index] + shares[index]
        left.difference_update(ready)
        order.done(*ready)
    if left:
        raise DeadlockError(next(task.operators[0] for task in tasks if task.superkernel and left & {*task.operators}))
    return ends, starts


def _in_order(tasks: Sequence[DeviceTask], count: int) -> tuple[list[float], list[float]]:
    starts, ends = [0.0] * count, [0.0] * count
    clock = 0.0
    for place, task in enumerate(tasks):
        clock += task.gap_us if place else 0.0
        for index, share_us in zip(task.operators, task.shares_us, strict=True):
            starts[index] = clock
            clock += share_us
            ends[index] = clock
    return ends, starts


def _waits(tasks: Sequence[DeviceTask], operators: Sequence[Operator]) -> list[dict[int, float]]:
    """Return for each operator those that end before it begins, and the least time between."""
    task_of = {index: task for task in tasks for index in task.operators}
    on_stream: dict[int, list[int]] = {}
    for index, operator in enumerate(operators):
        on_stream.setdefault(operator.stream, []).append(index)

    def beginning(index: int) -> int:
        """Return the operator that waits on behalf of ``index``: its SuperKernel's first, if it begins its stream."""
        task = task_of[index]
        same = (each for each in task.operators if operators[each].stream == operators[index].stream)
        return task.operators[0] if next(same) == index else index

    waits: list[dict[int, float]] = [{} for _ in operators]
    last: dict[int, int] = {}
    for task in tasks:
        first = task.operators[0]
        if task.stream in last:
            waits[first][last[task.stream]] = task.gap_us
        last[task.stream] = task.operators[-1]
        for before, after in pairwise(task.operators):
            waits[after][before] = 0.0
        for stream in {operators[index].stream for index in task.operators} - {task.stream}:
            own = [index for index in task.operators if operators[index].stream == stream]
            others = [index for index in on_stream[stream] if index not in task.operators]
            for before in [index for index in others if index < own[0]][-1:]:
                waits[first].setdefault(before, 0.0)
            for after in [index for index in others if index > own[-1]][:1]:
                waits[beginning(after)].setdefault(own[-1], 0.0)
    for index, operator in enumerate(operators):
        for before in operator.after:
            if before in task_of and task_of[before] is not task_of[index]:
                waits[beginning(index)].setdefault(before, 0.0)
    return waits
