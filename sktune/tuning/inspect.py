"""Inspection: what there is to tune in a model, without compiling anything."""

from dataclasses import dataclass

import torch

from sktune.backends import backend_info
from sktune.core.codec import encoded
from sktune.core.events.commands import Inspected
from sktune.core.layout import Layout, UnitShown
from sktune.core.space import SearchSpace
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import Request, bind_space, space_spec


@dataclass(frozen=True)
class Inspection:
    """A model's layout and space."""

    description: str
    layout: Layout
    space: SearchSpace
    is_simulated: bool = False
    """Whether the units' time shares are those of a simulated step."""

    @property
    def event(self) -> Inspected:
        """The event that tells it."""
        return Inspected(
            description=self.description,
            units=[encoded(unit, UnitShown) for unit in self.layout.units],
            layers=self.layout.layers,
            kinds=self.layout.kinds,
            plans=self.space.size,
            parameters=self.space.choices,
            starting_points={point.name: point.values for point in self.space.starting_points},
        )


def inspect_model(request: Request) -> Inspection:
    """Load the model of ``request``, trace it, and bind its space.

    Raises:
        SktuneError: as a search would.
    """
    spec, preset = request.target()
    space = space_spec(request, spec, preset)
    info = backend_info(spec.backend)
    with torch.no_grad():
        target = load(spec, takes_torchair=info.takes_torchair(spec.device))
        layout = trace_layout(target, space)
        description = target.description or spec.name
        if not info.is_simulated:
            return Inspection(description, layout, bind_space(space, layout, spec))
        simulation = info.load()(target, layout, decode_inputs(target, 0, 1)[0], **info.settings_of(spec))
    layout = layout.with_time_shares(simulation.time_shares())
    return Inspection(f"{description}; {simulation.notes}", layout, bind_space(space, layout, spec), is_simulated=True)
