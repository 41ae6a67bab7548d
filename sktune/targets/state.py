"""State: the tensors that a decode step writes to and that outlive it, whether the target declares them or not."""

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from sktune.core.errors import TargetError
from sktune.measure.bits import same_bits
from sktune.program.sktune_program.object_graph import Values, Walk, state_walk
from sktune.program.sktune_program.torch_private import version_counter
from sktune.targets.base import Inputs, Target

_ROOT = re.compile(r"^[LG]\['(\w+)'\]")
_PART = re.compile(r"(?:\._(?:modules|buffers|parameters))?\['?(\w+)'?\]")


def readable(source: str) -> str:
    """Turn Dynamo's name for a tensor into the one in the source, such as ``self.layers.0.keys``."""
    return _PART.sub(r".\1", _ROOT.sub(r"\1", source))


def complete_state(target: Target, written: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the target's declared state, and those tensors of ``written`` that use other memory."""
    state = dict(target.state)
    known = {id(tensor) for tensor in state.values()}
    for name, tensor in written.items():
        if id(tensor) not in known and not any(_is_same_memory(declared, tensor) for declared in target.state.values()):
            state[f"undeclared {name}"] = tensor
    return state


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same memory, perhaps in different shapes."""
    is_same = one.data_ptr() == other.data_ptr() and one.numel() == other.numel()
    return is_same and one.dtype == other.dtype and one.is_contiguous() and other.is_contiguous()


def reachable(target: Target) -> dict[str, torch.Tensor]:
    """Return every tensor that a step may access, by name: those of the module tree and of the step's function.

    These are parameters, buffers and attributes; tensors reachable at any depth from closures, defaults and the object
    that a method is bound to; and global variables used by functions of the model's files.
    """
    walk = state_walk(target.module, target.decode_step)
    tensors: dict[str, torch.Tensor] = {f"model.{name}": each for name, each in target.module.named_parameters()}
    for root, value in ("model", target.module), ("step", target.decode_step):
        for name, leaf in walk.leaves(root, value):
            if isinstance(leaf, torch.Tensor):
                tensors[name.removeprefix("step.")] = leaf
    return tensors


def held_by(inputs: Sequence[Inputs]) -> dict[str, torch.Tensor]:
    """Return the tensors inside lists, caches and other objects among steps' inputs, by name.

    A prefill may make a KV cache anew and pass it to each step: such tensors outlive a step as those of the module do.
    """
    walk, found = Walk(), dict[str, torch.Tensor]()
    for step, values in enumerate(inputs):
        for index, value in enumerate(values):
            if not isinstance(value, torch.Tensor):
                leaves = walk.leaves(f"input[{index}]", value)
                found |= {
                    f"step {step} {name}" if name in found else name: leaf
                    for name, leaf in leaves
                    if isinstance(leaf, torch.Tensor)
                }
    return found


def written_by(target: Target, run: Callable[[], object]) -> dict[str, torch.Tensor]:
    """Return the tensors that ``run`` writes to in place, by name; all but weights get their old values back.

    For backends that do not show what they capture. Weights count as written if PyTorch's version counter changed; all
    other tensors are compared bit by bit, as a vendor's operator may not update that counter.

    Raises:
        TargetError: a tensor is replaced by another one.
    """
    tensors, held = reachable(target), HeldTensors(target)
    before = {name: each.detach().clone() for name, each in tensors.items() if not isinstance(each, nn.Parameter)}
    versions = {name: version_counter(each) for name, each in tensors.items()}
    run()
    held.check()
    written = {}
    for name, tensor in tensors.items():
        has_changed = name in before and not same_bits(before[name], tensor)
        if has_changed or versions[name] != version_counter(tensor):
            written[name] = tensor
        if has_changed:
            tensor.copy_(before[name])
    return written


class HeldTensors:
    """Records which tensor is held where, as a step that replaces one cannot be undone."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = reachable(target)
        self._numbers = _numbers(target)

    def check(self) -> None:
        """Compare with the tensors that are held now.

        Raises:
            TargetError: a tensor was replaced by another one; the message names it.
        """
        for name, tensor in reachable(self._target).items():
            if self._before.get(name) is not tensor:
                raise replaced_error(name)

    def changed_numbers(self) -> list[str]:
        """Return the names of Python numbers, strings and other plain values that have changed."""
        return [name for name, value in _numbers(self._target).items() if self._numbers.get(name, "") != value]


def replaced_error(name: str) -> TargetError:
    """Return the error for a tensor that a step replaces."""
    return TargetError(
        f"the decode step replaces {name} by a new tensor, which cannot be undone; write into it with copy_()"
    )


def _numbers(target: Target) -> dict[str, str]:
    walk = Walk(values=True, into_code=True)
    leaves = [*walk.leaves("model", target.module), *walk.leaves("step", target.decode_step)]
    values = [(name, leaf) for name, leaf in leaves if isinstance(leaf, Values)]
    return {f"{name}{key}".removeprefix("step."): repr(value) for name, leaf in values for key, value in leaf.items}
