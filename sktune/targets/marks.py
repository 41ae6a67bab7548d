"""Marks of sktune's own: the scopes of plans on models in this process, and the operators that mark them for Inductor.

How marks are attached, and those of TorchAir and npugraph_ex, are on the side of programs (``sktune_program.marks``).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from sktune.core.delivery import ExpectedCode
from sktune.core.errors import PlanError
from sktune.core.plan import Option, Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.program.sktune_program import marks
from sktune.program.sktune_program.marks import MakeScope as MakeScope
from sktune.program.sktune_program.marks import MarkedModel as MarkedModel
from sktune.program.sktune_program.marks import Scope as Scope
from sktune.program.sktune_program.marks import npugraph_ex_scope as npugraph_ex_scope
from sktune.program.sktune_program.marks import torchair_scope as torchair_scope

_library = torch.library.Library("sktune", "DEF")
_library.define('scope_enter(str label, str options, str code="", bool is_strict=False) -> ()')
_library.define("scope_exit(str label) -> ()")


def _entered(label: str, options: str, code: str = "", is_strict: bool = False) -> None:  # noqa: ARG001
    if is_strict:  # sktune's backend removes marks from what it compiles
        raise PlanError(f"scope {label} was compiled by another backend than it was verified with; use 'sktune'")


_library.impl("scope_enter", _entered, "CompositeExplicitAutograd")
_library.impl("scope_exit", lambda label: None, "CompositeExplicitAutograd")
torch.library.register_fake("sktune::scope_enter", lambda label, options, code="", is_strict=False: None)
torch.library.register_fake("sktune::scope_exit", lambda label: None)

scope_enter = torch.ops.sktune.scope_enter
scope_exit = torch.ops.sktune.scope_exit

for _operator in (scope_enter, scope_exit):
    # Without outputs, FX would remove them as dead code.
    torch.fx.node.has_side_effect(_operator)
    torch.fx.node.has_side_effect(_operator.default)


@dataclass(frozen=True, slots=True)
class Boundary:
    """One mark in a captured graph.

    Attributes:
        enters: True at the start of a span, False after its end.
        label: the scope's label.
        options: the scope's options; empty at the end of a span.
        code: the code that the scope should compile to; None for any code.
    """

    enters: bool
    label: str
    options: Mapping[str, Option]
    code: ExpectedCode | None = None


def read_mark(node: torch.fx.Node) -> Boundary | None:
    """Return the boundary that ``node`` marks, or None if it is an ordinary operator."""
    if node.target in (scope_enter, scope_enter.default):
        label, options, *code = (*node.args, *node.kwargs.values())
        expected = ExpectedCode(str(code[0]), bool(code[1])) if code else None
        return Boundary(True, str(label), json.loads(str(options)), expected)
    if node.target in (scope_exit, scope_exit.default):
        (label,) = (*node.args, *node.kwargs.values())
        return Boundary(False, str(label), {})
    return None


class InductorScope:
    """A scope for Inductor: two operators of sktune, with its options and the code that it should compile to."""

    def __init__(self, label: str, options: Mapping[str, Option], code: ExpectedCode | None = None) -> None:
        self._label = label
        self._arguments: tuple[Any, ...] = (json.dumps(dict(options), sort_keys=True),)
        if code is not None:
            self._arguments += (code.digest, code.is_strict)

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():
            scope_enter(self._label, *self._arguments)

    def __exit__(self, *error: object) -> None:
        if torch.compiler.is_compiling():
            scope_exit(self._label)


def scope_maker(flavour: ScopeFlavour, code: Mapping[str, ExpectedCode] = MappingProxyType({})) -> MakeScope:
    """Return the function that makes scopes of a flavour.

    Args:
        flavour: of the scopes.
        code: the code that scopes should compile to, by label; for Inductor only.
    """
    if flavour is ScopeFlavour.SUPERKERNEL:
        return torchair_scope
    if flavour is ScopeFlavour.CAPTURED:
        return npugraph_ex_scope
    return lambda label, options: InductorScope(label, options, code.get(label))


def attach(module: nn.Module, plan: Plan, make_scope: MakeScope = InductorScope) -> MarkedModel:
    """Mark the scopes of ``plan`` on ``module``; see ``sktune_program.marks.attach``."""
    return marks.attach(module, plan.marked, make_scope)


def attach_each(module: nn.Module, names: tuple[str, ...]) -> MarkedModel:
    """Mark each of the named modules as a separate span."""
    modules = dict(module.named_modules())
    marked = MarkedModel()
    for name in names:
        marked.mark(modules[name], modules[name], InductorScope(name, {}))
    return marked
