"""When the tasks of a step run: in order on each stream, and after the events that they wait for."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sktune.sim.operators import Operator
from sktune.sim.superkernel import SuperKernel


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
    for index in _in_topological_order(waits, tasks):
        starts[index] = max((ends[each] + gap_us for each, gap_us in waits[index].items()), default=0.0)
        ends[index] = starts[index] + shares[index]
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


def _in_topological_order(waits: Sequence[dict[int, float]], tasks: Sequence[DeviceTask]) -> Iterator[int]:
    followers: list[list[int]] = [[] for _ in waits]
    left = [len(before) for before in waits]
    for index, before in enumerate(waits):
        for each in before:
            followers[each].append(index)
    ready = [index for index, count in enumerate(left) if not count]
    done = 0
    while ready:
        index = heapq.heappop(ready)
        done += 1
        yield index
        for after in followers[index]:
            left[after] -= 1
            if not left[after]:
                heapq.heappush(ready, after)
    if done < len(waits):
        stuck = (task.operators[0] for task in tasks if task.superkernel and any(left[each] for each in task.operators))
        raise DeadlockError(next(stuck))
