"""Tensors compared bit by bit. There is no tolerance."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between two sets of tensors.

    Attributes:
        seed, step: position in the replay; for the state, ``step`` is the last one.
        tensor: ``logits``, ``output[1]``, or the name of a state tensor.
        index: of the first differing element.
        expected, got: its values.
        largest_ulp: largest distance over the tensor, in units in the last place; None if not floating point.
        share: share of the tensor's elements that differ.
    """

    seed: int
    step: int
    tensor: str
    index: tuple[int, ...]
    expected: float | int | bool
    got: float | int | bool
    largest_ulp: int | None
    share: float

    def __str__(self) -> str:
        return f"seed {self.seed}, step {self.step}: {self.where}"

    @property
    def where(self) -> str:
        """Position and size of the difference in the tensors."""
        ulp = "" if self.largest_ulp is None else f", at most {self.largest_ulp} ulp apart"
        return (
            f"{self.tensor}{list(self.index)} is {self.got!r} "
            f"instead of {self.expected!r}{ulp}, {self.share:.2%} of its elements differ"
        )


def difference(
    expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor], seed: int, step: int
) -> Mismatch | None:
    """Return the first difference between the bits of ``got`` and ``expected``; None if all are equal."""
    if expected.keys() != got.keys():
        return Mismatch(seed, step, "number of outputs", (), len(expected), len(got), None, 1.0)
    for name, reference in expected.items():
        if mismatch := first_difference(name, reference, got[name], seed, step):
            return mismatch
    return None


def bits_digest(sets: Iterable[Mapping[str, torch.Tensor]]) -> str:
    """Return a digest of the names, shapes, types and bits of all tensors."""
    digest = hashlib.sha256()
    for tensors in sets:
        for name, tensor in tensors.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def same_bits(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, type and bits."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    return torch.equal(bits_of(expected), bits_of(got))


def first_difference(name: str, expected: torch.Tensor, got: torch.Tensor, seed: int, step: int) -> Mismatch | None:
    """Return the first difference of two tensors; None if they have the same bits."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return Mismatch(seed, step, f"{name} (shape or dtype)", (), expected.numel(), got.numel(), None, 1.0)
    if same_bits(expected, got):
        return None
    wrong = (bits_of(expected) != bits_of(got)).reshape(*expected.shape, -1).any(-1)
    index = tuple(int(position) for position in wrong.nonzero()[0])
    return Mismatch(
        seed,
        step,
        name,
        index,
        expected[index].item(),
        got[index].item(),
        _largest_ulp(expected, got),
        float(wrong.sum()) / wrong.numel(),
    )


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """View the tensor as integers, so that NaN patterns and signed zeros count."""
    contiguous = tensor.detach().contiguous()
    if contiguous.is_complex():
        contiguous = torch.view_as_real(contiguous)
    return contiguous.view(_INTEGERS[contiguous.element_size()])


def _largest_ulp(expected: torch.Tensor, got: torch.Tensor) -> int | None:
    if not expected.is_floating_point():
        return None
    both = ~(expected.isnan() | got.isnan())
    if not both.any():
        return None
    distance = _ordered(expected)[both] - _ordered(got)[both]
    return int(distance.abs().max())


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Map floats to integers so that neighbours differ by one; both zeros map to 0."""
    bits = bits_of(tensor)
    sign = torch.iinfo(bits.dtype).min
    magnitude = (bits & ~torch.tensor(sign, dtype=bits.dtype, device=bits.device)).to(torch.int64)
    return torch.where(bits < 0, -magnitude, magnitude)
