"""Where the time of a decode step goes, and what scopes can save of it.

All times are device times. A step lasts from its first kernel's start to its last kernel's end; of it, ``compute`` is
when any kernel computes, ``exposed`` communication is when only communication runs, and ``gap`` is when nothing
runs: these three add up. Times that streams spend side by side count once, so that no figure is a sum of wait columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.profiling.kernel_roles import Role, UnitKey, role_of
from sktune.profiling.kernel_table import NO_STEP, RATIOS, KernelTable, busy_us
from sktune.profiling.structure import NO_LAYER, add_structure

TOP_TYPES = 10
DEVIATION = 0.3
"""From this share of the median on, a step's time is worth a warning."""
SHORTEST_QUANTILE = 0.05
"""Kernels as short as this do next to nothing but start and end: what one launch costs, at most."""


_SCALAR = "scalar"


class Bound(StrEnum):
    """What limits a step: cube and vector cores, moving data, nothing to run, or waiting for other devices."""

    COMPUTE = "compute"
    MEMORY = "memory"
    SCHEDULING = "scheduling"
    SYNCHRONISATION = "synchronisation"


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One step, in milliseconds.

    Attributes:
        number: the profiler's, or counted from 0 where sktune found the steps.
        step_ms: from the first kernel's start to the last one's end; compute_ms + exposed_ms + gap_ms.
        compute_ms: while any kernel computes, on any stream.
        communication_ms: while any communication runs; hidden_ms of it while something computes, exposed_ms not.
        gap_ms: while nothing runs.
        kernels, superkernels: how many; SuperKernels are kernels too.
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
class TypeFigures:
    """An operator type over all steps; ``share`` of the sum of all kernels' durations."""

    type: str
    count: int
    total_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class UnitFigures:
    """A unit of one layer kind, in all its layers together; times are per step.

    Attributes:
        kernels: of one layer.
        gap_ms: idle time between its kernels, what is before the first not counted: no scope over it can save that.
        launch_ms: at most what launching all but its first kernel costs, by the shortest kernels of the profile.
    """

    kind: str
    unit: str
    layers: int
    kernels: float
    busy_ms: float
    gap_ms: float
    launch_ms: float

    @property
    def word(self) -> str:
        """The name of the unit's parameter in a search space."""
        return f"{self.kind}.{self.unit}"

    @property
    def potential_ms(self) -> float:
        """What a scope over the unit can save at most."""
        return self.gap_ms + self.launch_ms


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits a step: the bound with the largest share.

    Attributes:
        shares: of the step's time, by bound; they add up to 1.
        scalar_share: part of the share of compute: kernels whose scalar unit is their busiest pipe.
        evidence: what the split between compute and memory was told from.
    """

    bound: Bound
    shares: Mapping[Bound, float]
    scalar_share: float
    evidence: str


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """An analysed profile, of the slowest device in it.

    Attributes:
        median: figures of the median step, each its own median.
        layer_kinds: of the shown step, in order.
        units: in the order in which to try scopes on them.
        shown_step: the step that is closest to the median.
        launch_us: what starting one kernel costs at most: the duration of the shortest kernels.
        between_steps_ms: idle time from one step to the next, median; the host's, which no scope can save.
        wait_ms: the profiler's own wait column per step, by stream; empty where there is none.
        kernels: rows of all steps, with the columns of ``structure.add_structure``.
    """

    source: str
    device: str
    devices: int
    steps: tuple[StepFigures, ...]
    median: StepFigures
    layer_kinds: tuple[str, ...]
    bottleneck: Bottleneck
    top: tuple[TypeFigures, ...]
    units: tuple[UnitFigures, ...]
    shown_step: int
    launch_us: float
    between_steps_ms: float
    wait_ms: Mapping[str, float]
    warnings: tuple[str, ...]
    kernels: pd.DataFrame

    @property
    def gap_share(self) -> float:
        """Share of the step in which the device has nothing to do: the most that scopes can save of it."""
        return self.median.gap_ms / self.median.step_ms if self.median.step_ms else 0.0

    @property
    def unit_order(self) -> tuple[str, ...]:
        """Unit words, ``kind.unit`` as in search spaces, most promising first."""
        return tuple(unit.word for unit in self.units)

    def summary(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: the event ``profile_finished`` without its name."""
        times = {name: round(getattr(self.median, name), 6) for name in _TIMES[:3]}
        return {
            "steps": len(self.steps),
            "layers": len(self.layer_kinds),
            **times,
            "gap_ms": round(self.median.gap_ms, 6),
            "gap_share": round(self.gap_share, 6),
            "bottleneck": str(self.bottleneck.bound),
            "superkernels": self.median.superkernels,
            "top": [
                {"type": row.type, "count": row.count, "total_ms": round(row.total_ms, 6), "share": round(row.share, 6)}
                for row in self.top
            ],
        }


