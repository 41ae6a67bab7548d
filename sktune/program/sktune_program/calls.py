"""Calls: which modules a decode step runs, in which order, and which run inside another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import nn

from .errors import TargetError, described
from .torch_private import TorchDispatchMode

_PLACES = ("_user_stream_label", "_op_aicore_num", "_op_vectorcore_num")
"""Attributes that TorchAir's ``npu_stream_switch`` and ``limit_core_num`` set on operators."""


@dataclass(frozen=True)
class CallSpan:
    """A part of a step, by the numbers of its first and last event; an event is a begin or an end of a call."""

    began: int
    ended: int

    def contains(self, other: CallSpan) -> bool:
        """Whether the other span begins and ends inside this one."""
        return self.began < other.began and other.ended < self.ended


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module.

    Attributes:
        name: of the module, as ``named_modules`` has it.
        span: from its begin to its end; None if it raised, and the model went on without it.
        caller: index of the call that it ran in; None if the step itself called it.
        place: the stream or core limit that the model's code had set when it began.
        is_idle: whether it ran no operator and returned what it was given, as dropout does.
    """

    name: str
    span: CallSpan | None
    caller: int | None
    place: str = ""
    is_idle: bool = False


@dataclass(frozen=True)
class Calls:
    """All calls of modules in a step, in order of their begin."""

    calls: tuple[ModuleCall, ...]

    @cached_property
    def once(self) -> Mapping[str, ModuleCall]:
        """The modules that ran exactly once and did something, by name and in order of their begin."""
        counts = Counter(call.name for call in self.calls)
        return {
            call.name: call for call in self.calls
            if counts[call.name] == 1 and call.span is not None and not call.is_idle
        }  # fmt: skip

    @cached_property
    def ran(self) -> frozenset[str]:
        """The names of all modules that ran."""
        return frozenset(call.name for call in self.calls)

    def to_rows(self) -> list[list[Any]]:
        """Return plain values, ready for JSON."""
        return [
            [call.name, *((call.span.began, call.span.ended) if call.span else (None, None)), call.caller, call.place,
             call.is_idle]
            for call in self.calls
        ]  # fmt: skip

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> Calls:
        """Inverse of ``to_rows``."""
        return cls(tuple(
            ModuleCall(str(name), None if began is None else CallSpan(int(began), int(ended)),
                 None if caller is None else int(caller), str(place), bool(is_idle))
            for name, began, ended, caller, place, is_idle in rows
        ))  # fmt: skip


class _Places(TorchDispatchMode):
    """Tracks the scopes of TorchAir in the model's code: streams and core limits, which no SuperKernel may cross."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._open: list[str] = []
        self.operators = 0

    @property
    def now(self) -> str:
        """The scopes that are open now; empty if there are none."""
        return ", ".join(filter(None, self._open))

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Run the operator; if it begins or ends a scope, record that."""
        self.operators += 1
        if str(function) == "air.scope_enter.default":
            place = [f"{name}={value}" for name, value in zip(*arguments[:2]) if name in _PLACES]
            self._open.append(" ".join(place))
        elif str(function) == "air.scope_exit.default" and self._open:
            self._open.pop()
        return function(*arguments, **(options or {}))


@dataclass
class _OpenCall:
    """A call of a module that has begun: ``operators`` is how many had run before, ``ended`` is None if it raised."""

    name: str
    began: int
    caller: int | None
    place: str
    operators: int
    has_returned: bool = False
    is_idle: bool = False
    ended: int | None = None


def record_calls(module: nn.Module, step: Callable[[], Any]) -> tuple[Any, Calls]:
    """Run ``step`` once, eagerly; return its output and the calls of the modules in ``module``.

    Raises:
        TargetError: the step fails, or runs no module of the tree once.
    """
    places, events = _Places(), count()
    begun: list[_OpenCall] = []
    inside: list[int] = []  # the open calls, the innermost one last

    def returned(_module: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
        call = begun[inside[-1]]
        call.has_returned = True
        call.is_idle = call.operators == places.operators and any(
            output is value for value in (*arguments, *keywords.values())
        )

    def end(*_: Any) -> None:
        call, number = begun[inside.pop()], next(events)
        if call.has_returned:
            call.ended = number

    handles = []
    for name, each in module.named_modules():

        def begin(_module: nn.Module, _arguments: Any, name: str = name) -> None:
            caller = inside[-1] if inside else None
            inside.append(len(begun))
            begun.append(_OpenCall(name, next(events), caller, places.now, places.operators))

        handles += [
            each.register_forward_pre_hook(begin),
            each.register_forward_hook(returned, with_kwargs=True),
            each.register_forward_hook(end, always_call=True),
        ]
    try:
        with places:
            output = step()
    except Exception as failure:
        raise TargetError(f"the eager decode step fails: {described(failure)}; fix the step or its inputs") from failure
    finally:
        for handle in handles:
            handle.remove()
    calls = Calls(tuple(
        ModuleCall(
            call.name, None if call.ended is None else CallSpan(call.began, call.ended), call.caller, call.place,
            call.is_idle,
        )
        for call in begun
    ))  # fmt: skip
    if not calls.ran:
        raise TargetError("the decode step runs no submodule of the target's module; give the module that it runs")
    repeated = Counter(call.name for call in calls.calls if call.name)
    if repeated and not calls.once.keys() - {""}:
        name, most = repeated.most_common(1)[0]
        raise TargetError(
            f"every submodule runs more than once in a decode step ({name} {most} times), but a unit must run once; "
            "use a separate module for each call"
        )
    return output, calls


def tensors_of_call(arguments: Any, keywords: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among a call's arguments, and in tuples, lists and dictionaries among them."""
    tensors: list[torch.Tensor] = []
    left = [keywords[name] for name in sorted(keywords, reverse=True)] + list(arguments)[::-1]
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list)):
            left += list(value)[::-1]
        elif isinstance(value, dict):
            left += list(value.values())[::-1]
    return tensors


def described_tensors(values: Sequence[Any]) -> str:
    """Return the types and shapes of the tensors among values."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return " ".join(f"{value.dtype}{list(value.shape)}".replace("torch.", "", 1) for value in tensors)


def described_call(arguments: Any, keywords: Mapping[str, Any]) -> str:
    """Return the types and shapes of a call's tensors."""
    return described_tensors(tensors_of_call(arguments, keywords))


@contextmanager
def shapes_of_calls(module: nn.Module, units: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Record the types and shapes with which units are called, by the keys under which ``units`` names them."""
    shapes: dict[str, str] = {}

    def recording(key: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, arguments: Any, keywords: Any) -> None:  # noqa: ARG001
            shapes[key] = described_call(arguments, keywords)

        return record

    handles = [
        module.get_submodule(name).register_forward_pre_hook(recording(key), with_kwargs=True)
        for key, name in units.items()
    ]
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()
