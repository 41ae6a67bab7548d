"""Marks: scope boundaries that are attached to the modules of a tree and can be detached again.

A mark is an operator with a side effect, called before or after a unit's ``forward``. Dynamo records it in program
order, so a scope can begin in one module and end in a sibling without an edit to the source, and includes everything
between the two. For TorchAir the mark is its ``super_kernel`` scope, for npugraph_ex a pair of operators of torch_npu,
for Inductor a pair of sktune's.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn

from sktune.core import scope_options
from sktune.core.delivery import ExpectedCode
from sktune.core.errors import PlanError
from sktune.core.plan import Option, Plan
from sktune.core.scope_flavour import ScopeFlavour

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


class Scope(Protocol):
    """A context manager that is entered in one hook and left in another."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: object) -> Any: ...


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


def torchair_scope(label: str, options: Mapping[str, Option]) -> Scope:
    """Return TorchAir's scope, with the options as a string.

    Raises:
        SpaceError: TorchAir's compiler would reject the options.
        PlanError: TorchAir cannot be imported.
    """
    try:
        import torch_npu  # noqa: F401 - brings torchair along
        import torchair
    except ImportError as failure:
        raise PlanError(
            f"the plan's scopes need TorchAir, which cannot be imported ({str(failure).partition(chr(10))[0]}); "
            "run pip install '.[npu]' in sktune's folder"
        ) from failure
    scope: Scope = torchair.scope.super_kernel(label, scope_options.render(options))
    return scope


class NpugraphExScope:
    """A scope for npugraph_ex: two operators of torch_npu."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None:
        torch.ops.npu.super_kernel_scope_begin(self._label)

    def __exit__(self, *error: object) -> None:
        torch.ops.npu.super_kernel_scope_end(self._label)


def npugraph_ex_scope(label: str, options: Mapping[str, Option]) -> Scope:
    """Return a scope for npugraph_ex.

    Raises:
        PlanError: the scope has options, or torch_npu has no such scopes.
    """
    if options:
        raise PlanError(f"npugraph_ex has no options of single scopes; give those of {label!r} for the whole step")
    if not hasattr(torch.ops.npu, "super_kernel_scope_begin"):
        raise PlanError("the plan's scopes need a torch_npu with npugraph_ex, 2.13 or later, which is not imported")
    return NpugraphExScope(label)


MakeScope = Callable[[str, Mapping[str, Option]], Scope]


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


class MarkedModel:
    """A module tree with the marks of one ``attach``; ``detach`` removes them.

    Attributes:
        first_units: the module that begins each scope, by label.
    """

    def __init__(self) -> None:
        self.first_units: dict[str, nn.Module] = {}
        self._handles: list[Any] = []
        self._tables: list[dict[int, Any]] = []
        self._suspended: list[tuple[dict[int, Any], dict[int, Any]]] = []

    def mark(self, first: nn.Module, last: nn.Module, scope: Scope) -> None:
        """Enter ``scope`` before ``first`` runs and leave it after ``last`` has run."""

        def enter(module: nn.Module, arguments: Any) -> None:  # noqa: ARG001
            scope.__enter__()

        def leave(module: nn.Module, arguments: Any, output: Any) -> None:  # noqa: ARG001
            scope.__exit__(None, None, None)

        self._handles.append(first.register_forward_pre_hook(enter))
        self._handles.append(last.register_forward_hook(leave))
        self._tables += [first._forward_pre_hooks, last._forward_hooks]  # noqa: SLF001 - no public way to pause hooks

    def watch(self, module: nn.Module, hook: Callable[[nn.Module, Any, Any], None]) -> None:
        """Call ``hook`` before ``module`` runs, with the arguments and keywords of the call."""
        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        self._tables.append(module._forward_pre_hooks)  # noqa: SLF001 - no public way to pause hooks

    def detach(self) -> None:
        """Remove every mark. Calling it again changes nothing."""
        self.resume()
        while self._handles:
            self._handles.pop().remove()

    def suspend(self) -> None:
        """Disable the marks until ``resume``, so that the model runs as if it had none."""
        if not self._suspended:
            self._suspended = [(hooks, dict(hooks)) for hooks in self._tables]
            for hooks in self._tables:
                hooks.clear()

    def resume(self) -> None:
        """Enable the marks again: the same hooks under the same keys, on which Dynamo has guards."""
        for hooks, saved in self._suspended:
            hooks.update(saved)
        self._suspended = []


def attach(module: nn.Module, plan: Plan, make_scope: MakeScope = InductorScope) -> MarkedModel:
    """Mark the scopes of ``plan`` on ``module``, until ``detach`` is called on the result.

    The plan may have been made for a larger or smaller tree around the same layers: the same prefix is added to all
    names, or dropped from them, if that makes every name fit.

    Raises:
        PlanError: a scope names a unit that the module lacks.
    """
    modules = dict(module.named_modules())
    rename = _fit_names(plan, modules)
    marked = MarkedModel()
    for scope in plan.scopes:
        mark = make_scope(scope.label, dict(scope.options))
        marked.first_units[scope.label] = modules[rename(scope.first)]
        marked.mark(modules[rename(scope.first)], modules[rename(scope.last)], mark)
    return marked


def attach_each(module: nn.Module, names: tuple[str, ...]) -> MarkedModel:
    """Mark each of the named modules as a separate span."""
    modules = dict(module.named_modules())
    marked = MarkedModel()
    for name in names:
        marked.mark(modules[name], modules[name], InductorScope(name, {}))
    return marked


class _Renaming:
    """Adds a prefix to names, or drops one from them."""

    def __init__(self, prefix: str, dropped: str) -> None:
        self.prefix, self.dropped = prefix, dropped

    def __call__(self, name: str) -> str:
        return self.prefix + name.removeprefix(self.dropped)


def _fit_names(plan: Plan, modules: Mapping[str, nn.Module]) -> _Renaming:
    names = [name for scope in plan.scopes for name in (scope.first, scope.last)]
    if not names:
        return _Renaming("", "")
    parts = names[0].split(".")
    dropped = [".".join(parts[:count]) + "." for count in range(1, len(parts))]
    added = [path.removesuffix(names[0]) for path in modules if path.endswith("." + names[0])]
    for rename in (_Renaming("", ""), *(_Renaming("", prefix) for prefix in dropped)):
        if all(rename(name) in modules for name in names):
            return rename
    fitting = [prefix for prefix in added if all(prefix + name in modules for name in names)]
    if len(fitting) == 1:
        return _Renaming(fitting[0], "")
    if fitting:
        places = " and ".join(repr(prefix.removesuffix(".")) for prefix in fitting[:3])
        raise PlanError(f"the plan fits this model in {len(fitting)} places, below {places}; apply it to one of them")
    known = [".".join(path.split(".")[:3]) for path in modules if path.count(".") <= 3]
    missing = next(name for name in names if name not in modules)
    raise PlanError(
        f"the plan does not fit this model, which has no module {missing!r} "
        f"(it has {', '.join(list(dict.fromkeys(known))[1:6])}, ...); apply it to the model that it was made for"
    )
