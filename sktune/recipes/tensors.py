"""What a program's decode step leaves behind, found without knowing the program: tensors by name, and their bits."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

_DEPTH = 5
"""How deep objects are looked into: a cache of layers of tensors is three deep."""


def signature_of(arguments: Any) -> str:
    """Return types and shapes of the tensors among a call's arguments: what a static graph is compiled for."""
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return " ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}".replace(" ", "") for leaf in leaves)


def outputs_of(output: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a step's output by name."""
    return {f"output{name}": tensor for name, tensor in _tensors("", output, _DEPTH, {})}


def state_of(module: nn.Module, arguments: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that outlive a step: buffers and other tensors of the tree, and those of the arguments."""
    seen: dict[int, Any] = {}
    found: dict[str, torch.Tensor] = {}
    for path, each in module.named_modules():
        kept = {key: value for key, value in vars(each).items() if key not in ("_parameters", "_modules")}
        for name, tensor in _tensors(path or "model", kept, _DEPTH, seen):
            found[name.replace("['_buffers']", "")] = tensor
    found |= dict(_tensors("arguments", arguments, _DEPTH, seen))
    return found


def digest_of(tensor: torch.Tensor) -> str:
    """Identity of a tensor's bits, type and shape."""
    plain = tensor.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    found = hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=16)
    found.update(plain.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _tensors(name: str, value: Any, depth: int, seen: dict[int, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in ``value`` by name; ``seen`` keeps what it names alive, as ids are reused."""
    if id(value) in seen or isinstance(value, nn.Parameter | nn.Module | type) or depth < 0:
        return
    if isinstance(value, torch.Tensor):
        seen[id(value)] = value
        if not value.is_meta:
            yield name, value
        return
    if not isinstance(value, int | float | str | bytes | None):
        seen[id(value)] = value
    for key, inner in _parts(value):
        yield from _tensors(f"{name}{key}", inner, depth - 1, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif dataclasses.is_dataclass(value) or type(value).__module__.split(".")[0] not in ("builtins", "torch"):
        yield from ((f".{key}", inner) for key, inner in getattr(value, "__dict__", {}).items())
