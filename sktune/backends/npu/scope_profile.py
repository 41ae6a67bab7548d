"""Scope times on an NPU, from a profile of a few interleaved steps of baseline and plan.

The device only shows kernels. A SuperKernel's name contains its scope; in the baseline, a scope consists of the kernels
of the operators that TorchAir marked in the plan.
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
from sktune.targets.base import Inputs

WARM_UP_STEPS = 2
STEPS = 6
"""Recorded steps, half of them of the baseline. Together with the warm-up, they are no more consecutive steps than
verification runs: the state is not restored between them, as that would be recorded, too."""


def profile_interleaved(torch_npu: Any, baseline: Step, candidate: Step, inputs: Inputs, folder: Path) -> pd.DataFrame:
    """Run the two steps alternately under torch_npu's profiler, which writes to ``folder``; return the kernels.

    Raises:
        ProfileError: the profiler wrote no readable profile.
    """
    profiler = torch_npu.profiler
    with profiler.profile(
        # Kernels are assigned to steps only if the host's activities are recorded too.
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        schedule=profiler.schedule(wait=0, warmup=WARM_UP_STEPS, active=STEPS, repeat=1),
        on_trace_ready=profiler.tensorboard_trace_handler(str(folder)),
        experimental_config=profiler._ExperimentalConfig(  # noqa: SLF001 - its documented name
            profiler_level=profiler.ProfilerLevel.Level1
        ),
    ) as recording:
        for number in range(WARM_UP_STEPS + STEPS):
            step = candidate if number % 2 else baseline
            step.prepare()
            step.run(*inputs)
            torch_npu.npu.synchronize()
            recording.step()
    from sktune.profiling.readers.reading import read_profile

    return read_profile(folder).frame


def scope_parts(kernels: pd.DataFrame, plan: Plan, marked: Mapping[str, Collection[str]]) -> list[Part]:
    """Return the scopes of ``plan`` and the gaps between them, with their median times in baseline and plan.

    A scope without kernels is part of the gap around it. Idle time before a kernel is attributed to that kernel.

    Args:
        kernels: of alternating steps of the baseline and the plan, the baseline first.
        plan: whose scopes to look for.
        marked: names of the operators in each scope, by its label.

    Raises:
        ProfileError: the profile does not have ``STEPS`` steps.
    """
    labels = [scope.label for scope in plan.scopes]
    steps = _steps(kernels)
    owner = {name: label for label, names in marked.items() for name in names}
    names = [parse_superkernel_name(name, labels, owner) for step in steps[1::2] for name in step["name"]]
    for fused in filter(None, names):
        owner.setdefault(fused.first, fused.scope)
        owner.setdefault(fused.last, fused.scope)
    located = [_locate(step, labels, owner) for step in steps]
    ordered = _in_order(labels, located)
    pieces_us = [step.pieces_us(ordered) for step in located]
    sides = [list(map(median, zip(*side, strict=True))) for side in (pieces_us[::2], pieces_us[1::2])]
    scopes = {scope.label: scope for scope in plan.scopes}
    places = [None, *(place for label in ordered for place in (scopes[label], None))]
    return [Part(place, before / 1e3, after / 1e3) for place, before, after in zip(places, *sides, strict=True)]


@dataclass(frozen=True, slots=True)
class _LocatedStep:
    """One step: first and last row of each scope, and when everything up to a row is done, from the step's start."""

    rows: Mapping[str, tuple[int, int]]
    done_us: Sequence[float]

    def pieces_us(self, labels: Sequence[str]) -> list[float]:
        """Return the times of gap, scope, gap, ..., gap."""
        done = [0.0, *self.done_us]
        cuts = [0, *(row for label in labels for row in (self.rows[label][0], self.rows[label][1] + 1)), len(done) - 1]
        return [done[end] - done[start] for start, end in pairwise(cuts)]


def _steps(kernels: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the kernels of each step on one device, in order."""
    from sktune.profiling.kernel_table import NO_STEP

    frame = kernels[(kernels["device"] == kernels["device"].min()) & (kernels["step"] != NO_STEP)]
    steps = [rows.sort_values("start_us", kind="stable") for _, rows in frame.groupby("step")]
    if len(steps) != STEPS:
        raise ProfileError(f"the profile has {len(steps)} of {STEPS} steps; check the profiler's warnings above")
    return steps


def _locate(step: pd.DataFrame, labels: Collection[str], owner: Mapping[str, str]) -> _LocatedStep:
    rows: dict[str, tuple[int, int]] = {}
    for row, name in enumerate(step["name"]):
        fused = parse_superkernel_name(name, labels, owner)
        label = fused.scope if fused else owner.get(name, "")
        if label:
            rows[label] = rows.get(label, (row, row))[0], row
    ends = step["start_us"] + step["duration_us"] - step["start_us"].iloc[0]
    return _LocatedStep(rows, list(accumulate(ends, max)))


def _in_order(labels: Sequence[str], steps: Sequence[_LocatedStep]) -> list[str]:
    """Return the scopes that have kernels and do not overlap the previous one, in every step."""
    ordered: list[str] = []
    for label in labels:
        if all(
            label in step.rows and (not ordered or step.rows[ordered[-1]][1] < step.rows[label][0]) for step in steps
        ):
            ordered.append(label)
    return ordered
