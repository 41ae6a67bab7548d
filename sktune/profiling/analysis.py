"""Where the time of a decode step goes, and how much of it scopes can save.

All times are device times. A step lasts from its first kernel's start to its last kernel's end, and is the sum of
three parts: ``compute``, in which any kernel computes; ``exposed`` communication, in which only communication runs; and
``gap``, in which nothing runs. Time in which several streams are busy counts once, so these figures differ from sums of
the profiler's wait column.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from sktune.core.errors import ProfileError
from sktune.core.events.values import KernelShare, ProfileFigures
from sktune.profiling.kernel_roles import Role, UnitKey, role_of
from sktune.profiling.kernel_table import NO_STEP, NO_STREAM, RATIOS, KernelTable, LeftOut, busy_us
from sktune.profiling.structure import NO_LAYER, STEP_MARKERS, add_structure

TOP_TYPES = 10
DEVIATION = 0.3
"""Relative deviation from the median above which a step's time causes a warning."""
SHORTEST_QUANTILE = 0.05
"""Kernels this short do little but start and end: their duration is an upper bound for the cost of one launch."""

MAX_OVERLAP = 0.1
"""Share of the kernels' time above which those of one stream do not run one after the other."""

_SCALAR = "scalar"
_TRAINING = re.compile(r"grad(?!e|u)|backward|backprop|bwd|(?<!h)adam|momentum|(?<![a-z])sgd", re.IGNORECASE)


