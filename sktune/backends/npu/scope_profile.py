"""Scope times on an NPU: a few steps of baseline and plan are profiled in turn, and read kernel by kernel.

On the device only kernels can be seen. A SuperKernel's name tells its scope; in the baseline a scope is where the
operators run that TorchAir marked in the plan.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from sktune.ascend.kernel_name import parse_superkernel_name
from sktune.backends.base import Step
from sktune.core.errors import ProfileError
from sktune.core.plan import Plan
from sktune.core.scope_times import Part
from sktune.profiling.kernel_table import NO_STEP
from sktune.profiling.readers.reading import read_profile
from sktune.targets.base import Inputs

WARM_UP_STEPS = 2
STEPS = 6
"""Steps that are recorded, half of them the baseline's. With those before them no more than verification runs in a row:
the state is not put back in between, which would be recorded, too."""


def profile_in_turn(torch_npu: Any, baseline: Step, candidate: Step, inputs: Inputs, folder: Path) -> pd.DataFrame:
    """Run the two steps in turn under torch_npu's profiler, which writes into ``folder``; return the kernels.

    Raises:
        ProfileError: the profiler wrote nothing that can be read.
    """
    profiler = torch_npu.profiler
    with profiler.profile(
        # Without the host's side no kernel knows its step.
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        schedule=profiler.schedule(wait=0, warmup=WARM_UP_STEPS, active=STEPS, repeat=1),
        on_trace_ready=profiler.tensorboard_trace_handler(str(folder)),
        experimental_config=profiler._ExperimentalConfig(  # noqa: SLF001 - its documented name
            profiler_level=profiler.ProfilerLevel.Level1
        ),
    ) as running:
        for number in range(WARM_UP_STEPS + STEPS):
            step = candidate if number % 2 else baseline
            step.prepare()
            step.run(*inputs)
            torch_npu.npu.synchronize()
            running.step()
    return read_profile(folder).frame


def scope_parts(kernels: pd.DataFrame, plan: Plan, marked: Mapping[str, Collection[str]]) -> list[Part]:
    """Return the scopes of ``plan`` and what lies between them, with their median times in both.

    A scope that left no kernel behind counts as part of the gap around it. The time before a kernel in which nothing
    runs is that kernel's.

    Args:
        kernels: of steps of the baseline and the plan in turn, the baseline first.
        plan: which scopes to look for.
        marked: names of the operators in each scope, by its label.

    Raises:
        ProfileError: the profile does not hold ``STEPS`` steps.
    """
    labels = [scope.label for scope in plan.scopes]
    steps = _steps(kernels)
    owner = {name: label for label, names in marked.items() for name in names}
    found = [parse_superkernel_name(name, labels, owner) for step in steps[1::2] for name in step["name"]]
    for fused in filter(None, found):
        owner.setdefault(fused.first, fused.scope)
        owner.setdefault(fused.last, fused.scope)
    seen = [_read(step, labels, owner) for step in steps]
    kept = _in_order(labels, seen)
    sides = [[median(each) for each in zip(*(step.pieces_us(kept) for step in side), strict=True)]
             for side in (seen[::2], seen[1::2])]  # fmt: skip
    scopes = {scope.label: scope for scope in plan.scopes}
    places = [None, *(place for label in kept for place in (scopes[label], None))]
    return [Part(place, before / 1e3, after / 1e3) for place, before, after in zip(places, *sides, strict=True)]


@dataclass(frozen=True, slots=True)
class _SeenStep:
    """One step: where each scope's kernels lie, and when everything up to a kernel is done, from the first's start."""

    rows: Mapping[str, tuple[int, int]]
    done_us: Sequence[float]

    def pieces_us(self, labels: Sequence[str]) -> list[float]:
        """Return the times of gap, scope, gap, ..., gap."""
        done = [0.0, *self.done_us]
        cuts = [0, *(row for label in labels for row in (self.rows[label][0], self.rows[label][1] + 1)), len(done) - 1]
        return [done[end] - done[start] for start, end in pairwise(cuts)]


def _steps(kernels: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the kernels of each step on one device, in order."""
    frame = kernels[(kernels["device"] == kernels["device"].min()) & (kernels["step"] != NO_STEP)]
    steps = [own.sort_values("start_us", kind="stable") for _, own in frame.groupby("step")]
    if len(steps) != STEPS:
        raise ProfileError(f"the profile holds {len(steps)} of {STEPS} steps; look for the profiler's warnings above")
    return steps


def _read(step: pd.DataFrame, labels: Collection[str], owner: Mapping[str, str]) -> _SeenStep:
    rows: dict[str, tuple[int, int]] = {}
    for row, name in enumerate(step["name"]):
        fused = parse_superkernel_name(name, labels, owner)
        label = fused.scope if fused else owner.get(name, "")
        if label:
            rows[label] = rows.get(label, (row, row))[0], row
    ends = step["start_us"] + step["duration_us"] - step["start_us"].iloc[0]
    return _SeenStep(rows, list(accumulate(ends, max)))


def _in_order(labels: Sequence[str], steps: Sequence[_SeenStep]) -> list[str]:
    """Return the scopes whose kernels lie one after the other in every step."""
    kept: list[str] = []
    for label in labels:
        if all(label in step.rows and (not kept or step.rows[kept[-1]][1] < step.rows[label][0]) for step in steps):
            kept.append(label)
    return kept
