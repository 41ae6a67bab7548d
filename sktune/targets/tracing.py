"""Tracing: runs eager decode steps to find which modules run, in which order, and how long each takes.

``calls`` records the modules, ``units`` chooses those that are units.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sktune.core.errors import TargetError
from sktune.core.layout import Layout
from sktune.core.space import SpaceSpec
from sktune.measure.devices import device_of
from sktune.targets.base import Snapshot, Target, decode_inputs
from sktune.targets.calls import record_calls
from sktune.targets.units import layout_of

TIMED_STEPS = 9


def trace_layout(target: Target, spec: SpaceSpec) -> Layout:
    """Run decode steps of ``target`` eagerly and return its layout. The state is restored.

    Raises:
        TargetError: the prefill or the decode step fails; the step runs no module of the tree, or returns no tensor.
        SpaceError: ``spec`` names units that did not run.
    """
    inputs = decode_inputs(target, 0, 1)[0]
    snapshot = Snapshot(target.state)
    with torch.no_grad():
        output, calls = record_calls(target.module, partial(target.decode_step, *inputs))
    snapshot.restore()
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(output)):
        returned = type(output).__name__
        raise TargetError(f"the decode step returns no tensor to compare ({returned}); have it return the logits")
    layout = layout_of(target.module, calls, spec)
    return layout.with_time_shares(_time_shares(target, inputs, snapshot, [unit.name for unit in layout.units]))


def _time_shares(target: Target, inputs: Sequence[Any], snapshot: Snapshot, names: Sequence[str]) -> dict[str, float]:
    """Return each unit's median share of the eager step's time over ``TIMED_STEPS`` steps; 0 on the meta device."""
    if any(parameter.is_meta for parameter in target.module.parameters()):
        return dict.fromkeys(names, 0.0)
    clock = device_of([*target.module.parameters(), *target.state.values()]).now_s
    rounds = []
    with torch.no_grad():
        for _ in range(TIMED_STEPS):
            snapshot.restore()
            rounds.append(time_units(target.module, names, partial(target.decode_step, *inputs), clock)[1])
    snapshot.restore()
    return median_shares(rounds)


def time_units(
    module: nn.Module, names: Sequence[str], step: Callable[[], Any], clock: Callable[[], float]
) -> tuple[Any, dict[str, float]]:
    """Run ``step`` once, eagerly; return its output and each named module's share of its time, 0 to 1."""
    modules = dict(module.named_modules())
    began: dict[str, float] = {}
    spent: dict[str, float] = {}
    handles = []
    for name in names:

        def begin(_module: nn.Module, _arguments: Any, name: str = name) -> None:
            began[name] = clock()

        def end(_module: nn.Module, _arguments: Any, _output: Any, name: str = name) -> None:
            spent[name] = clock() - began[name]

        handles += [modules[name].register_forward_pre_hook(begin), modules[name].register_forward_hook(end)]
    try:
        start = clock()
        output = step()
        total = clock() - start
    finally:
        for handle in handles:
            handle.remove()
    return output, {name: part / total for name, part in spent.items()}


def median_shares(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median share of each unit over several steps."""
    return {name: median(shares.get(name, 0.0) for shares in rounds) for name in rounds[0]}
