"""Hints that a profile of the baseline gives a search: what to try first, and the operator types for options."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sktune.backends import backend_info
from sktune.core.errors import ProfileError
from sktune.core.events.values import ProfileFigures
from sktune.core.layout import OUTSIDE, Kernel, Layout, Unit
from sktune.core.plan import Option
from sktune.core.space import JOIN, NEW, SpaceSpec, StartingPoint
from sktune.profiling.analysis import Profile, analyse
from sktune.profiling.readers.reading import read_profile
from sktune.targets import TargetSpec

HOT_TYPES = 2
"""Number of operator types to try for options that take operator types."""
HEAD_US, LEAST_BUSY_US = 1.77, 0.05
"""Of a task's duration in a profile, what starting and ending its blocks takes: the simulator's, for half of the vector
cores; and the least that is left."""


@lru_cache(maxsize=1)
def _analysed(path: Path) -> Profile:
    return analyse(read_profile(path))


def check(path: Path, backend: str) -> None:
    """Raise ``ProfileError`` unless the file at ``path`` is a profile to rely on; a simulation needs an NPU's."""
    source = _analysed(path).certain(path).source
    if "profile" in backend_info(backend).settings and source in ("gpu_trace", "cpu_trace"):
        raise ProfileError(f"{path} is a {source.replace('_', ' ')}; the simulation needs a profile of an NPU")


def ordered(points: Sequence[StartingPoint], path: Path) -> tuple[StartingPoint, ...]:
    """Return the starting points, those with the largest potential saving first.

    Raises:
        ProfileError: the file at ``path`` is not a profile.
    """
    profile = _analysed(path)
    # What a scope over a unit can save, by parameter: of layer kinds and of single layers.
    potential_ms = {unit.parameter: unit.potential_ms for unit in profile.units} | {
        f"layers.{layer}.{unit.unit}": unit.potential_ms / unit.layers
        for layer, kind in enumerate(profile.layer_kinds)
        for unit in profile.units
        if unit.kind == kind
    }

    def covered_ms(point: StartingPoint) -> float:
        return sum(potential_ms.get(name, 0.0) for name, value in point.values.items() if value in (NEW, JOIN))

    return tuple(sorted(points, key=covered_ms, reverse=True))


def with_time_shares(layout: Layout, path: Path) -> Layout:
    """Return the layout with each unit's share of the profiled step; 0 for units that the profile does not identify.

    Raises:
        ProfileError: the file at ``path`` is not a profile.
    """
    profile = _analysed(path)
    share = {
        (figures.kind, figures.unit): (figures.busy_ms + figures.gap_ms) / figures.layers / profile.median.step_ms
        for figures in profile.units
    }

    def kind(unit: Unit) -> str:
        return OUTSIDE if unit.layer is None else layout.layers[unit.layer].kind

    return layout.with_time_shares({unit.name: share.get((kind(unit), unit.key), 0.0) for unit in layout.units})


def with_operator_times(layout: Layout, path: Path) -> Layout:
    """Return the layout whose operators of unknown times have those of their types in the profile: the median duration,
    less the head of a task.

    Raises:
        ProfileError: the file at ``path`` is not a profile.
    """
    kernels = _analysed(path).kernels
    alone = kernels[~kernels["is_communication"] & ~kernels["is_superkernel"]]
    median_us = {str(kind): float(us) for kind, us in alone.groupby("type")["duration_us"].median().items()}

    def timed(kernel: Kernel) -> Kernel:
        if kernel.busy_us or kernel.type not in median_us:
            return kernel
        return replace(kernel, busy_us=max(LEAST_BUSY_US, round(median_us[kernel.type] - HEAD_US, 3)))

    units = (
        replace(unit, kernels=tuple(map(timed, unit.kernels)), between=tuple(map(timed, unit.between)))
        for unit in layout.units
    )
    return replace(layout, units=tuple(units))


def with_hot_types(space: SpaceSpec, path: Path, spec: TargetSpec) -> SpaceSpec:
    """Return the space with ``BackendInfo.hot_type_options`` for the operator types that take most of the step.

    Raises:
        ProfileError: the file at ``path`` is not a profile.
    """
    info = backend_info(spec.backend)
    if not info.hot_type_options:
        return space
    profile = _analysed(path)
    kernels = profile.kernels[~profile.kernels["is_communication"] & ~profile.kernels["is_superkernel"]]
    hot = [row.type for row in profile.top if row.type in set(kernels["type"])][:HOT_TYPES]
    of_backend = space.options.get(info.name, {})
    listed = of_backend.get(spec.device, {})
    added: dict[str, list[Option]] = {name: ["", *hot] for name in info.hot_type_options if hot and name not in listed}
    options = {**space.options, info.name: {**of_backend, spec.device: {**listed, **added}}}
    return space.model_copy(update={"options": options})


def figures(path: Path) -> ProfileFigures:
    """Return the figures of the profile that are told.

    Raises:
        ProfileError: the file at ``path`` is not a profile.
    """
    return _analysed(path).figures
