"""The cost model: how long a decode step takes under a plan, on a simulated Atlas A3.

Unfused, each task costs a gap and a head. In a scope, consecutive fusable operators become SuperKernels
(``superkernel``); an operator that cannot be fused remains a separate task and splits the scope.
Tasks of one stream run sequentially, streams run in parallel.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

import pandas as pd

from sktune.ascend.kernel_name import SUPERKERNEL
from sktune.backends.sim.constants import Constants
from sktune.backends.sim.operators import TABLE_COLUMNS, Operator
from sktune.backends.sim.superkernel import TERMS, FusionOptions, SuperKernel, busy_us, fuse, head_us
from sktune.core.fused_scopes import FusedPart
from sktune.core.layout import Layout
from sktune.core.outcome import Reason
from sktune.core.plan import Plan, Scope


@dataclass(frozen=True, slots=True)
class Span:
    """A scope, or the operators between two scopes.

    Attributes:
        label: the scope's label; None outside of scopes.
        time_us: how much later the step ends because of it; all spans add up to the step's time.
        baseline_us: the same for these operators in the baseline.
        operators: number of unfused tasks.
        parts: what a scope's operators became; a SuperKernel of a single one gains nothing.
    """

    label: str | None
    time_us: float
    baseline_us: float
    operators: int
    parts: tuple[FusedPart, ...] = ()


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
    spans: tuple[Span, ...]
    tasks: int
    compile_s: float


@dataclass(frozen=True, slots=True)
class SimulatedFailure:
    """A plan that would not compile, or would hang: reason, one readable line, and the label of the scope at fault."""

    reason: Reason
    detail: str
    blamed: str


@dataclass(frozen=True, slots=True)
class _Task:
    first: int
    last: int
    streams: tuple[int, ...]
    gap_us: float
    duration_us: float
    superkernel: SuperKernel | None = None


class _PlanFailsError(Exception):
    def __init__(self, reason: Reason, detail: str, scope: Scope) -> None:
        super().__init__(detail)
        self.failure = SimulatedFailure(reason, detail, scope.label)


class StepModel:
    """Simulates many plans of one step; equal SuperKernels are computed once.

    Deterministic: the same operators, constants and plan give the same figures in every process.
    """

    def __init__(self, operators: Sequence[Operator], layout: Layout, constants: Constants) -> None:
        self._operators = tuple(operators)
        self._layout = layout
        self._constants = constants
        gap = constants["dispatch_gap_us"]
        self._gap_us = [gap if operator.wait_us is None else operator.wait_us for operator in operators]
        self._busy_us = [busy_us(operator, constants) for operator in operators]
        self._head_us = [head_us(operator, constants) for operator in operators]
        self._alone = [
            _Task(i, i, (operator.stream,), self._gap_us[i], self._head_us[i] + self._busy_us[i])
            for i, operator in enumerate(self._operators)
        ]
        classes: dict[Operator, int] = {}
        # Operators that differ only in position and name cost the same, in every layer.
        self._class = [
            classes.setdefault(replace(op, name="", unit=None, module="", position=0, after=()), len(classes))
            for op in self._operators
        ]
        self._has_streams = len({operator.stream for operator in self._operators}) > 1
        self._range = _unit_ranges(self._operators)
        starts, _ = self._schedule(self._alone)
        ends = (start + task.duration_us for start, task in zip(starts, self._alone, strict=True))
        self._alone_done = list(accumulate(ends, max))
        self._fused: dict[tuple[tuple[int, ...], FusionOptions], SuperKernel] = {}

    def step(self, plan: Plan) -> SimulatedStep | SimulatedFailure:
        """Return the step's time under ``plan``, or why there is none.

        Raises:
            PlanError: the plan does not fit the layout.
            SpaceError: GE would reject an option.
        """
        try:
            pieces = self._plan_tasks(plan)
        except _PlanFailsError as failed:
            return failed.failure
        tasks = _flat(pieces)
        starts, total = self._schedule(tasks)
        terms = self._terms(tasks, total)
        spans = tuple(
            self._span(scope, piece, *times)
            for (scope, piece), times in zip(pieces, self._span_times(pieces, starts), strict=True)
        )
        return SimulatedStep(total, terms, spans, len(tasks), self._compile_s(pieces))

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
            pieces = self._plan_tasks(plan)
        except _PlanFailsError:
            return pd.DataFrame(columns=list(TABLE_COLUMNS))
        tasks = [(scope, task) for scope, piece in pieces for task in piece]
        starts, _ = self._schedule([task for _, task in tasks])
        rows = [self._row(scope, task, start) for (scope, task), start in zip(tasks, starts, strict=True)]
        return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))

    def _plan_tasks(self, plan: Plan) -> list[tuple[Scope | None, list[_Task]]]:
        self._layout.check(plan)
        return [(scope, list(self._tasks(first, last, scope))) for first, last, scope in self._pieces(plan)]

    def _pieces(self, plan: Plan) -> Iterator[tuple[int, int, Scope | None]]:
        """Yield first and last operator of each scope and of each gap between scopes."""
        reached = 0
        for scope in plan.scopes:
            inside = self._scope_range(scope)
            if inside is None:
                continue  # its units have no device tasks
            first, last = inside
            if first > reached:
                yield reached, first - 1, None
            yield first, last, scope
            reached = last + 1
        if reached < len(self._operators):
            yield reached, len(self._operators) - 1, None

    def _scope_range(self, scope: Scope) -> tuple[int, int] | None:
        names = [unit.name for unit in self._layout.units]
        inside = names[names.index(scope.first) : names.index(scope.last) + 1]
        ranges = [self._range[name] for name in inside if name in self._range]
        return (min(first for first, _ in ranges), max(last for _, last in ranges)) if ranges else None

    def _tasks(self, first: int, last: int, scope: Scope | None) -> Iterator[_Task]:
        options = FusionOptions.of(dict(scope.options)) if scope else None
        if scope is None or options is None or not self._is_kept(first, last, scope, options):
            yield from self._alone[first : last + 1]
            return
        for can_fuse, group in groupby(range(first, last + 1), key=lambda index: self._operators[index].can_fuse):
            run = list(group)
            if can_fuse:
                yield self._superkernel(run[0], run[-1], scope, options)
            else:
                yield from self._alone[run[0] : run[-1] + 1]

    def _is_kept(self, first: int, last: int, scope: Scope, options: FusionOptions) -> bool:
        """Whether GE keeps the scope; ``strict-scope-check`` ignores collectives (fact sheet, 2.2)."""
        if not options.strict_scope_check:
            return True
        inside = self._operators[first : last + 1]
        foreign = [op for op in inside if not op.can_fuse and op.core != "communication"]
        if foreign and options.strict_scope_check == "abort":
            raise _PlanFailsError(
                Reason.COMPILE_FAILED,
                f"simulated: strict-scope-check=abort: scope {scope.label!r} contains {foreign[0].type}, "
                f"which cannot be fused ({foreign[0].name}); end the scope before it",
                scope,
            )
        return not foreign

    def _superkernel(self, first: int, last: int, scope: Scope, options: FusionOptions) -> _Task:
        operators = self._operators[first : last + 1]
        streams = tuple(sorted({operator.stream for operator in operators}))
        if len(streams) > 2:
            raise _PlanFailsError(
                Reason.COMPILE_FAILED,
                f"simulated: scope {scope.label!r} has operators on {len(streams)} streams, a SuperKernel supports 2; "
                "end the scope where the stream changes",
                scope,
            )
        key = (tuple(self._class[first : last + 1]), options)
        # Events between streams depend on positions, which are not part of the key.
        fused = None if len(streams) > 1 else self._fused.get(key)
        if fused is None:
            fused = self._fused[key] = fuse(operators, options, self._constants)
        if fused.hang:
            raise _PlanFailsError(Reason.TIMEOUT, f"simulated hang in scope {scope.label!r}: {fused.hang}", scope)
        return _Task(first, last, streams, self._gap_us[first], fused.duration_us, fused)

    def _schedule(self, tasks: Sequence[_Task]) -> tuple[list[float], float]:
        """Return each task's start and the step's end; a stream's first task has no gap before it."""
        clocks: dict[int, float] = {}
        ends: dict[int, float] = {}
        starts: list[float] = []
        for task in tasks:
            start = max((clocks[stream] + task.gap_us for stream in task.streams if stream in clocks), default=0.0)
            if self._has_streams:
                waits = (p for i in range(task.first, task.last + 1) for p in self._operators[i].after)
                start = max([start, *(ends[position] for position in waits if position in ends)])
            end = start + task.duration_us
            clocks.update(dict.fromkeys(task.streams, end))
            if self._has_streams:
                ends.update(dict.fromkeys(range(task.first, task.last + 1), end))
            starts.append(start)
        return starts, max(clocks.values(), default=0.0)

    def _terms(self, tasks: Sequence[_Task], total: float) -> dict[str, float]:
        terms = dict.fromkeys(TERMS, 0.0)
        seen: set[int] = set()
        for task in tasks:
            if seen.intersection(task.streams):
                terms["gap"] += task.gap_us
            seen.update(task.streams)
            if task.superkernel is None:
                terms["busy"] += self._busy_us[task.first]
                terms["head"] += self._head_us[task.first]
            else:
                for name, value in task.superkernel.terms.items():
                    terms[name] += value
        if self._has_streams:  # time saved by running in parallel, plus the waits of streams for each other
            terms["stream_overlap"] += total - sum(terms.values())
        return terms

    def _span_times(
        self, pieces: Sequence[tuple[Scope | None, Sequence[_Task]]], starts: Sequence[float]
    ) -> list[tuple[float, float]]:
        """Return for each piece how much later the step ends because of it, under the plan and in the baseline."""
        done = list(accumulate((s + t.duration_us for s, t in zip(starts, _flat(pieces), strict=True)), max))
        tasks = list(accumulate(len(piece) for _, piece in pieces))
        operators = [piece[-1].last + 1 for _, piece in pieces]
        plan_us = [0.0, *(done[count - 1] for count in tasks)]
        baseline_us = [0.0, *(self._alone_done[count - 1] for count in operators)]
        plan_steps, baseline_steps = pairwise(plan_us), pairwise(baseline_us)
        return [(b - a, d - c) for (a, b), (c, d) in zip(plan_steps, baseline_steps, strict=True)]

    def _span(self, scope: Scope | None, tasks: Sequence[_Task], time_us: float, baseline_us: float) -> Span:
        operators = sum(task.last - task.first + 1 for task in tasks)
        if scope is None:
            return Span(None, time_us, baseline_us, operators)
        return Span(scope.label, time_us, baseline_us, operators, tuple(self._parts(tasks)))

    def _parts(self, tasks: Sequence[_Task]) -> Iterator[FusedPart]:
        """Yield each SuperKernel, and each run of tasks that remain separate."""
        for is_fused, run in groupby(tasks, key=lambda task: task.superkernel is not None):
            if is_fused:
                yield from (
                    FusedPart(task.last - task.first + 1, task.superkernel.kind) for task in run if task.superkernel
                )
            else:
                types = tuple(self._operators[task.first].type for task in run)
                yield FusedPart(len(types), types=types)

    def _compile_s(self, pieces: Sequence[tuple[Scope | None, Sequence[_Task]]]) -> float:
        constants = self._constants
        seconds = constants["compile_graph_s"]
        compiled: set[tuple[tuple[int, ...], FusionOptions]] = set()
        for scope, tasks in pieces:
            if scope is None:
                continue
            options = FusionOptions.of(dict(scope.options))
            copies = 1 + constants["compile_copy_share"] * options.split_mode
            for task in tasks:
                key = (tuple(self._class[task.first : task.last + 1]), options)
                if task.superkernel and key not in compiled:
                    compiled.add(key)
                    seconds += constants["compile_superkernel_s"]
                    seconds += len(key[0]) * constants["compile_sub_kernel_s"] * copies
        return seconds

    def _row(self, scope: Scope | None, task: _Task, start: float) -> tuple[object, ...]:
        first, last = self._operators[task.first], self._operators[task.last]
        if task.superkernel is None or scope is None:
            name, kind, core, blocks = first.name, first.type, _CORE_NAMES[first.core], first.blocks
        else:
            name = f"sk_{scope.label}_start_{first.name}_end_{last.name}"
            kind, blocks = SUPERKERNEL, task.superkernel.blocks
            core = "MIX_AIV" if task.superkernel.kind.startswith("MIX_AIV") else "MIX_AIC"
        return 0, 0, first.stream, name, kind, core, start, task.duration_us, task.gap_us, blocks


_CORE_NAMES: Mapping[str, str] = {
    "cube": "AI_CORE",
    "vector": "AI_VECTOR_CORE",
    "mix": "MIX_AIC",
    "aicpu": "AI_CPU",
    "communication": "HCCL",
}


def _flat(pieces: Sequence[tuple[Scope | None, Sequence[_Task]]]) -> list[_Task]:
    return [task for _, piece in pieces for task in piece]


def _unit_ranges(operators: Sequence[Operator]) -> dict[str, tuple[int, int]]:
    ranges: dict[str, tuple[int, int]] = {}
    for index, operator in enumerate(operators):
        if operator.unit is not None:
            first, _ = ranges.get(operator.unit, (index, index))
            ranges[operator.unit] = first, index
    return ranges
