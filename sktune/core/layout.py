"""Layouts: all units of a decode step in execution order, grouped into layers and layer kinds.

``sktune.targets.tracing`` builds one from an eager step; this module only has the values, without torch.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from sktune.core.codec import LEFT_OUT_IF_EMPTY, AsList, decoded
from sktune.core.errors import PlanError, nearest
from sktune.core.plan import Plan

OUTSIDE = "step"
"""The group of units outside of decoder layers: embedding, final norm, head."""


KernelCore = Literal["cube", "vector", "mix", "other"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A device task of the unfused step, as far as it matters to what fusion saves.

    Attributes:
        type: GE's operator type.
        core: the cores that it runs on; "other" for AI CPU and collectives of their own.
        can_fuse: whether the compiler is expected to put it into a SuperKernel.
        stream: the name that the model's code gives its stream; empty for the step's own.
        after: how many kernels back those of other streams are that it must come after.
        follows_view: whether the step has several streams, and a view between this kernel and the one before.
        busy_us: how long it runs, without gap and head; 0 if that is not known.
    """

    type: str
    core: KernelCore
    can_fuse: bool = True
    stream: str = ""
    after: tuple[int, ...] = ()
    follows_view: bool = False
    busy_us: float = 0.0


StoredKernel = Annotated[Kernel, AsList()]


@dataclass(frozen=True, slots=True)
class CapturedWork:
    """Operators of a captured graph: their number, and the bytes that they write."""

    operators: int = 0
    written_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.operators or self.written_bytes)


@dataclass(frozen=True, slots=True)
class UnitShown:
    """A unit of the decode step.

    Attributes:
        name: in the model.
        key: the same for this unit in all layers of its kind.
        layer: index of its layer; null outside of layers.
        time_share: of the step, from 0 to 1.
        place: the stream or core limit that the model's own code gives it.
    """

    name: str
    key: str
    layer: Annotated[int, ("minimum", 0)] | None = None
    time_share: Annotated[float, ("minimum", 0), ("maximum", 1)] = 0.0
    place: str = ""


@dataclass(frozen=True, slots=True)
class Unit(UnitShown):
    """A module whose ``forward`` ran once in the traced step.

    Its name is the module's path below the target's module, e.g. ``model.layers.0.self_attn``, and its key the name
    inside its layer, e.g. ``self_attn``, or outside of layers the last part of the path. All units of a scope have the
    same place.

    Attributes:
        kernels: its device tasks, in execution order; empty if they are not known.
        between: the device tasks between it and the next unit: a scope over both holds them, too.
        work, work_between: its operators, and those between it and the next unit, where the compiler is Inductor: what
            becomes of them is not known before it compiles.
    """

    kernels: Annotated[tuple[StoredKernel, ...], LEFT_OUT_IF_EMPTY] = ()
    between: Annotated[tuple[StoredKernel, ...], LEFT_OUT_IF_EMPTY] = ()
    work: Annotated[CapturedWork, LEFT_OUT_IF_EMPTY] = CapturedWork()
    work_between: Annotated[CapturedWork, LEFT_OUT_IF_EMPTY] = CapturedWork()


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer.

    Attributes:
        name: in the model.
        kind: the same for layers of the same structure.
    """

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Units in execution order, and the layers that they belong to."""

    units: tuple[Unit, ...]
    layers: tuple[Layer, ...]

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Layer kinds in order of appearance, each with the keys of its units."""
        kinds: dict[str, tuple[str, ...]] = {}
        for index, layer in enumerate(self.layers):
            if layer.kind not in kinds:
                kinds[layer.kind] = tuple(unit.key for unit in self.units if unit.layer == index)
        return kinds

    @property
    def digest(self) -> str:
        """Digest of the structure; time shares and kernels are not part of it."""
        text = repr([(unit.name, unit.key, unit.layer) for unit in self.units] + list(self.layers))
        if places := [unit.place for unit in self.units if unit.place]:
            text += repr(places)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_time_shares(self, shares: Mapping[str, float]) -> "Layout":
        """Return the layout with new time shares, 0 to 1, by unit name."""
        return replace(self, units=tuple(replace(unit, time_share=shares.get(unit.name, 0.0)) for unit in self.units))

    def with_kernels(self, kernels: Iterable[tuple[str | None, Kernel]]) -> "Layout":
        """Return the layout with the kernels of its units.

        Args:
            kernels: of the unfused step in execution order, each with its unit's name; those of no unit follow the unit
                before them.
        """
        inside: dict[str, list[Kernel]] = {unit.name: [] for unit in self.units}
        between: dict[str, list[Kernel]] = {unit.name: [] for unit in self.units}
        current = ""
        for name, kernel in kernels:
            if name in inside:
                current = str(name)
                inside[current] += [*between[current], kernel]
                between[current] = []
            elif current:
                between[current].append(kernel)
        units = (
            replace(unit, kernels=tuple(inside[unit.name]), between=tuple(between[unit.name])) for unit in self.units
        )
        return replace(self, units=tuple(units))

    def with_work(self, inside: Mapping[str, CapturedWork], between: Mapping[str, CapturedWork]) -> "Layout":
        """Return the layout with the captured operators of each unit, and those that follow it, by its name."""
        none = CapturedWork()
        units = (
            replace(unit, work=inside.get(unit.name, none), work_between=between.get(unit.name, none))
            for unit in self.units
        )
        return replace(self, units=tuple(units))

    def check(self, plan: Plan) -> None:
        """Raise ``PlanError`` unless the plan's scopes are disjoint runs of these units, in execution order."""
        position = {unit.name: index for index, unit in enumerate(self.units)}
        end = -1
        for scope in plan.scopes:
            for name in (scope.first, scope.last):
                if name not in position:
                    raise PlanError(f"the model has no unit {name!r}{nearest(name, position)}")
            first, last = position[scope.first], position[scope.last]
            if first > last:
                raise PlanError(f"scope {scope.label!r} runs backwards; name the earlier unit first")
            if first <= end:
                raise PlanError(
                    f"scope {scope.label!r} overlaps the scope before it; "
                    f"start it after {self.units[end].name!r}, and list scopes in execution order"
                )
            places = {unit.place for unit in self.units[first : last + 1]}
            if len(places) > 1:
                raise PlanError(
                    f"scope {scope.label!r} spans a change of stream or cores ({' to '.join(sorted(places))}); "
                    "end it before that"
                )
            end = last

    @model_serializer(mode="wrap")
    def _stored(self, encode: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return plain values; equal lists of kernels, as of alike layers, are stored once."""
        values: dict[str, Any] = encode(self)
        places: dict[tuple[Kernel, ...], int] = {}
        lists: list[Any] = []
        for unit, stored in zip(self.units, values["units"], strict=True):
            for name in ("kernels", "between"):
                if kernels := getattr(unit, name):
                    if kernels not in places:
                        places[kernels] = len(lists)
                        lists.append(stored[name])
                    stored[name] = places[kernels]
        return values | ({"kernels": lists} if lists else {})

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """Give the units their kernels."""
        if not isinstance(values, dict) or "kernels" not in values:
            return values
        lists = dict(enumerate(decoded(list[tuple[StoredKernel, ...]], values["kernels"])))
        # A place that is damaged stays as it is: it is no list of kernels.
        units = [unit | {name: lists.get(place, place) for name in ("kernels", "between") if (place := unit.get(name))
                         is not None} for unit in decoded(list[dict[str, Any]], values.get("units"))]  # fmt: skip
        return values | {"units": units}
