"""What is known of units' operators from the captured graph, before anything is compiled."""

from collections.abc import Sequence

import torch
from torch import fx

from sktune.core.layout import CapturedWork, Layout
from sktune.program.sktune_program.inductor.regions import MarkedGraph, operators


def captured_work(marked: MarkedGraph, layout: Layout) -> Layout:
    """Return the layout with the captured operators of each unit, and of those that lie between it and the next one."""
    nodes = operators(marked.graph_module)
    spans = [marked.spans[unit.name] for unit in layout.units if unit.name in marked.spans]
    starts = [*(span.start for span in spans[1:]), spans[-1].end] if spans else []
    return layout.with_work(
        {span.label: _work(nodes[span.start : span.end]) for span in spans},
        {span.label: _work(nodes[span.end : start]) for span, start in zip(spans, starts, strict=True)},
    )


def _work(nodes: Sequence[fx.Node]) -> CapturedWork:
    values = [value for node in nodes if isinstance(value := node.meta.get("example_value"), torch.Tensor)]
    # A size that depends on the data counts as nothing.
    sizes = [value.numel() * value.element_size() for value in values if isinstance(value.numel(), int)]
    return CapturedWork(len(nodes), sum(sizes))
