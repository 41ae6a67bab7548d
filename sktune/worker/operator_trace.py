"""Names the operator at which two runs of one decode step begin to differ.

Both runs start from the same state and inputs, and every operator that they call is recorded with digests of its inputs
and outputs. The first operator of the model that computes, from inputs that the other run has too, what the other run
never computes, is where they part.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from sktune.backends.base import Compiled, Step
from sktune.measure.bits import bits_digest
from sktune.program.sktune_program.torch_private import TorchDispatchMode, tree_leaves
from sktune.targets.base import Snapshot
from sktune.worker.replays import Replay, copied


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an operator; ``inputs`` and ``outputs`` are digests of its tensors."""

    operator: str
    module: str
    is_view: bool
    inputs: Sequence[str]
    outputs: Sequence[str]


class _Recorder(TorchDispatchMode):
    def __init__(self, weights: Container[int], names: Mapping[torch.nn.Module, str] = MappingProxyType({})) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self._weights = weights
        self._names, self._running = names, [""]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = self._digests((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(str(func), self._running[-1], func.is_view, inputs, self._digests(result)))
        return result

    def _digests(self, values: Any) -> tuple[str, ...]:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return tuple(self._digest(tensor) for tensor in tensors if not tensor.is_meta and tensor.numel())

    def _digest(self, tensor: torch.Tensor) -> str:
        """Return what identifies a tensor: its bits, or of a weight its place, as both runs have the same weights."""
        if tensor.untyped_storage().data_ptr() not in self._weights:
            return bits_digest([{"": tensor}])
        return repr((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype))

    @contextmanager
    def following_modules(self) -> Iterator[None]:
        """Note meanwhile which module calls the operators."""

        def enter(module: torch.nn.Module, _args: Any) -> None:
            self._running.append(self._names.get(module, self._running[-1]))

        def leave(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
            self._running.pop()

        hooks = (
            torch.nn.modules.module.register_module_forward_pre_hook(enter),
            torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def first_difference(module: torch.nn.Module, model: Step, compiled: Compiled, replay: Replay, steps: int) -> str:
    """Return in words at which operator of ``model`` its first ``steps`` steps differ from those of ``compiled``.

    Every step starts from the state of ``compiled``. Empty if no operator can be named.
    """
    if compiled.inside is None:
        return ""
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    replay.start.restore()
    for inputs in replay.inputs[:steps]:
        before = Snapshot(replay.state)
        recorder = _Recorder(weights, {child: name for name, child in module.named_modules() if name})
        copies = copied(inputs)
        model.prepare()
        with torch.no_grad(), recorder.following_modules(), recorder:
            model.run(*copies)
        before.restore()
        within = _Recorder(weights)
        step = compiled.inside(within)
        step.prepare()
        with torch.no_grad():
            step.run(*copied(inputs))
        if found := _parting(recorder.calls, within.calls):
            return found
    return ""


def _parting(own: Sequence[_Call], other: Sequence[_Call]) -> str:
    if call := _first_apart(own, other):
        takes = set(call.inputs)
        mine = {digest for each in own for digest in each.outputs}
        there = [each.operator for each in other if takes & set(each.inputs) and not mine.issuperset(each.outputs)]
        instead = f", where the compiled model calls {_listed(there)}" if there else ""
        return f"{_named(call)} is the first operator whose result differs{instead}"
    if call := _first_apart(other, own):
        return f"{_named(call)} is called by the compiled model only"
    return ""


def _first_apart(own: Sequence[_Call], other: Sequence[_Call]) -> _Call | None:
    """Return the first call that computes, from tensors that the other run has, what that one never computes."""
    computed = {digest for call in other for digest in call.outputs}
    shared = computed | {digest for call in other for digest in call.inputs}
    for call in own:
        if computed.issuperset(call.outputs) or not shared.issuperset(call.inputs):
            continue
        if not call.is_view:
            return call
        shared.update(call.outputs)  # other shapes of the same values
    return None


def _named(call: _Call) -> str:
    return f"in {call.module}, {call.operator}" if call.module else call.operator


def _listed(operators: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(operators))
