"""Terminal output of ``inspect``: what a model has to tune."""

import re
from collections.abc import Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sktune.core.layout import Unit
from sktune.core.plan import Option
from sktune.core.printable import counted
from sktune.core.space import SearchSpace


def inspection_view(description: str, space: SearchSpace, is_simulated: bool) -> RenderableType:
    """Return what there is to tune: a block for each layer kind, the rest of the step, parameters, starting points.

    Args:
        description: the target in one line.
        space: bound to the layout to show.
        is_simulated: whether the units' time shares are those of a simulated step.
    """
    layout = space.layout
    step = "simulated step" if is_simulated else "eager step"
    parts: list[RenderableType] = [Text(description, style="bold")]
    for kind in layout.kinds:
        layers = [index for index, layer in enumerate(layout.layers) if layer.kind == kind]
        units = [unit for unit in layout.units if unit.layer in layers]
        ends = dict.fromkeys(layout.layers[index].name for index in (layers[0], layers[-1]))
        title = f"layer kind {kind}: {counted(len(layers), 'layer')} ({' to '.join(ends)})"
        parts.append(_layer_table(title, units, step))
    if outside := [unit for unit in layout.units if unit.layer is None]:
        table = Table("unit", f"share of the {step}", title="outside of layers", title_justify="left")
        for unit in outside:
            table.add_row(Text(unit.name), f"{unit.time_share:6.1%}")
        parts.append(table)
    parts.append(_parameter_table(space))
    parts.append(Text(f"{counted(space.size, 'plan')}, {counted(len(space.choices), 'parameter')}"))
    for point in space.starting_points:
        scopes = len(space.plan(point.values).scopes)
        parts.append(Text(f"starting point: {point.name} ({counted(scopes, 'scope')})"))
    return Group(*parts)


def _layer_table(title: str, units: Sequence[Unit], step: str) -> Table:
    """Return one layer's units; ``units`` are those of all layers of the kind."""
    table = Table("unit of one layer", f"share of the {step}, median layer", "all layers", title=escape(title))
    table.title_justify = "left"
    for key in dict.fromkeys(unit.key for unit in units):
        shares = [unit.time_share for unit in units if unit.key == key]
        table.add_row(Text(key), f"{median(shares):6.1%}", f"{sum(shares):6.1%}")
    return table


def _parameter_table(space: SearchSpace) -> Table:
    """Return parameters and values; ``layers.N`` stands for all layers if each has its own parameters."""
    rows = {re.sub(r"^layers\.\d+\.", "layers.N.", name): choices for name, choices in space.choices.items()}
    table = Table("parameter", "values", title="parameters", title_justify="left")
    for name, choices in rows.items():
        table.add_row(Text(name), Text(", ".join(_as_in_yaml(value) for value in choices)))
    return table


def _as_in_yaml(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "not given"
