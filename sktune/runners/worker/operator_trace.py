"""Names the operator at which two runs of one decode step begin to differ.

Both runs start from the same state and inputs, and every operator that they call is recorded with digests of its inputs
and outputs. The first operator of the model that computes, from inputs that the other run has too, what the other run
never computes, is where they part.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sktune.backends.base import Step
from sktune.measure.bits import bits_digest
from sktune.runners.worker.replays import Replay, copied, run_once
from sktune.targets.base import Snapshot


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an operator; ``inputs`` and ``outputs`` are digests of its tensors."""

    operator: str
    module: str
    is_view: bool
    inputs: Sequence[str]
    outputs: Sequence[str]


class _Recorder(TorchDispatchMode):
    def __init__(self, names: Mapping[torch.nn.Module, str]) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self._names, self._running = names, [""]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = _digests((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(str(func), self._running[-1], func.is_view, inputs, _digests(result)))
        return result

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


def first_difference(module: torch.nn.Module, model: Step, compiled: Step, replay: Replay, steps: int) -> str:
    """Return in words at which operator of ``model`` its first ``steps`` steps differ from those of ``compiled``.

    Every step starts from the state of ``compiled``. Empty if no operator can be named, for instance because the
    compiled step calls none that PyTorch dispatches.
    """
    replay.start.restore()
    for inputs in replay.inputs[:steps]:
        before = Snapshot(replay.state)
        own = _calls(module, model, inputs)
        before.restore()
        other = _calls(module, compiled, inputs)
        if found := _parting(own, other):
            return found
    return ""


def _calls(module: torch.nn.Module, step: Step, inputs: Sequence[Any]) -> list[_Call]:
    step.prepare()
    recorder = _Recorder({child: name for name, child in module.named_modules() if name})
    with torch.no_grad(), recorder.following_modules(), recorder:
        run_once(step, copied(tuple(inputs)))
    return recorder.calls


def _parting(own: Sequence[_Call], other: Sequence[_Call]) -> str:
    computed = {digest for call in other for digest in call.outputs}
    shared = computed | {digest for call in other for digest in call.inputs}
    mine = {digest for call in own for digest in call.outputs}
    for call in own:
        if computed.issuperset(call.outputs) or not shared.issuperset(call.inputs):
            continue
        if call.is_view:  # other shapes of the same values
            shared.update(call.outputs)
            continue
        takes = set(call.inputs) & mine or set(call.inputs)
        there = [each.operator for each in other if takes & set(each.inputs) and not mine.issuperset(each.outputs)]
        where = f"in {call.module}, " if call.module else ""
        instead = f", where the compiled model calls {_listed(there)}" if there else ""
        return f"{where}{call.operator} is the first operator whose result differs{instead}"
    return ""


def _listed(operators: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(operators))


def _digests(values: Any) -> tuple[str, ...]:
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return tuple(bits_digest([{"": tensor}]) for tensor in tensors if not tensor.is_meta and tensor.numel())
