"""The condition that a layer's number is one of a block's layers, as short as it can be said."""

from collections.abc import Sequence

from sktune.source.placement import Block

MAX_PERIOD = 8
"""Layers after which a pattern repeats, as one full attention after three linear ones."""
MAX_LISTED = 6
"""Numbers that are listed rather than described by their pattern."""


def of_layers(block: Block, n_layers: int, index: str) -> str:
    """Return the condition on ``index``; empty if it always holds, or a branch around the block already says it."""
    layers = block.layers
    if not layers or block.is_whole:
        return ""
    first, last = layers[0], layers[-1]
    if len(layers) < last - first + 1:
        periodic = _periodic(layers, n_layers, index) if len(layers) > MAX_LISTED else ""
        return periodic or f"{index} in ({', '.join(map(str, layers))})"
    if first == last:
        return f"{index} == {first}"
    if first == 0:
        return f"{index} <= {last}"
    return f"{index} >= {first}" if last == n_layers - 1 else f"{first} <= {index} <= {last}"


def _periodic(layers: Sequence[int], n_layers: int, index: str) -> str:
    """Return the condition of layers that repeat with a period from the first of them on; empty if they do not."""
    wanted = set(layers)
    for first in sorted({0, layers[0]}):
        for period in range(2, MAX_PERIOD + 1):
            rests = {layer % period for layer in wanted}
            if {layer for layer in range(first, n_layers) if layer % period in rests} != wanted:
                continue
            if len(rests) == period - 1:
                pattern = f"{index} % {period} != {min(set(range(period)) - rests)}"
            elif len(rests) == 1:
                pattern = f"{index} % {period} == {min(rests)}"
            else:
                pattern = f"{index} % {period} in ({', '.join(map(str, sorted(rests)))})"
            bounded = any(layer % period in rests for layer in range(first))
            return f"{index} >= {first} and {pattern}" if bounded else pattern
    return ""
