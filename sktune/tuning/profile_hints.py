"""What a profile of the baseline tells a search before its first trial: what to try first, and on which operators."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sktune.backends import backend_info
from sktune.core.errors import ProfileError
from sktune.core.layout import OUTSIDE, Layout, Unit
from sktune.core.plan import Option
from sktune.core.space import JOIN, NEW, SpaceSpec, StartingPoint
from sktune.profiling.analysis import Profile, analyse
from sktune.profiling.readers.reading import read_profile
from sktune.targets import TargetSpec

HOT_TYPES = 2
"""Operator types that options which take some are tried on."""


@lru_cache(maxsize=1)
def _analysed(path: Path) -> Profile:
    return analyse(read_profile(path))


def check(path: Path, backend: str) -> None:
    """Raise ``ProfileError`` unless the file at ``path`` is a profile, of an NPU where a simulation starts from it."""
    source = _analysed(path).source
    if "profile" in backend_info(backend).settings and source in ("gpu_trace", "cpu_trace"):
        raise ProfileError(f"{path} is a {source.replace('_', ' ')}; the simulation needs a profile of an NPU")


def ordered(points: Sequence[StartingPoint], path: Path) -> tuple[StartingPoint, ...]:
    """Return the starting points, those that cover the most of what scopes can save first.

    Raises:
        ProfileError: the file at ``path`` is no profile.
    """
    promise = _potential_ms(_analysed(path))

    def covered_ms(point: StartingPoint) -> float:
        return sum(promise.get(name, 0.0) for name, value in point.values.items() if value in (NEW, JOIN))

    return tuple(sorted(points, key=covered_ms, reverse=True))


def _potential_ms(profile: Profile) -> dict[str, float]:
    """Return what a scope over a unit can save, by the parameters of a layer kind and by those of single layers."""
    of_kinds = {unit.parameter: unit.potential_ms for unit in profile.units}
    of_layers = {
        f"layers.{layer}.{unit.unit}": unit.potential_ms / unit.layers
        for layer, kind in enumerate(profile.layer_kinds)
        for unit in profile.units
        if unit.kind == kind
    }
    return of_kinds | of_layers


def with_time_shares(layout: Layout, path: Path) -> Layout:
    """Return the layout with each unit's share of the profiled step; 0 for units that a profile cannot tell.

    Raises:
        ProfileError: the file at ``path`` is no profile.
    """
    profile = _analysed(path)
    share = {
        (figures.kind, figures.unit): (figures.busy_ms + figures.gap_ms) / figures.layers / profile.median.step_ms
        for figures in profile.units
    }

    def kind(unit: Unit) -> str:
        return OUTSIDE if unit.layer is None else layout.layers[unit.layer].kind

    return layout.with_time_shares({unit.name: share.get((kind(unit), unit.key), 0.0) for unit in layout.units})


def with_hot_types(space: SpaceSpec, path: Path, spec: TargetSpec) -> SpaceSpec:
    """Return the space with ``BackendInfo.hot_type_options`` on the types that take most of the step.

    Raises:
        ProfileError: the file at ``path`` is no profile.
    """
    info = backend_info(spec.backend)
    if not info.hot_type_options:
        return space
    profile = _analysed(path)
    kernels = profile.kernels[~profile.kernels["is_communication"] & ~profile.kernels["is_superkernel"]]
    hot = [row.type for row in profile.top if row.type in set(kernels["type"])][:HOT_TYPES]
    of_backend = space.options.get(info.name, {})
    given = of_backend.get(spec.device, {})
    lists: dict[str, list[Option]] = {name: ["", *hot] for name in info.hot_type_options if hot and name not in given}
    options = {**space.options, info.name: {**of_backend, spec.device: {**given, **lists}}}
    return space.model_copy(update={"options": options})


def figures(path: Path) -> dict[str, Any]:
    """Return what the profile says of its steps, as plain values.

    Raises:
        ProfileError: the file at ``path`` is no profile.
    """
    return _analysed(path).summary()