_TIMES = ("step_ms", "compute_ms", "communication_ms", "hidden_ms", "exposed_ms", "gap_ms")


def analyse(table: KernelTable) -> Profile:
    """Analyse the slowest device of ``table``, which holds at least one kernel."""
    devices = {
        str(device): (kernels, _steps(kernels))
        for device, rows in table.frame.groupby("device", sort=True)
        if len(kernels := add_structure(rows))
    }
    device = max(devices, key=lambda name: float(np.median([step.step_ms for step in devices[name][1]])))
    kernels, steps = devices[device]
    median = _median(steps)
    shown = min(steps, key=lambda step: (step.kernels != median.kernels, abs(step.step_ms - median.step_ms))).number
    launch_us = _launch_us(kernels)
    layer_kinds = _layer_kinds(kernels[kernels["step"] == shown])
    return Profile(
        source=table.source,
        device=device,
        devices=len(devices),
        steps=steps,
        median=median,
        layer_kinds=layer_kinds,
        bottleneck=_bottleneck(kernels, median),
        top=_top(kernels),
        units=_units(kernels, launch_us),
        shown_step=shown,
        launch_us=launch_us,
        between_steps_ms=_between_steps_ms(kernels),
        wait_ms=_wait_ms(kernels, len(steps)),
        warnings=(*table.warnings, *_doubts(table, kernels, steps, len(devices), len(layer_kinds))),
        kernels=kernels,
    )


def _steps(kernels: pd.DataFrame) -> tuple[StepFigures, ...]:
    return tuple(_step(int(number), rows) for number, rows in kernels.groupby("step", sort=False))  # type: ignore[arg-type]


def _step(number: int, rows: pd.DataFrame) -> StepFigures:
    start = rows["start_us"].to_numpy()
    end = start + rows["duration_us"].to_numpy()
    talks = rows["is_communication"].to_numpy()
    busy, compute, communication = (busy_us(start[on], end[on]) for on in (slice(None), ~talks, talks))
    span = float(end.max() - start[0])
    return StepFigures(
        number=number,
        step_ms=span / 1e3,
        compute_ms=compute / 1e3,
        communication_ms=communication / 1e3,
        hidden_ms=(compute + communication - busy) / 1e3,
        exposed_ms=(busy - compute) / 1e3,
        gap_ms=(span - busy) / 1e3,
        kernels=len(rows),
        superkernels=int(rows["is_superkernel"].sum()),
    )


def _median(steps: tuple[StepFigures, ...]) -> StepFigures:
    times = {name: float(np.median([getattr(step, name) for step in steps])) for name in _TIMES}
    kernels, superkernels = (int(np.median([getattr(step, n) for step in steps])) for n in ("kernels", "superkernels"))
    return StepFigures(NO_STEP, **times, kernels=kernels, superkernels=superkernels)


def _layer_kinds(rows: pd.DataFrame) -> tuple[str, ...]:
    inside = rows[rows["layer"] != NO_LAYER]
    return tuple(inside.groupby("layer")["kind"].first())


def _top(kernels: pd.DataFrame) -> tuple[TypeFigures, ...]:
    groups = (
        kernels.groupby("type")["duration_us"].agg(["size", "sum"]).sort_values("sum", ascending=False, kind="stable")
    )
    total = float(groups["sum"].sum())
    return tuple(
        TypeFigures(str(kind), int(row["size"]), row["sum"] / 1e3, row["sum"] / total if total else 0.0)
        for kind, row in groups.head(TOP_TYPES).iterrows()
    )


def _launch_us(kernels: pd.DataFrame) -> float:
    plain = kernels.loc[~kernels["is_communication"] & ~kernels["is_superkernel"], "duration_us"]
    return float(plain.quantile(SHORTEST_QUANTILE)) if len(plain) else 0.0


def _units(kernels: pd.DataFrame, launch_us: float) -> tuple[UnitFigures, ...]:
    """Return figures of units inside layers, by what scopes over them can save."""
    nowhere = (str(UnitKey.COMMUNICATION), str(UnitKey.LAYER))
    inside = kernels[(kernels["layer"] != NO_LAYER) & ~kernels["unit"].isin(nowhere)]
    groups = inside.groupby(["kind", "unit", "step", "layer"], sort=False)
    idle = groups["idle_us"].agg(["sum", "first", "size"])
    each = pd.DataFrame(
        {"gap": idle["sum"] - idle["first"], "kernels": idle["size"], "busy": groups["duration_us"].sum()}
    )
    of_step = each.groupby(["kind", "unit", "step"], sort=False).agg(
        gap=("gap", "sum"), kernels=("kernels", "sum"), busy=("busy", "sum"), layers=("gap", "size")
    )
    found = []
    for key, row in of_step.groupby(["kind", "unit"], sort=False).median().iterrows():
        kind, unit = key if isinstance(key, tuple) else (key, "")
        count, layers = float(row["kernels"]), int(row["layers"])
        launch_ms = (count - layers) * launch_us / 1e3
        found.append(
            UnitFigures(
                kind, unit, layers, count / layers, float(row["busy"]) / 1e3, float(row["gap"]) / 1e3, launch_ms
            )
        )
    return tuple(sorted(found, key=lambda unit: (-unit.potential_ms, -unit.kernels)))


