"""The operators that mark scopes for Inductor, and what they say in a captured graph."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..calls import described_tensors, tensors_of_call
from ..errors import PlanError
from ..plan import Option
from .expected_code import ExpectedCode
from .versions import KEEPS_MARKS_SINCE, number_of


def _entered(label: str, options: str, code: str = "", is_strict: bool = False) -> None:  # noqa: ARG001
    if is_strict:  # sktune's backend removes marks from what it compiles
        raise PlanError(f"scope {label} was compiled by another backend than it was verified with; use 'sktune'")


if not hasattr(torch.ops.sktune, "scope_enter"):  # a process may have this module under two names
    _library = torch.library.Library("sktune", "DEF")
    _library.define('scope_enter(str label, str options, str code="", bool is_strict=False) -> ()')
    _library.define("scope_exit(str label) -> ()")
    _library.define("unit_called(str unit, Tensor[] values) -> ()")
    _library.impl("unit_called", lambda unit, values: None, "CompositeExplicitAutograd")
    torch.library.register_fake("sktune::unit_called", lambda unit, values: None)
    _library.impl("scope_enter", _entered, "CompositeExplicitAutograd")
    _library.impl("scope_exit", lambda label: None, "CompositeExplicitAutograd")
    torch.library.register_fake("sktune::scope_enter", lambda label, options, code="", is_strict=False: None)
    torch.library.register_fake("sktune::scope_exit", lambda label: None)

scope_enter = torch.ops.sktune.scope_enter
scope_exit = torch.ops.sktune.scope_exit
unit_called = torch.ops.sktune.unit_called

for _operator in (scope_enter, scope_exit, unit_called):
    # Without outputs, FX would remove them as dead code.
    torch.fx.node.has_side_effect(_operator)
    torch.fx.node.has_side_effect(_operator.default)


@functools.cache
def _keep_strict_marks() -> None:
    """Make Inductor refuse strict marks as it compiles them, where it would remove them: then they cannot raise."""
    if number_of(torch.__version__) < KEEPS_MARKS_SINCE:
        from ..torch_private import register_lowering

        register_lowering(scope_enter.default, type_promotion_kind=None)(_entered)


@dataclass(frozen=True)
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


def read_call(node: torch.fx.Node) -> tuple[str, str] | None:
    """Return the unit whose call ``node`` notes, and the types and shapes of its tensors; None if it notes none."""
    if node.target not in (unit_called, unit_called.default):
        return None
    values: Any
    unit, values = (*node.args, *node.kwargs.values())
    return str(unit), described_tensors([value.meta.get("example_value") for value in values])


def note_call(unit: str, arguments: Any, keywords: Mapping[str, Any]) -> None:
    """Note in the graph that is being captured with which tensors a unit is called."""
    if torch.compiler.is_compiling():
        unit_called(unit, tensors_of_call(arguments, keywords))


class InductorScope:
    """A scope for Inductor: two operators of sktune, with its options and the code that it should compile to."""

    def __init__(self, label: str, options: Mapping[str, Option], code: ExpectedCode | None = None) -> None:
        self._label = label
        self._arguments: tuple[Any, ...] = (json.dumps(dict(options), sort_keys=True),)
        if code is not None:
            self._arguments += (code.digest, code.is_strict)
            if code.is_strict:
                _keep_strict_marks()

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():
            scope_enter(self._label, *self._arguments)

    def __exit__(self, *error: object) -> None:
        if torch.compiler.is_compiling():
            scope_exit(self._label)
