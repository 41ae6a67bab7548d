"""State: the tensors that a decode step writes to and that outlive it, whether the target names them or not."""

import re
from collections.abc import Callable, Mapping

import torch
from torch import nn

from sktune.core.errors import TargetError
from sktune.targets.base import Target
from sktune.targets.object_graph import Values, Walk

_ROOT = re.compile(r"^[LG]\['(\w+)'\]")
_PART = re.compile(r"(?:\._(?:modules|buffers|parameters))?\['?(\w+)'?\]")


def readable(source: str) -> str:
    """Return the name that users know a tensor by, from Dynamo's name for it: ``self.layers.0.keys``."""
    return _PART.sub(r".\1", _ROOT.sub(r"\1", source))


def complete_state(target: Target, written: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what the target names, and of ``written`` what is elsewhere in memory."""
    found = dict(target.state)
    known = {id(tensor) for tensor in found.values()}
    for name, tensor in written.items():
        if id(tensor) not in known and not any(_covers(own, tensor) for own in target.state.values()):
            found[f"undeclared {name}"] = tensor
    return found


def _covers(own: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether ``other`` is the same memory as ``own``, seen in another shape."""
    same = own.data_ptr() == other.data_ptr() and own.numel() == other.numel()
    return same and own.dtype == other.dtype and own.is_contiguous() and other.is_contiguous()


def reachable(target: Target) -> dict[str, torch.Tensor]:
    """Return every tensor that a step may know, by name: of the module tree, and of what the step's function refers to.

    These are parameters, buffers and attributes; what hangs on closures, defaults and the object that a method is bound
    to, at any depth; and the global variables that functions of the model's files name.
    """
    kinds = {type(each).__module__ for each in target.module.modules()}
    walk = Walk(behind=True, modules={*kinds, getattr(target.decode_step, "__module__", "")} - {None})
    found: dict[str, torch.Tensor] = {f"model.{name}": own for name, own in target.module.named_parameters()}
    for root, value in ("model", target.module), ("step", target.decode_step):
        for name, leaf in walk.leaves(root, value):
            if isinstance(leaf, torch.Tensor):
                found[name.removeprefix("step.")] = leaf
    return found


def written_by(target: Target, run: Callable[[], object]) -> dict[str, torch.Tensor]:
    """Return the tensors that ``run`` writes to in place, by name, with the values that they had before.

    For backends that do not show what they capture. Weights count as written where PyTorch's version counter moved;
    everything else is compared bit by bit, as a vendor's operator need not move that counter.

    Raises:
        TargetError: a tensor is replaced by another one.
    """
    tensors, held = reachable(target), Held(target)
    before = {name: own.detach().clone() for name, own in tensors.items() if not isinstance(own, nn.Parameter)}
    versions = {name: _version(own) for name, own in tensors.items()}
    run()
    held.check()
    found = {}
    for name, own in tensors.items():
        is_other = name in before and not _same_bits(before[name], own)
        if is_other or versions[name] != _version(own):
            found[name] = own
        if is_other:
            own.copy_(before[name])
    return found


class Held:
    """Which tensor is held where, at one moment: a step that replaces one cannot be undone."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = reachable(target)
        self._numbers = _numbers(target)

    def check(self) -> None:
        """Compare with which tensors are held now.

        Raises:
            TargetError: a tensor was replaced by another one; the message names it.
        """
        for name, tensor in reachable(self._target).items():
            if self._before.get(name) is not tensor:
                raise replaced(name)

    def changed_numbers(self) -> list[str]:
        """Return the names of Python numbers, strings and the like that have changed."""
        return [name for name, value in _numbers(self._target).items() if self._before_number(name) != value]

    def _before_number(self, name: str) -> str:
        return self._numbers.get(name, "")


def replaced(name: str) -> TargetError:
    """Return the error for a tensor that a step replaces."""
    return TargetError(
        f"the decode step replaces {name} by a new tensor, which cannot be put back; write into it with copy_()"
    )


def _numbers(target: Target) -> dict[str, str]:
    walk = Walk(values=True, behind=True)
    leaves = [*walk.leaves("model", target.module), *walk.leaves("step", target.decode_step)]
    values = [(name, leaf) for name, leaf in leaves if isinstance(leaf, Values)]
    return {f"{name}{key}".removeprefix("step."): repr(value) for name, leaf in values for key, value in leaf.items}


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - PyTorch's name for it


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(
        one.contiguous().flatten().view(torch.uint8), other.detach().contiguous().flatten().view(torch.uint8)
    )