def _between_steps_ms(kernels: pd.DataFrame) -> float:
    groups = kernels.assign(end=kernels["start_us"] + kernels["duration_us"]).groupby("step", sort=False)
    begin, end = groups["start_us"].min().to_numpy(), groups["end"].max().to_numpy()
    return float(np.median(np.maximum(begin[1:] - end[:-1], 0.0))) / 1e3 if len(begin) > 1 else 0.0


def _wait_ms(kernels: pd.DataFrame, steps: int) -> dict[str, float]:
    waits = kernels.dropna(subset=["wait_us"]).groupby("stream")["wait_us"].sum()
    return {str(stream): float(total) / steps / 1e3 for stream, total in waits.items()}


def _bottleneck(kernels: pd.DataFrame, median: StepFigures) -> Bottleneck:
    computing = kernels[~kernels["is_communication"]]
    bounds, evidence = _kernel_bounds(computing)
    duration = computing["duration_us"].to_numpy()
    # Medians of parts need not add up to the median of the whole.
    step_ms = max(median.compute_ms + median.exposed_ms + median.gap_ms, 1e-9)
    total = max(float(duration.sum()), 1e-9)
    scalar, memory = (float(duration[bounds == bound].sum()) / total for bound in (_SCALAR, Bound.MEMORY))
    busy = median.compute_ms / step_ms
    shares = {
        Bound.COMPUTE: busy * (1 - memory),
        Bound.MEMORY: busy * memory,
        Bound.SCHEDULING: median.gap_ms / step_ms,
        Bound.SYNCHRONISATION: median.exposed_ms / step_ms,
    }
    return Bottleneck(max(shares, key=lambda bound: shares[bound]), shares, busy * scalar, evidence)


def _kernel_bounds(kernels: pd.DataFrame) -> tuple[npt.NDArray[np.object_], str]:
    """Return what bounds each kernel, by its busiest pipe; by its type where the profile has no pipes."""
    heavy = {kind: role_of(kind) in (Role.MATMUL, Role.ATTENTION, Role.EXPERTS) for kind in kernels["type"].unique()}
    by_type = np.where(kernels["type"].map(heavy).to_numpy(bool), Bound.COMPUTE, Bound.MEMORY).astype(object)
    ratios = [ratio for ratio in RATIOS if ratio in kernels]
    if not ratios or not (known := (kernels[ratios].max(axis=1) > 0).to_numpy()).any():
        return by_type, "operator types: the profile has no pipe columns, so memory and compute are an inference"
    busiest = kernels.loc[known, ratios].idxmax(axis=1)
    meaning = {"mac_ratio": Bound.COMPUTE, "vec_ratio": Bound.COMPUTE, "scalar_ratio": _SCALAR}
    by_type[known] = busiest.map(lambda ratio: meaning.get(ratio, Bound.MEMORY)).to_numpy(object)
    share = kernels.loc[known, "duration_us"].sum() / max(kernels["duration_us"].sum(), 1e-9)
    return by_type, f"pipe ratios, which cover {share:.0%} of the computing time"


def _doubts(
    table: KernelTable, kernels: pd.DataFrame, steps: tuple[StepFigures, ...], devices: int, layers: int
) -> list[str]:
    """Return a line for each reason to trust the figures less."""
    doubts = []
    recorded = int((table.frame["device"] == kernels["device"].iloc[0]).sum())
    if recorded > len(kernels):
        doubts.append(f"{recorded - len(kernels)} of {recorded} kernels lie outside of steps and were left out")
    counts = sorted(step.kernels for step in steps)
    if counts[0] != counts[-1]:
        doubts.append(f"steps differ in their number of kernels ({counts[0]} to {counts[-1]}); figures are medians")
    usual = float(np.median([step.step_ms for step in steps]))
    for step in steps:
        if abs(step.step_ms - usual) > DEVIATION * usual:
            doubts.append(f"step {step.number} took {step.step_ms:.3f} ms where the median is {usual:.3f} ms")
    if not table.has_steps:
        how = f"{len(steps)} were found by what repeats" if len(steps) > 1 else "the file is taken as one step"
        if len(steps) > 1 and layers == 1:
            how += ", and may be layers instead"
        doubts.append(
            f"the profile does not mark steps: {how}; to be sure, record steps with a schedule (ProfilerStep)"
        )
    if devices > 1:
        doubts.append(f"the profile holds {devices} devices; shown is the slowest")
    if layers == 1:
        doubts.append("no repeating layers were found: what lies between embedding and final norm is taken as one")
    return doubts
