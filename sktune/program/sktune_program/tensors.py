"""Outputs and state of a program's decode step, found without knowledge of the program, and digests of their bits."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .errors import TargetError, described
from .object_graph import Leaf, Values, Walk, numpy_types, state_walk
from .torch_private import resolve, sparse_parts, tree_leaves

Named = Iterator[tuple[str, Leaf]]


def signature_of(arguments: Any) -> str:
    """Return the types and shapes of the tensors in a call's arguments, for which a static graph is compiled."""
    leaves = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return " ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}".replace(" ", "") for leaf in leaves)


def outputs_of(output: Any) -> Named:
    """Yield the tensors, arrays, numbers and strings that a step returned."""
    return Walk(values=True).leaves("output", output)


def state_of(module: nn.Module, arguments: Any, function: Callable[..., Any] | None = None) -> Named:
    """Yield the tensors and arrays that may outlive a step, without parameters, which a decode step only reads.

    Args:
        module: the tree that the step runs; searched for buffers, attributes of modules and their classes, and global
            variables used by functions of its files.
        arguments: of the step.
        function: the step, whose closure may hold state.
    """
    walk = state_walk(module, function)
    yield from walk.leaves("model", module)
    yield from walk.leaves("step", function)
    yield from walk.leaves("arguments", arguments)


def digests_of(leaves: Iterable[tuple[str, Leaf]]) -> dict[str, str]:
    """Return digests by name, each followed by the number of elements; leaves of one name share a digest.

    Raises:
        TargetError: the bits of a tensor cannot be read.
    """
    digests: dict[str, list[str]] = {}
    for name, leaf in leaves:
        try:
            digest = digest_of(leaf)
        except (RuntimeError, TypeError, ValueError) as failure:  # tensors of a kind whose memory torch does not give
            raise TargetError(f"{name} cannot be compared: its bits cannot be read ({described(failure)})") from failure
        if isinstance(leaf, Values):
            elements = len(leaf.items)
        else:
            elements = int(leaf.numel() if isinstance(leaf, torch.Tensor) else leaf.size)
        digests.setdefault(name, []).append(f"{digest}/{elements}")
    return {name: own[0] if len(own) == 1 else _joined(sorted(own)) for name, own in digests.items()}


def as_one(digests: Mapping[str, str]) -> dict[str, str]:
    """Combine many digests into one of the same form; empty if there are none."""
    return {"output": _joined(f"{name}={digest}" for name, digest in digests.items())} if digests else {}


def digest_of(leaf: Leaf) -> str:
    """Return a digest of the bits, type and shape of a tensor or an array, or of values and their types."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(leaf, Values):
        for key, value in leaf.items:  # the name of a type is the same with every version of numpy
            kind = value.dtype if isinstance(value, numpy_types("generic")) else type(value).__name__
            digest.update(f"{key}:{kind}:".encode() + _bytes_of(value) + b"\n")
        return digest.hexdigest()
    is_nested = isinstance(leaf, torch.Tensor) and leaf.is_nested and leaf.layout == torch.strided  # it has no shape
    digest.update(f"{leaf.dtype}{'' if is_nested else tuple(leaf.shape)}".encode())
    if isinstance(leaf, torch.Tensor):
        for part in _dense(leaf):
            digest.update(part)
    elif leaf.dtype.hasobject:
        raise TypeError("it holds Python objects")
    else:
        (array_type,) = numpy_types("ndarray")
        digest.update(array_type.tobytes(leaf))
    return digest.hexdigest()


def _dense(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield the memory on the host, as buffers, that together holds every bit of a tensor. It needs no numpy."""
    with resolve("DisableTorchFunctionSubclass")():  # a subclass may return something other than its bits
        plain = tensor.detach()
        if plain.is_nested:
            yield str([inner.numel() for inner in plain.unbind()]).encode()
            yield from (part for inner in plain.unbind() for part in _dense(inner))
        elif plain.is_quantized:
            yield from _dense(plain.int_repr())
        elif plain.layout == torch.sparse_coo:
            yield from (part for inner in sparse_parts(plain) for part in _dense(inner))
        elif plain.layout != torch.strided:
            yield from _dense(plain.to_dense())
        else:
            if plain.numel() and not plain.untyped_storage().nbytes():
                raise ValueError("its memory was freed")
            plain = plain.resolve_conj().resolve_neg()
            plain = torch.view_as_real(plain) if plain.is_complex() else plain
            flat = plain.cpu().contiguous().flatten().view(torch.uint8)
            if flat.numel():  # it lives until the next part is asked for
                yield (ctypes.c_char * flat.numel()).from_address(flat.data_ptr())


def _bytes_of(value: Any) -> bytes:
    """Return a value's bits, for a float all 64."""
    if isinstance(value, numpy_types("generic")):
        bits: bytes = value.tobytes()
        return bits
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<2d", value.real, value.imag)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return (int.__repr__(value) if isinstance(value, int) else repr(value)).encode()


def _joined(texts: Iterable[str]) -> str:
    """Return the digest of digests, with the sum of their elements."""
    lines = list(texts)
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
    return f"{digest}/{sum(int(line.rpartition('/')[2]) for line in lines)}"
