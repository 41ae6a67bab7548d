"""Plans of several shapes on one model: a compiled step gets the scopes of the plan for its own shape.

The marks of all plans are on the model, each label with the number of its shape before it, and notes of how units are
called. Of a captured graph, the notes tell the shape, and only the marks of that shape's plan are kept.
"""

import logging
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from torch import nn

from sktune.core.delivery import ExpectedCode
from sktune.core.errors import PlanError
from sktune.core.plan import Plan
from sktune.core.plan_file import PlanFile
from sktune.program.sktune_program.inductor.marks import InductorScope, note_call
from sktune.program.sktune_program.inductor.regions import MarkedGraph
from sktune.program.sktune_program.marks import attach, fit_names
from sktune.program.sktune_program.torch_private import allow_graphs
from sktune.targets.marks import MarkedModel
from sktune.targets.strict import StrictPlan

logger = logging.getLogger(__name__)

BETWEEN = "|"
"""In a label: between the number of the model, that of the plan, and the scope's own label."""
_SYMBOL = re.compile(r"\[[^\]]*[A-Za-z]")
"""In the description of a call: a size that ``torch.compile`` has left open, such as the first one of ``[s0, 8]``."""
_numbers = count()
_applied: "weakref.WeakValueDictionary[str, ShapedPlans]" = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class ShapedPlan:
    """The plan of a shape.

    Attributes:
        name: of the shape.
        plan: to use there.
        calls: types and shapes with which a step of this shape calls units, by name.
        scope_calls: the same of the first unit of each scope, by label, for strict plans.
        code: that the scopes should compile to, by label.
    """

    name: str
    plan: Plan
    calls: Mapping[str, str]
    scope_calls: Mapping[str, str]
    code: Mapping[str, ExpectedCode]


class ShapedPlans(MarkedModel):
    """The marks of the plans of several shapes on a module; ``detach`` removes them.

    Args:
        module: the model.
        file: a plan file with shapes.
        code: the verified code of each shape's plan, in their order.
        strict: refuse what was not verified.

    Raises:
        PlanError: the file or a plan does not fit the module.
    """

    def __init__(
        self, module: nn.Module, file: PlanFile, code: Sequence[Mapping[str, ExpectedCode]], *, strict: bool
    ) -> None:
        super().__init__()
        self._number, self._strict = str(next(_numbers)), strict
        self._plans = [
            ShapedPlan(name, alone.to_plan(), entry.calls, alone.artifacts.calls if alone.artifacts else {}, delivered)
            for entry, (name, alone), delivered in zip(file.shapes, file.alone, code, strict=True)
        ]
        if not strict:  # a step that belongs to several shapes is compiled to the code of one of them
            self._plans = [replace(shaped, code=self._code_of(shaped)) for shaped in self._plans]
        self._single = len(self._plans)
        for number, shaped in enumerate([*self._plans, ShapedPlan("", file.to_plan(), {}, {}, {})]):
            self._attach(module, number, shaped)
        modules = dict(module.named_modules())
        units = [name for shaped in self._plans for scope in shaped.plan.scopes for name in (scope.first, scope.last)]
        called = list(dict.fromkeys(name for shaped in self._plans for name in shaped.calls))
        paths = fit_names(units or called, modules, called)
        for name in called:
            if name in paths:
                self.watch(modules[paths[name]], self._noting(f"{self._label_of_all}{name}"))
        allow_graphs(len(self._plans))
        _applied[self._number] = self

    def _code_of(self, shaped: ShapedPlan) -> Mapping[str, ExpectedCode]:
        """Return the code of a plan; none if a shape that a step does not tell from this one has other code."""
        alike = [each for each in self._plans if (each.plan, each.calls) == (shaped.plan, shaped.calls)]
        return shaped.code if all(each.code == shaped.code for each in alike) else {}

    def _attach(self, module: nn.Module, number: int, shaped: ShapedPlan) -> None:
        marks = attach(
            module,
            shaped.plan.marked,
            lambda label, options: InductorScope(self._label(number, label), options, shaped.code.get(label)),
        )
        marks.first_units = {self._label(number, label): unit for label, unit in marks.first_units.items()}
        if self._strict and number != self._single and shaped.plan.scopes:
            calls = {self._label(number, label): call for label, call in shaped.scope_calls.items()}
            StrictPlan(marks, calls, self._label(number, ""))
        self.absorb(marks)

    def _label(self, number: int, label: str) -> str:
        return BETWEEN.join((self._number, str(number), label))

    def chosen(self, calls: Mapping[str, str]) -> int:
        """Return the number of the plan for a step that makes such calls; after the last one that of the single plan.

        Raises:
            PlanError: no plan was verified at this shape, or it is not clear which, and the plans are strict.
        """
        fitting = [
            number
            for number, shaped in enumerate(self._plans)
            if any(name in calls for name in shaped.calls)
            and all(calls[name] == call for name, call in shaped.calls.items() if name in calls)
        ]
        plans = [self._plans[number] for number in fitting]
        if len({shaped.plan for shaped in plans}) == 1 and all(shaped.code == plans[0].code for shaped in plans):
            return fitting[0]
        names = [shaped.name for shaped in self._plans]
        problem = f"a step is compiled at a shape at which no plan was verified (verified: {', '.join(names)})"
        fix = "search with this shape, too"
        if any(_SYMBOL.search(call) for call in calls.values()):
            problem = "a step is compiled for sizes that may change, and plans were verified for fixed ones"
            fix = "compile it with dynamic=False"
        elif fitting:
            alike = " and ".join(shaped.name for shaped in plans)
            differ = "plans" if len({shaped.plan for shaped in plans}) > 1 else "code of their plan"
            problem = f"the compiled step does not tell {alike} apart, and the {differ} differs"
            fix = "name one with shape="
        if self._strict:
            raise PlanError(f"{problem}; {fix}, or leave out strict")
        logger.warning("%s; the single plan for all shapes is used; %s", problem, fix)
        return self._single

    def of_shape(self, marked: MarkedGraph, calls: Mapping[str, str]) -> MarkedGraph:
        """Return a captured graph with the scopes of its shape's plan alone, under their own labels."""
        before = self._label(self.chosen(calls), "")
        kept = {label: span for label, span in marked.spans.items() if not label.startswith(self._label_of_all)}
        kept |= {
            label.removeprefix(before): replace(span, label=label.removeprefix(before))
            for label, span in marked.spans.items()
            if label.startswith(before)
        }
        return replace(marked, spans=kept)

    def _noting(self, unit: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, arguments: Any, keywords: Any, owner: ShapedPlans = self) -> None:  # noqa: ARG001
            """Note a call; their ``owner`` keeps the plans as long as the model lives."""
            note_call(unit, arguments, keywords)

        return note

    @property
    def _label_of_all(self) -> str:
        return f"{self._number}{BETWEEN}"


def scopes_of_shape(marked: MarkedGraph) -> MarkedGraph:
    """Return a captured graph with the scopes of its shape's plan alone; unchanged without plans of several shapes."""
    calls: dict[str, dict[str, str]] = {}
    for name, call in marked.calls.items():
        number, _, unit = name.partition(BETWEEN)
        calls.setdefault(number, {})[unit] = call
    for number, seen in calls.items():
        if plans := _applied.get(number):
            marked = plans.of_shape(marked, seen)
    return marked
