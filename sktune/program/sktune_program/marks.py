"""Marks: scope boundaries that are attached to the modules of a tree and can be detached again.

A mark is an operator with a side effect, called before or after a unit's ``forward``. Dynamo records it in program
order, so a scope can begin in one module and end in a sibling without an edit to the source, and includes everything
between the two. For TorchAir the mark is its ``super_kernel`` scope, for npugraph_ex a pair of operators of torch_npu,
for Inductor a pair of sktune's (``inductor.marks``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from . import superkernel_options
from .errors import PlanError
from .plan import MarkedScope, Option


class HookedScope(Protocol):
    """A context manager that is entered in one hook and left in another."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: object) -> Any: ...


def torchair_scope(label: str, options: Mapping[str, Option]) -> HookedScope:
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
            "install the torch_npu of this torch ('.[npu]' in sktune's own environment)"
        ) from failure
    scope: HookedScope = torchair.scope.super_kernel(label, superkernel_options.render(options))
    return scope


class NpugraphExScope:
    """A scope for npugraph_ex: two operators of torch_npu."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None:
        torch.ops.npu.super_kernel_scope_begin(self._label)

    def __exit__(self, *error: object) -> None:
        torch.ops.npu.super_kernel_scope_end(self._label)


def npugraph_ex_scope(label: str, options: Mapping[str, Option]) -> HookedScope:
    """Return a scope for npugraph_ex.

    Raises:
        PlanError: the scope has options, or torch_npu has no such scopes.
    """
    if options:
        raise PlanError(f"npugraph_ex has no options of single scopes; give those of {label!r} for the whole step")
    if not hasattr(torch.ops.npu, "super_kernel_scope_begin"):
        raise PlanError("the plan's scopes need a torch_npu that has npugraph_ex; sktune doctor names the releases")
    return NpugraphExScope(label)


MakeScope = Callable[[str, Mapping[str, Option]], HookedScope]


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

    def mark(self, first: nn.Module, last: nn.Module, scope: HookedScope) -> None:
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

    def absorb(self, other: MarkedModel) -> None:
        """Take over the marks of another one on the same tree, whose labels differ."""
        self.first_units |= other.first_units
        self._handles += other._handles
        self._tables += other._tables
        other._handles, other._tables = [], []

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


def attach(module: nn.Module, scopes: Sequence[MarkedScope], make_scope: MakeScope) -> MarkedModel:
    """Mark a plan's scopes on ``module``, until ``detach`` is called on the result.

    The plan may have been made for a larger or smaller tree around the same layers: the same prefix is added to all
    names, or dropped from them, if that makes every name fit.

    Raises:
        PlanError: a scope names a unit that the module lacks.
    """
    modules = dict(module.named_modules())
    paths = fit_names(list(dict.fromkeys(name for scope in scopes for name in (scope.first, scope.last))), modules)
    marked = MarkedModel()
    for scope in scopes:
        mark = make_scope(scope.label, dict(scope.options))
        marked.first_units[scope.label] = modules[paths[scope.first]]
        marked.mark(modules[paths[scope.first]], modules[paths[scope.last]], mark)
    return marked


def fit_names(names: Sequence[str], modules: Mapping[str, nn.Module], others: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the path of the module that each name stands for: without a prefix of all of them, or with one more.

    ``others`` are names that stand for modules of the same model; those that this one lacks are left out.

    Raises:
        PlanError: there is no such prefix, or there are several.
    """
    if not names:
        return {}
    parts = names[0].split(".")
    for count in range(len(parts)):
        dropped = "".join(f"{part}." for part in parts[:count])
        paths = {name: name.removeprefix(dropped) for name in names}
        if all(path in modules for path in paths.values()):
            inside = {name: name.removeprefix(dropped) for name in others if name.startswith(dropped)}
            return {name: path for name, path in inside.items() if path in modules} | paths
    added = [path.removesuffix(names[0]) for path in modules if path.endswith("." + names[0])]
    fitting = [prefix for prefix in added if all(prefix + name in modules for name in names)]
    if len(fitting) == 1:
        return {name: fitting[0] + name for name in (*others, *names) if fitting[0] + name in modules}
    if fitting:
        places = " and ".join(repr(prefix.removesuffix(".")) for prefix in fitting[:3])
        raise PlanError(f"the plan fits this model in {len(fitting)} places, below {places}; apply it to one of them")
    known = [".".join(path.split(".")[:3]) for path in modules if path.count(".") <= 3]
    missing = next(name for name in names if name not in modules)
    raise PlanError(
        f"the plan does not fit this model, which has no module {missing!r} "
        f"(it has {', '.join(list(dict.fromkeys(known))[1:6])}, ...); apply it to the model that it was made for"
    )
