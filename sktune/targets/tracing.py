"""Tracing: runs eager decode steps to find which modules run, in which order, and how long each takes.

``sktune_program.calls`` records the modules, ``units`` chooses those that are units.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from sktune.core.errors import TargetError
from sktune.core.layout import Layout
from sktune.core.space import SpaceSpec
from sktune.measure.devices import device_of
from sktune.program.sktune_program.calls import record_calls, shapes_of_calls
from sktune.program.sktune_program.module_times import StepTimes, time_modules
from sktune.program.sktune_program.module_tree import describe
from sktune.program.sktune_program.torch_private import tree_leaves
from sktune.targets.base import Snapshot, Target, decode_inputs
from sktune.targets.module_tree import ModuleTree
from sktune.targets.units import layout_of

TIMED_STEPS = 9
TIMED_S = 2.0
"""No further step is timed after this many seconds: of a large model, one or two are."""


def trace_layout(target: Target, spec: SpaceSpec) -> Layout:
    """Run decode steps of ``target`` eagerly and return its layout. The state is restored.

    Raises:
        TargetError: the prefill or the decode step fails; the step runs no module of the tree, or returns no tensor.
        SpaceError: ``spec`` names units that did not run.
    """
    return trace(target, spec)[0]


def trace(target: Target, spec: SpaceSpec) -> tuple[Layout, dict[str, str]]:
    """Return the layout, and the types and shapes with which a step calls the first unit of each type, by its name.

    By these a program's step is recognised as one of a shape. Otherwise as ``trace_layout``.
    """
    inputs = decode_inputs(target, 0, 1)[0]
    snapshot = Snapshot(target.state)
    names = {name: name for name, _ in target.module.named_modules()}
    with torch.no_grad(), shapes_of_calls(target.module, names) as shapes:
        output, calls = record_calls(target.module, partial(target.decode_step, *inputs))
    snapshot.restore()
    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output)):
        returned = type(output).__name__
        raise TargetError(f"the decode step returns no tensor to compare ({returned}); have it return the logits")
    layout = layout_of(ModuleTree(describe(target.module)), calls, spec)
    first: dict[tuple[str, str], str] = {}
    for unit in layout.units:
        first.setdefault(("" if unit.layer is None else layout.layers[unit.layer].kind, unit.key), unit.name)
    layout = layout.with_time_shares(_time_shares(target, inputs, snapshot, [unit.name for unit in layout.units]))
    return layout, {name: shapes[name] for name in first.values()}


def _time_shares(target: Target, inputs: Sequence[Any], snapshot: Snapshot, names: Sequence[str]) -> dict[str, float]:
    """Return each unit's share of the eager step's time, which has run once before; 0 on the meta device."""
    if any(parameter.is_meta for parameter in target.module.parameters()):
        return dict.fromkeys(names, 0.0)
    clock = device_of([*target.module.parameters(), *target.state.values()]).now_s
    steps: list[StepTimes] = []
    began_s = clock()
    with torch.no_grad():
        while not steps or (len(steps) < TIMED_STEPS and clock() - began_s < TIMED_S):
            snapshot.restore()
            steps.append(time_modules(target.module, names, partial(target.decode_step, *inputs), clock)[1])
    snapshot.restore()
    return time_shares(steps, names)


def time_shares(steps: Sequence[StepTimes], names: Sequence[str]) -> dict[str, float]:
    """Return the share of a warm, undisturbed step, 0 to 1, of modules that do not overlap.

    It is made of the least time of each module and of the rest: first calls and other load only add to a time, and
    other load can hit every step, each time elsewhere.
    """
    least_s = {
        name: min((step.modules_s[name] for step in steps if name in step.modules_s), default=0.0) for name in names
    }
    rest_s = min(step.total_s - sum(step.modules_s.get(name, 0.0) for name in names) for step in steps)
    total_s = sum(least_s.values()) + max(rest_s, 0.0)
    return {name: spent_s / total_s if total_s else 0.0 for name, spent_s in least_s.items()}