class Bound(StrEnum):
    """What limits a step: cube and vector cores, moving data, idle time, or waiting for other devices."""

    COMPUTE = "compute"
    MEMORY = "memory"
    SCHEDULING = "scheduling"
    SYNCHRONISATION = "synchronisation"


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One step, in milliseconds.

    Attributes:
        number: the profiler's, or counted from 0 if sktune found the steps.
        step_ms: from the first kernel's start to the last one's end; compute_ms + exposed_ms + gap_ms.
        compute_ms: in which any kernel computes, on any stream.
        communication_ms: in which any communication runs; hidden_ms of it overlap with compute, exposed_ms do not.
        gap_ms: in which nothing runs.
        kernels, superkernels: counts; SuperKernels are included in ``kernels``.
    """

    number: int
    step_ms: float
    compute_ms: float
    communication_ms: float
    hidden_ms: float
    exposed_ms: float
    gap_ms: float
    kernels: int
    superkernels: int


@dataclass(frozen=True, slots=True)
class UnitFigures:
    """A unit of one layer kind, summed over its layers; times are per step.

    Attributes:
        kernels: of one layer.
        gap_ms: idle time between its kernels, without that before the first, which no scope over the unit can save.
        launch_ms: upper bound for launching all but its first kernel, from the shortest kernels of the profile.
    """

    kind: str
    unit: str
    layers: int
    kernels: float
    busy_ms: float
    gap_ms: float
    launch_ms: float

    @property
    def parameter(self) -> str:
        """The name of the unit's parameter in a search space."""
        return f"{self.kind}.{self.unit}"

    @property
    def potential_ms(self) -> float:
        """The most that a scope over the unit can save."""
        return self.gap_ms + self.launch_ms


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits a step: the bound with the largest share.

    Attributes:
        shares: of the step's time, by bound; they add up to 1.
        scalar_share: the part of the compute share in kernels whose scalar unit is their busiest pipe.
        evidence: the basis for the split between compute and memory.
    """

    bound: Bound
    shares: Mapping[Bound, float]
    scalar_share: float
    evidence: str


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """An analysed profile, of the slowest device in it.

    Attributes:
        median: figures of a median step; each is a separate median over the steps.
        layer_kinds: of the shown step, in order.
        units: in the order in which to try scopes on them.
        shown_step: the step that is closest to the median.
        launch_us: upper bound for starting one kernel: the duration of the shortest kernels.
        between_steps_ms: median idle time between steps, due to the host; no scope can save it.
        wait_ms: the profiler's wait column per step, by stream; empty if there is none.
        warnings: one line for each reason to trust the figures less.
        withheld: those that forbid conclusions: then ``bottleneck`` is None, and nothing is advised.
        kernels: rows of all steps, with the columns of ``structure.add_structure``.
    """

    source: str
    device: str
    devices: int
    steps: tuple[StepFigures, ...]
    median: StepFigures
    layer_kinds: tuple[str, ...]
    bottleneck: Bottleneck | None
    top: tuple[KernelShare, ...]
    units: tuple[UnitFigures, ...]
    shown_step: int
    launch_us: float
    between_steps_ms: float
    wait_ms: Mapping[str, float]
    warnings: tuple[str, ...]
    withheld: tuple[str, ...]
    kernels: pd.DataFrame

    @property
    def gap_share(self) -> float:
        """Share of the step in which the device is idle: the most that scopes can save by closing gaps."""
        return self.median.gap_ms / self.median.step_ms if self.median.step_ms else 0.0

    @property
    def unit_order(self) -> tuple[str, ...]:
        """Names of units, ``kind.unit`` as in search spaces, most promising first."""
        return tuple(unit.parameter for unit in self.units)

    def certain(self, path: Path) -> Self:
        """Return the profile, read from ``path``, if conclusions may rest on it.

        Raises:
            ProfileError: they may not.
        """
        if self.withheld:
            raise ProfileError(f"{path} says nothing for sure: {'; '.join(self.withheld)}; give another profile")
        return self

    @property
    def figures(self) -> ProfileFigures:
        """The figures of it that are told."""
        median, bound = self.median, self.bottleneck.bound if self.bottleneck else None
        return ProfileFigures(
            len(self.steps), len(self.layer_kinds), median.step_ms, median.compute_ms, median.communication_ms,
            median.gap_ms, self.gap_share, bound, median.superkernels, self.top,
        )  # fmt: skip


_TIMES = ("step_ms", "compute_ms", "communication_ms", "hidden_ms", "exposed_ms", "gap_ms")


def analyse(table: KernelTable) -> Profile:
    """Analyse the slowest device of ``table``, which must have at least one kernel."""
    devices = {
        str(device): (kernels, tuple(_step(of_step) for _, of_step in kernels.groupby("step", sort=False)))
        for device, rows in table.frame.groupby("device", sort=True)
        if len(kernels := add_structure(rows))
    }
    device = max(devices, key=lambda name: float(np.median([step.step_ms for step in devices[name][1]])))
    kernels, steps = devices[device]
    times_ms = {name: float(np.median([getattr(step, name) for step in steps])) for name in _TIMES}
    median = StepFigures(
        NO_STEP, **times_ms,
        kernels=int(np.median([step.kernels for step in steps])),
        superkernels=int(np.median([step.superkernels for step in steps])),
    )  # fmt: skip
    shown = min(steps, key=lambda step: (step.kernels != median.kernels, abs(step.step_ms - median.step_ms))).number
    plain_us = kernels.loc[~kernels["is_communication"] & ~kernels["is_superkernel"], "duration_us"]
    launch_us = float(plain_us.quantile(SHORTEST_QUANTILE)) if len(plain_us) else 0.0
    in_layers = kernels[(kernels["step"] == shown) & (kernels["layer"] != NO_LAYER)]
    layer_kinds = tuple(in_layers.groupby("layer")["kind"].first())
    of_steps = kernels.assign(end=kernels["start_us"] + kernels["duration_us"]).groupby("step", sort=False)
    begin, end = of_steps["start_us"].min().to_numpy(), of_steps["end"].max().to_numpy()
    between_us = np.maximum(begin[1:] - end[:-1], 0.0)
    waits_us = kernels.dropna(subset=["wait_us"]).groupby("stream")["wait_us"].sum()
    doubts = _doubts(table, kernels, steps, len(devices), len(layer_kinds))
    return Profile(
        source=table.source,
        device=device,
        devices=len(devices),
        steps=steps,
        median=median,
        layer_kinds=layer_kinds,
        bottleneck=None if doubts.forbids else _bottleneck(kernels, median),
        top=_top(kernels),
        units=() if doubts.forbids else _units(kernels, launch_us),
        shown_step=shown,
        launch_us=launch_us,
        between_steps_ms=float(np.median(between_us)) / 1e3 if len(between_us) else 0.0,
        wait_ms={str(stream): float(total) / len(steps) / 1e3 for stream, total in waits_us.items()},
        warnings=tuple(dict.fromkeys((*doubts.warnings, *doubts.forbids))),
        withheld=tuple(doubts.forbids),
        kernels=kernels,
    )


def _step(rows: pd.DataFrame) -> StepFigures:
    start = rows["start_us"].to_numpy()
    end = start + rows["duration_us"].to_numpy()
    communicates = rows["is_communication"].to_numpy()
    masks = (slice(None), ~communicates, communicates)
    busy, compute, communication = (busy_us(start[mask], end[mask]) for mask in masks)
    span = float(end.max() - start[0])
    return StepFigures(
        number=int(rows["step"].iloc[0]),
        step_ms=span / 1e3,
        compute_ms=compute / 1e3,
        communication_ms=communication / 1e3,
        hidden_ms=(compute + communication - busy) / 1e3,
        exposed_ms=(busy - compute) / 1e3,
        gap_ms=(span - busy) / 1e3,
        kernels=len(rows),
        superkernels=int(rows["is_superkernel"].sum()),
    )


def _top(kernels: pd.DataFrame) -> tuple[KernelShare, ...]:
    groups = (
        kernels.groupby("type")["duration_us"].agg(["size", "sum"]).sort_values("sum", ascending=False, kind="stable")
    )
    total = float(groups["sum"].sum())
    return tuple(
        KernelShare(str(kind), int(row["size"]), row["sum"] / 1e3, row["sum"] / total if total else 0.0)
        for kind, row in groups.head(TOP_TYPES).iterrows()
    )


def _units(kernels: pd.DataFrame, launch_us: float) -> tuple[UnitFigures, ...]:
    """Return figures of units inside layers, ordered by the time that scopes over them can save."""
    not_units = (str(UnitKey.COMMUNICATION), str(UnitKey.LAYER))
    inside = kernels[(kernels["layer"] != NO_LAYER) & ~kernels["unit"].isin(not_units)]
    groups = inside.groupby(["kind", "unit", "step", "layer"], sort=False)
    idle = groups["idle_us"].agg(["sum", "first", "size"])
    each = pd.DataFrame(
        {"gap": idle["sum"] - idle["first"], "kernels": idle["size"], "busy": groups["duration_us"].sum()}
    )
    of_step = each.groupby(["kind", "unit", "step"], sort=False).agg(
        gap=("gap", "sum"), kernels=("kernels", "sum"), busy=("busy", "sum"), layers=("gap", "size")
    )
    units = []
    for key, row in of_step.groupby(["kind", "unit"], sort=False).median().iterrows():
        kind, unit = key if isinstance(key, tuple) else (key, "")
        count, layers = float(row["kernels"]), int(row["layers"])
        launch_ms = (count - layers) * launch_us / 1e3
        units.append(
            UnitFigures(
                kind, unit, layers, count / layers, float(row["busy"]) / 1e3, float(row["gap"]) / 1e3, launch_ms
            )
        )
    return tuple(sorted(units, key=lambda unit: (-unit.potential_ms, -unit.kernels)))


def _bottleneck(kernels: pd.DataFrame, median: StepFigures) -> Bottleneck:
    computing = kernels[~kernels["is_communication"]]
    duration = computing["duration_us"].to_numpy()
    total = max(float(duration.sum()), 1e-9)
    # What bounds each kernel: its busiest pipe, or its type if the profile has no pipes.
    heavy = {kind: role_of(kind) in (Role.MATMUL, Role.ATTENTION, Role.EXPERTS) for kind in computing["type"].unique()}
    bounds = np.where(computing["type"].map(heavy).to_numpy(bool), Bound.COMPUTE, Bound.MEMORY).astype(object)
    evidence = "operator types: the profile has no pipe columns, so memory and compute are estimates"
    ratios = [ratio for ratio in RATIOS if ratio in computing]
    if ratios and (known := (computing[ratios].max(axis=1) > 0).to_numpy()).any():
        busiest = computing.loc[known, ratios].idxmax(axis=1)
        meaning = {"mac_ratio": Bound.COMPUTE, "vec_ratio": Bound.COMPUTE, "scalar_ratio": _SCALAR}
        bounds[known] = busiest.map(lambda ratio: meaning.get(ratio, Bound.MEMORY)).to_numpy(object)
        evidence = f"pipe ratios, which cover {duration[known].sum() / total:.0%} of the compute time"
    # Medians of parts need not add up to the median of the whole.
    step_ms = max(median.compute_ms + median.exposed_ms + median.gap_ms, 1e-9)
    scalar, memory = (float(duration[bounds == bound].sum()) / total for bound in (_SCALAR, Bound.MEMORY))
    busy = median.compute_ms / step_ms
    shares = {
        Bound.COMPUTE: busy * (1 - memory),
        Bound.MEMORY: busy * memory,
        Bound.SCHEDULING: median.gap_ms / step_ms,
        Bound.SYNCHRONISATION: median.exposed_ms / step_ms,
    }
    return Bottleneck(max(shares, key=lambda bound: shares[bound]), shares, busy * scalar, evidence)


def _doubts(
    table: KernelTable, kernels: pd.DataFrame, steps: tuple[StepFigures, ...], devices: int, layers: int
) -> LeftOut:
    """Return what the reader left out, and one line for each other reason to trust the figures less."""
    doubts = LeftOut().with_those_of(table.left_out)
    recorded = int((table.frame["device"] == kernels["device"].iloc[0]).sum())
    if recorded > len(kernels):
        doubts.say(f"{recorded - len(kernels)} of {recorded} kernels are outside of steps and were left out")
    counts = Counter(step.kernels for step in steps)
    if len(counts) > 1:
        doubts.say(f"steps differ in their number of kernels ({min(counts)} to {max(counts)}); figures are medians")
    if doubts.lost and (alike := max(counts.values())) <= max(1, len(steps) // 2):
        # A kernel that is missing in a step looks like a gap; most steps have as many as each other if they are whole.
        doubts.say(f"what was left out may be missing in all but {alike} of {len(steps)} steps", forbids=True)
    usual = float(np.median([step.step_ms for step in steps]))
    for step in steps:
        if abs(step.step_ms - usual) > DEVIATION * usual:
            doubts.say(f"step {step.number} took {step.step_ms:.3f} ms; the median is {usual:.3f} ms")
    if not table.has_steps:
        how = f"{len(steps)} were found by repetition" if len(steps) > 1 else "the file is treated as one step"
        # Without a kernel that runs once per step in every one, groups of layers look like steps.
        marks = kernels["type"].map({kind: role_of(kind) in STEP_MARKERS for kind in kernels["type"].unique()})
        if len(steps) > 1 and (layers == 1 or not marks.groupby(kernels["step"]).any().all()):
            how += ", and may be layers instead"
        doubts.say(f"the profile does not mark steps: {how}; to be sure, record steps with a schedule (ProfilerStep)")
    if devices > 1:
        doubts.say(f"the profile has {devices} devices; the slowest is shown")
    if layers == 1:
        doubts.say(
            "no repeating layers were found: everything between embedding and final norm is treated as one layer"
        )
    trains = kernels["token"].map({token: bool(_TRAINING.search(token)) for token in kernels["token"].unique()})
    if trains.any():
        doubts.say(
            f"{trains.sum()} of {len(kernels)} kernels are of a backward pass or an optimizer, as "
            f"{kernels['token'][trains].iloc[0][:60]}: this is training, and scopes are for decode steps",
            forbids=True,
        )
    # A stream runs its kernels one by one.
    computing = kernels[~kernels["is_communication"] & (kernels["stream"] != NO_STREAM)]
    starts, durations = computing["start_us"].to_numpy(), computing["duration_us"].to_numpy()
    streams = computing.groupby("stream").indices.values()
    busy = sum(busy_us(starts[rows], starts[rows] + durations[rows]) for rows in streams)
    if len(computing) and (overlap := 1 - busy / max(float(durations.sum()), 1e-9)) > MAX_OVERLAP:
        doubts.say(
            f"kernels of one stream overlap for {overlap:.0%} of their time: several devices or hosts seem to be mixed",
            forbids=True,
        )
    return doubts
