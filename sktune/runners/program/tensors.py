"""What a program's decode step leaves behind, found without knowing the program: tensors and values, and their bits."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from sktune.core.errors import TargetError, described
from sktune.targets.object_graph import Leaf, Values, Walk

Named = Iterator[tuple[str, Leaf]]


def signature_of(arguments: Any) -> str:
    """Return types and shapes of the tensors among a call's arguments: what a static graph is compiled for."""
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return " ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}".replace(" ", "") for leaf in leaves)


def outputs_of(output: Any) -> Named:
    """Yield what a step has returned: tensors, arrays, and the numbers and strings that lie beside them."""
    return Walk(values=True).leaves("output", output)


def state_of(module: nn.Module, arguments: Any, function: Callable[..., Any] | None = None) -> Named:
    """Yield the tensors and arrays that may outlive a step; no parameters, which a decode step reads.

    Args:
        module: the tree that the step runs: its buffers and attributes, those of its classes, and the global variables
            that code in its files names.
        arguments: of the step.
        function: the step; state may lie in its closure.
    """
    kinds = {type(each).__module__ for each in module.modules()}
    walk = Walk(behind=True, modules={*kinds, getattr(function, "__module__", "")} - {None})
    yield from walk.leaves("model", module)
    yield from walk.leaves("step", function)
    yield from walk.leaves("arguments", arguments)


def digests_of(leaves: Iterable[tuple[str, Leaf]]) -> dict[str, str]:
    """Return digests by name, each followed by the number of elements; those of a set's members are one.

    Raises:
        TargetError: the bits of a tensor cannot be read.
    """
    found: dict[str, list[str]] = {}
    for name, leaf in leaves:
        try:
            found.setdefault(name, []).append(f"{digest_of(leaf)}/{_elements(leaf)}")
        except (RuntimeError, TypeError, ValueError) as failure:
            raise TargetError(f"{name} cannot be compared: its bits cannot be read ({described(failure)})") from failure
    return {name: own[0] if len(own) == 1 else _joined(sorted(own)) for name, own in found.items()}


def as_one(digests: Mapping[str, str]) -> dict[str, str]:
    """Return one digest in the place of many, of the same form; none where there are none."""
    return {"output": _joined(f"{name}={digest}" for name, digest in digests.items())} if digests else {}


def digest_of(leaf: Leaf) -> str:
    """Identity of the bits, type and shape of a tensor or an array, or of values and their types."""
    found = hashlib.blake2b(digest_size=16)
    if isinstance(leaf, Values):
        for key, value in leaf.items:
            found.update(f"{key}:{type(value).__name__}:".encode() + _bytes_of(value) + b"\n")
        return found.hexdigest()
    is_nested = isinstance(leaf, torch.Tensor) and leaf.is_nested and leaf.layout == torch.strided  # it has no shape
    found.update(f"{leaf.dtype}{'' if is_nested else tuple(leaf.shape)}".encode())
    for part in _dense(leaf) if isinstance(leaf, torch.Tensor) else (np.ascontiguousarray(leaf),):
        found.update(part.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _dense(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield arrays on the host that hold every bit of a tensor."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - a subclass may answer otherwise than by its bits
        plain = tensor.detach()
        if plain.is_nested:
            yield np.array([own.numel() for own in plain.unbind()])
            yield from (part for own in plain.unbind() for part in _dense(own))
        elif plain.is_quantized:
            yield from _dense(plain.int_repr())
        elif plain.layout == torch.sparse_coo:
            yield from (part for own in (plain._indices(), plain._values()) for part in _dense(own))  # noqa: SLF001
        elif plain.layout != torch.strided:
            yield from _dense(plain.to_dense())
        else:
            if plain.numel() and not plain.untyped_storage().nbytes():
                raise ValueError("its memory was given back")
            plain = plain.resolve_conj().resolve_neg()
            plain = torch.view_as_real(plain) if plain.is_complex() else plain
            yield plain.cpu().contiguous().flatten().view(torch.uint8).numpy()


def _bytes_of(value: Any) -> bytes:
    """Return a value's bits; of a float all 64."""
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<2d", value.real, value.imag)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return (int.__repr__(value) if isinstance(value, int) else repr(value)).encode()


def _elements(leaf: Leaf) -> int:
    if isinstance(leaf, Values):
        return len(leaf.items)
    return leaf.numel() if isinstance(leaf, torch.Tensor) else leaf.size


def _joined(texts: Iterable[str]) -> str:
    """Return the digest of digests, with the sum of their elements."""
    joined = list(texts)
    digest = hashlib.blake2b("\n".join(joined).encode(), digest_size=16).hexdigest()
    return f"{digest}/{sum(int(text.rpartition('/')[2]) for text in joined)}"
