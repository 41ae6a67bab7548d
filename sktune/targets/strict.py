"""Strict plans: the verified code of every scope runs, or an error says which does not.

A scope can miss its code in three ways, and each is noticed where it shows: the compiled graph lacks it
(``check_graph``); another backend has compiled it, so that its mark is still in the graph, and raises when it runs
(``sktune_program.inductor.marks``); or nothing has compiled it. The last is a call of its first unit outside of any
compilation, with the shapes of a decode step. A prefill has others, and is left alone.
"""

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from sktune.core.errors import PlanError
from sktune.program.sktune_program.calls import described_call
from sktune.targets.marks import MarkedModel

_active: "weakref.WeakSet[StrictPlan]" = weakref.WeakSet()


class StrictPlan:
    """Watches the scopes of one strict plan on a model.

    Args:
        marks: of the plan on the model.
        calls: the shapes and types of that module's call in a decode step, by label; see ``sktune_program.calls``.
        before: what each label has before the scope's own.
    """

    def __init__(self, marks: MarkedModel, calls: Mapping[str, str], before: str = "") -> None:
        self.before = before
        self.labels = frozenset(marks.first_units)
        self.is_compiled = False
        for label, module in marks.first_units.items():
            marks.watch(module, self._refusing(label, calls.get(label, "")))
        _active.add(self)

    def _refusing(self, label: str, call: str) -> Callable[[nn.Module, Any, Any], None]:
        def refuse(module: nn.Module, arguments: Any, keywords: Any) -> None:  # noqa: ARG001
            if torch.compiler.is_compiling():
                return
            if call and self in _active and described_call(arguments, keywords) == call:
                raise PlanError(
                    f"scope {label.removeprefix(self.before)} runs uncompiled, not the code that was verified; compile "
                    "the decode step with torch.compile(step, backend='sktune', fullgraph=True, dynamic=False)"
                )

        return refuse


def check_graph(labels: Collection[str], calls: Collection[str] = ()) -> None:
    """Compare the scopes of a graph that is being compiled with those of the strict plans in this process.

    A graph with ``calls`` that are noted is that of one shape of several, whose plan may be the baseline.

    Raises:
        PlanError: the graph lacks scopes of a plan.
    """
    plans = [plan for plan in _active if not plan.is_compiled]
    for plan in plans:
        missing = plan.labels.difference(labels)
        if missing and (len(missing) < len(plan.labels) or not (labels or calls)):
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise PlanError(
                f"the compiled step does not contain scope {min(missing).removeprefix(plan.before)}{more}; compile "
                "the step of the model that the plan was applied to, as one graph (fullgraph=True), or omit strict"
            )
        plan.is_compiled = not missing
