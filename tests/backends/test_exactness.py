"""Every claim of exactness is tested: compiled into chains that allow contraction, on adversarial values."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from sktune.backends.inductor import exactness
from sktune.backends.inductor.backend import InductorBackend
from sktune.backends.inductor.exactness import bit_changing_operators, dispatched
from sktune.backends.inductor.info import EXACT
from sktune.core.plan import Option, Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.measure.bits import bits_of
from sktune.measure.devices import make_deterministic
from sktune.program.sktune_program.inductor.numerics import (
    FUNCTIONS,
    FUNCTIONS_ON_GPU,
    MATMULS,
    NARROW,
    REDUCTIONS,
    WIDE,
    is_function_kept,
)
from sktune.program.sktune_program.inductor.options import with_defaults
from sktune.program.sktune_program.inductor.versions import COMPARES_LONG_INTEGERS_SINCE, ROUNDS_FACTORS_SINCE
from sktune.targets.base import Target
from sktune.targets.tracing import trace_layout

aten = torch.ops.aten
Tensor = torch.Tensor
Body = Callable[..., Any]
Cases = Mapping[str, Body]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FLOATS = (*WIDE, *NARROW)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
LENGTH = 40_009
TAIL = 13
"""Elements of a row that is too short for a vector."""
DRAWS = 4


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """Decode without autograd, like a worker, and with a clean compiler."""
    torch._dynamo.reset()
    make_deterministic(DEVICE)
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Bodies(nn.Module):
    """Runs every case on the same inputs."""

    def __init__(self, cases: Cases, prologue: Body | None) -> None:
        super().__init__()
        self.bodies, self.prologue = tuple(cases.values()), prologue

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        if self.prologue is not None:
            inputs = (self.prologue(*inputs), *inputs)
        return tuple(body(*inputs) for body in self.bodies)


def compared(
    cases: Cases, draws: Sequence[tuple[Tensor, ...]], prologue: Body | None = None, **options: Option
) -> dict[str, str]:
    """Compile the cases as one scope that is claimed to be exact; return those that differ from eager execution.

    On a GPU, and with versions of torch of which less is claimed, the others are left out.
    """
    draws = [tuple(value.to(DEVICE) for value in draw) for draw in draws]
    if DEVICE == "cuda" or not COMPARES_LONG_INTEGERS_SINCE <= exactness.TORCH < ROUNDS_FACTORS_SINCE:
        cases = claimed_of(cases, draws[0], prologue, with_defaults({**EXACT, **options}))
    module = nn.Module()
    module.inner = inner = Bodies(cases, prologue)
    target = Target(module, lambda *inputs: inner(*inputs), lambda seed, steps: [draws[0]] * steps)
    backend = InductorBackend(target, trace_layout(target, SpaceSpec()), draws[0])
    plan = Plan((Scope("inner", "inner", tuple(sorted({**EXACT, **options}.items()))),))
    assert backend.exactness(plan) == {"inner": ()}
    compiled = backend.compile(plan)
    assert compiled.is_exact
    compiled.step.prepare()
    differences: dict[str, str] = {}
    for inputs in draws:
        expected, actual = inner(*inputs), compiled.step.run(*inputs)
        for name, one, other in zip(cases, expected, actual, strict=True):
            if difference := _difference(one, other):
                differences.setdefault(name, difference)
    return differences


def claimed_of(cases: Cases, inputs: tuple[Tensor, ...], prologue: Body | None, options: Mapping[str, Option]) -> Cases:
    """Return the cases that are claimed to be exact here; print the others with the reason."""
    claimed: dict[str, Body] = {}
    for name, body in cases.items():
        values = inputs if prologue is None else (prologue(*inputs), *inputs)
        if doubts := bit_changing_operators(*region_of(body, *values), options, DEVICE):
            print(f"not claimed: {name}: {doubts[0]}")
        else:
            claimed[name] = body
    return claimed


def _difference(expected: Tensor, actual: Tensor) -> str:
    assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
    expected, actual = expected.contiguous().flatten(), actual.contiguous().flatten()
    if expected.is_floating_point():
        both = expected.isnan() & actual.isnan()
        expected, actual = expected.masked_fill(both, 0.0), actual.masked_fill(both, 0.0)
    differing = (bits_of(expected) != bits_of(actual)).view(len(expected), -1).any(1)
    if not differing.any():
        return ""
    index = int(differing.nonzero()[0])
    return (
        f"{expected[index].item()!r} became {actual[index].item()!r}; {int(differing.sum())} of {len(expected)} differ"
    )


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return numbers of all magnitudes, near ties of rounding, denormals, zeros of both signs, infinities and NaN."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point:
        largest = torch.iinfo(dtype).max
        # Products of two and a few sums do not overflow; unsigned numbers may wrap.
        most = largest if dtype == torch.uint8 else math.isqrt(largest // 2) - 1
        few = torch.randint(0 if dtype == torch.uint8 else -min(most, 9), min(most, 9) + 1, shape, dtype=dtype)
        many = torch.randint(0 if dtype == torch.uint8 else -most, most, shape, dtype=dtype)
        return torch.where(torch.rand(shape) < 0.5, few, many)
    limits = torch.finfo(dtype)
    normal = torch.randn(shape, dtype=torch.float64)
    magnitude = torch.randint(int(math.log2(limits.tiny)) - 12, int(math.log2(limits.max)) + 1, shape)
    ties = torch.randint(-33, 34, shape) / 2 * (1 + torch.randint(-1, 2, shape) * 2.0**-7)
    special = torch.tensor([
        0.0, -0.0, math.inf, -math.inf, math.nan, limits.tiny, -limits.tiny, limits.max, limits.min, 1.0, -1.0,
        limits.tiny * limits.eps, -limits.tiny * limits.eps, 1 + limits.eps,
    ], dtype=torch.float64)  # fmt: skip
    kind = torch.randint(0, 8, shape)
    values = torch.where(kind == 0, normal * torch.exp2(torch.randint(-8, 9, shape)), normal)
    values = torch.where(kind == 1, normal * torch.exp2(magnitude.double()), values)
    values = torch.where(kind == 2, ties.double(), values)
    return torch.where(kind == 3, special[torch.randint(0, len(special), shape)], values).to(dtype)


def all_of(dtype: torch.dtype) -> Tensor:
    """Return all 65,536 values of a 16-bit type, padded to fill rows of ``TAIL``."""
    count = -(-65_536 // TAIL) * TAIL
    return torch.arange(count).to(torch.int32).to(torch.int16).view(dtype)


def in_rows(value: Tensor) -> Tensor:
    """Return the same elements in rows shorter than a vector, with gaps in memory between them."""
    return functional.pad(value[: len(value) // TAIL * TAIL].view(-1, TAIL), (0, 3))[:, :TAIL]


ROUNDED: Cases = {
    "a product and a sum": lambda x, y, z: x * y + z,
    "a difference and a product": lambda x, y, z: x - x * y,
    "sums": lambda x, y, z: ((x + y) - x) - y + z,
    "numbers": lambda x, y, z: (x * 0.1 + 0.5) * y / 3.1 - 1.0 + 0.0,
    "a number before": lambda x, y, z: (1.0 - x * y) * z,
    "a number by": lambda x, y, z: 3.1 / x + y,
    "negation of differences": lambda x, y, z: -(x - y) + -(0.0 - z),
    "no change": lambda x, y, z: (x * 1.0 / 1.0 + 0.0) * 0.0,
    "magnitudes": lambda x, y, z: (x * y).abs() - z.abs(),
    "relu": lambda x, y, z: torch.relu(x * y) + torch.relu(z),
    "relu alone": lambda x, y, z: torch.relu(x),
    "squares": lambda x, y, z: x.square() - y.square() + z,
    "powers": lambda x, y, z: x**2 + y**2.0 - z,
    "quotients": lambda x, y, z: x / y / z,
    "a quotient and back": lambda x, y, z: x / y * y,
    "quotients by a constant": lambda x, y, z: (
        x / torch.full((1,), 3.0, dtype=x.dtype, device=x.device) + y / z.clone().copy_(torch.full_like(z, 7.0))
    ),
    "reciprocals": lambda x, y, z: x.reciprocal() * y + z.reciprocal(),
    "in place": lambda x, y, z: x.clone().mul_(y).add_(z).sub_(x).div_(y),
}
RSQRT: Cases = {
    "rsqrt": lambda x, y, z: torch.rsqrt(x) * y + torch.rsqrt(y.abs()) * z,
    "a root as a power": lambda x, y, z: torch.pow(x, -0.5) * y + z.abs() ** -0.5,
}
COMPARED: Cases = {
    "orders": lambda x, y, z: ((x * y > z) & (x <= y)) | ((x + z < y) ^ (z >= x)),
    "equality": lambda x, y, z: (x * y == z * y) | (x != x),
    "numbers": lambda x, y, z: (x > 0.5) | (x * y <= -1.0) | (y == 0.0),
    "kinds": lambda x, y, z: torch.isnan(x * y - z) | torch.isinf(x * y + z),
    "logic": lambda x, y, z: torch.logical_xor(torch.logical_and(x, y), torch.logical_or(x * y, torch.logical_not(z))),
}
MOVED: Cases = {
    "choice": lambda x, y, z: torch.where(x > y, x * y, z) * 3.1,
    "filling with infinity": lambda x, y, z: (x * y).masked_fill(x > z, -math.inf) + y,
    "constants": lambda x, y, z: (
        torch.full((1,), 0.5, dtype=x.dtype, device=x.device) * x + torch.zeros_like(x) - torch.ones_like(y)
    ),
    "new constants": lambda x, y, z: x.new_full((1,), 2.0) * x - x.new_ones((1,)) * y + x.new_zeros((1,)),
    "more constants": lambda x, y, z: (
        torch.full_like(x, 0.25) * y + torch.zeros(1, dtype=x.dtype, device=x.device)
        - torch.ones(1, dtype=x.dtype, device=x.device) * x
        + torch.scalar_tensor(1.5, dtype=x.dtype, device=x.device) * z
    ),
    "fills": lambda x, y, z: (
        torch.empty_like(x).fill_(0.5) * y + torch.empty(1, dtype=x.dtype, device=x.device).zero_()
    ),
    "new fills": lambda x, y, z: x.new_empty((1,)).fill_(1.5) * x + x.new_empty_strided((1,), (1,)).fill_(0.5),
    "strided fills": lambda x, y, z: torch.empty_strided((1,), (1,), dtype=x.dtype, device=x.device).fill_(2.0) * y - z,
    "copies": lambda x, y, z: torch.empty_like(x).copy_(x * y) + y.clone().detach() - aten.alias(z),
    "a tensor of numbers": lambda x, y, z: torch.tensor([0.5], dtype=x.dtype, device=x.device) * x + y,
    "a lifted tensor": lambda x, y, z: aten.lift_fresh(torch.tensor([1.5], dtype=x.dtype, device=x.device)) * x - y,
    "a lifted copy": lambda x, y, z: aten.lift_fresh_copy(torch.tensor([1.5], dtype=x.dtype, device=x.device)) * x - y,
    "an assertion": lambda x, y, z: _asserted(x * y) + z,
}  # fmt: skip


def _asserted(value: Tensor) -> Tensor:
    aten._assert_tensor_metadata(value, dtype=value.dtype)
    torch._assert_async(value.new_ones((), dtype=torch.bool))
    return value


def _written(value: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    copy = value.clone()
    write(copy)
    return copy


PLANE = (48, 29)
"""Rows and columns of the tensors for ``PLACED``."""
PLACED: Cases = {
    "as_strided": lambda x, y, i: aten.as_strided(x, (20, 29), (29, 1), 58) * 3,
    "_reshape_alias": lambda x, y, i: aten._reshape_alias(x, (29, 48), (48, 1)) * 3,
    "_unsafe_view": lambda x, y, i: aten._unsafe_view(x * y, (29, 48)) * 3,
    "cat": lambda x, y, i: torch.cat((x * y, y[:5], x), 0) * 3,
    "stack": lambda x, y, i: torch.stack((x * y, y), 1) * 3,
    "pad": lambda x, y, i: functional.pad(x * y, (3, 2), value=1.0) * 3,
    "diagonal": lambda x, y, i: (x * y).diagonal() * 3,
    "embedding": lambda x, y, i: functional.embedding(i, x) * 3,
    "expand": lambda x, y, i: (x[:1] * y[:1]).expand(PLANE) * y,
    "flip": lambda x, y, i: (x * y).flip(1) * y,
    "gather": lambda x, y, i: (x * y).gather(0, i[:, None].expand(-1, 29)) * 3,
    "index": lambda x, y, i: (x * y)[i] * 3,
    "index_copy": lambda x, y, i: (x * y).index_copy(0, i, y[:11]) * 3,
    "index_select": lambda x, y, i: (x * y).index_select(0, i) * 3,
    "index_put": lambda x, y, i: _written(x * y, lambda copy: copy.index_put_((i,), y[:11])) * 3,
    "scatter": lambda x, y, i: (x * y).scatter(0, i[:, None].expand(-1, 29), y[:11]) * 3,
    "permute": lambda x, y, i: (x * y).view(6, 8, 29).permute(2, 0, 1) * 3,
    "repeat": lambda x, y, i: (x * y).repeat(2, 3) * 3,
    "roll": lambda x, y, i: (x * y).roll(5, 0) * y,
    "select": lambda x, y, i: (x * y).select(1, 3) * y.select(1, 4),
    "select_scatter": lambda x, y, i: (x * y).select_scatter(y[0], 0, 7) * y,
    "slice": lambda x, y, i: (x * y)[3:40:2, 1:] * 3,
    "slice_scatter": lambda x, y, i: (x * y).slice_scatter(y[:5], 0, 3, 8) * y,
    "written slice": lambda x, y, i: _written(x * y, lambda copy: copy[5:9].copy_(y[:4])) * y,
    "split": lambda x, y, i: (x * y).split(16)[1] * y[:16],
    "split_with_sizes": lambda x, y, i: (x * y).split((8, 40))[1] * y[8:],
    "unsafe_split": lambda x, y, i: torch.unsafe_split(x * y, 16)[2] * y[:16],
    "squeeze": lambda x, y, i: (x * y).unsqueeze(1).squeeze(1) * y,
    "t": lambda x, y, i: (x * y).t() * 3,
    "transpose": lambda x, y, i: (x * y).transpose(0, 1) * y.transpose(0, 1),
    "tril": lambda x, y, i: (x * y).tril(2) * y,
    "triu": lambda x, y, i: (x * y).triu(-2) * y,
    "unbind": lambda x, y, i: (x * y).unbind(0)[4] * y[0],
    "any and all": lambda x, y, i: (x * y > 0).any(1) | (x <= y).all(1),
    "any and all numbers": lambda x, y, i: x.any(1) ^ (x * y).all(1),
    "unfold": lambda x, y, i: (x * y).unfold(1, 4, 3) * 3,
}
WHOLE: Cases = {
    "sums": lambda x, y, z: x * y + x - y,
    "multiples": lambda x, y, z: torch.add(x, y, alpha=3) + torch.sub(y, x, alpha=2),
    "squares": lambda x, y, z: x.square() + y**2,
    "powers": lambda x, y, z: (x % 4) ** 3 + (y % 3) ** (x % 3),
    "numbers before": lambda x, y, z: 3 - x,
    "signs": lambda x, y, z: (-x).abs() * torch.sign(y),
    "relu": lambda x, y, z: torch.relu(x * y),
    "quotients": lambda x, y, z: x // y.clamp_min(1) + z // 7 + torch.div(x, 3, rounding_mode="trunc"),
    "remainders": lambda x, y, z: x % y.clamp_min(1) - z % 7,
    "rounded quotients": lambda x, y, z: (
        torch.div(x, y.clamp_min(2), rounding_mode="floor") - torch.div(x, y.clamp_min(2), rounding_mode="trunc")
    ),
    "limits": lambda x, y, z: torch.maximum(x.clamp(1, 5), y.clamp_max(4)) - x.clamp(y, y),
    "lower limits": lambda x, y, z: torch.minimum(z.clamp_min(0), x),
    "bits": lambda x, y, z: ~(x & z) ^ (y | z),
    "positions": lambda x, y, z: torch.arange(x.shape[-1], device=x.device) * 3 + x,
    "masks": lambda x, y, z: (torch.arange(x.shape[-1], device=x.device) <= y) & (z > 3),
    "truth values": lambda x, y, z: (x > y) * x + (y == z),
    "true quotients": lambda x, y, z: x / y + x / 7,
    "true functions": lambda x, y, z: torch.rsqrt(z) * torch.reciprocal(y),
    "orders": lambda x, y, z: ((x * y > z) & (x <= y)) | (z < 5) | (z >= y) | (x != z),
    "beside fractions": lambda x, y, z: (x > 0.5) | (z == 16777217.0) | (z <= 100.5),
    "logic": lambda x, y, z: torch.logical_xor(torch.logical_and(x, y), torch.logical_or(z, torch.logical_not(y))),
    "kinds": lambda x, y, z: torch.isnan(x) | torch.isinf(y),
    "choice": lambda x, y, z: torch.where(x > y, x, z).masked_fill(x == y, 7),
}  # fmt: skip
NEGATIVE: Cases = {
    "divisors": lambda x, y, z: x // (-7) + x % (-7) + torch.div(z, -7, rounding_mode="trunc"),
    "operands": lambda x, y, z: x // y.clamp_max(-2) - x % y.clamp_max(-2),
    "numbers": lambda x, y, z: torch.rsub(x, 7, alpha=3) + -100 % y.clamp_min(1),
}
TRUTH: Cases = {
    "bits": lambda x, y, z: (x & y | ~z) ^ y,
    "sums": lambda x, y, z: (x + y) * z,
    "limits": lambda x, y, z: torch.maximum(x, y) > torch.minimum(y, ~z),
    "as numbers": lambda x, y, z: x.float() * 2.5 - y.to(torch.int8) + z,
    "any and all": lambda x, y, z: (x & y).any(-1, keepdim=True) ^ (x | y).all(-1, keepdim=True),
    "choice": lambda x, y, z: torch.where(x, y, ~z).masked_fill(y & z, True),
    "quotients": lambda x, y, z: x / y,
    "beside numbers": lambda x, y, z: (x == 1) | (y > 0.5) | (z * 3 > 2),
}


def _chain(function: Body) -> Body:
    return lambda x, y: function(x) * y + x


def _after_a_product(function: Body) -> Body:
    return lambda x, y: function(x * y) * y


UNARY: Cases = {
    "exp": torch.exp, "log": torch.log, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": functional.silu,
    "softplus": functional.softplus, "sqrt": torch.sqrt, "cos": torch.cos, "sin": torch.sin, "erf": torch.erf,
    "hardswish": functional.hardswish, "rsqrt": torch.rsqrt, "gelu": functional.gelu,
    "gelu tanh": partial(functional.gelu, approximate="tanh"), "clamp": lambda x: x.clamp(-1.0, 0.0),
    "clamp_min": lambda x: x.clamp_min(0.0), "clamp_max": lambda x: x.clamp_max(-0.0),
    "reciprocal": torch.reciprocal, "square": torch.square, "relu": torch.relu, "bool": lambda x: x.bool(),
    "expm1": torch.expm1, "log1p": torch.log1p, "elu": functional.elu, "mish": functional.mish,
    "leaky_relu": functional.leaky_relu, "pow cubed": lambda x: x**3, "pow fractional": lambda x: x.abs() ** 1.7,
    "pow root": lambda x: x**-0.5, "pow square root": lambda x: x**0.5,
    "tenths": lambda x: x * 0.1, "large multiples": lambda x: x * 1e6, "thirds": lambda x: x / 3.0,
}  # fmt: skip
BINARY: Cases = {
    "maximum": lambda x, y: torch.maximum(x * y, y) + x,
    "minimum": lambda x, y: torch.minimum(x * y, y) * x,
    "clamp between": lambda x, y: (x * y).clamp(y, None) + y,
}


def functions(dtype: torch.dtype) -> Cases:
    """Return the functions claimed for ``dtype``, each with something to fuse with."""
    claimed = {name for table in (FUNCTIONS, exactness.ENUMERATED) for name in table if dtype in table[name]}
    unary = {name: body for name, body in UNARY.items() if name.split()[0] in claimed or name not in _TABLED}
    chains = {name: _chain(body) for name, body in unary.items()}
    if dtype in NARROW:  # the operands are all values of the type
        return {**chains, **BINARY}
    return {**chains, **{f"{name} of a product": _after_a_product(body) for name, body in unary.items()}, **BINARY}


_TABLED = {"gelu tanh", *FUNCTIONS, *exactness.ENUMERATED}

REDUCED: Cases = {
    "sum": lambda p, x, w: p.sum(-1, keepdim=True) * x + 1,
    "sum across": lambda p, x, w: p.t().sum(1),
    "sum of rows": lambda p, x, w: p.sum(0),
    "sum with gaps": lambda p, x, w: p[:, ::2].sum(1) + x[:, 1::2].sum(1),
    "sum of repeats": lambda p, x, w: p[:, :1].expand(-1, 257).sum(1),
    "attention with gaps": lambda p, x, w: functional.scaled_dot_product_attention(
        *(v[:40, :128].view(1, 5, 8, 128) for v in (p, w, x))
    ),
    "whole sum": lambda p, x, w: p.sum(),
    "sum of mixed layouts": lambda p, x, w: (x.t() + w.t().contiguous()).sum(0),
    "sum of truth values": lambda p, x, w: (x > w).sum(1),
    "sum in another type": lambda p, x, w: p.sum(1, dtype=torch.float64 if p.dtype == torch.float64 else torch.float32),
    "mean": lambda p, x, w: p.mean(-1),
    "prod": lambda p, x, w: p.prod(1),
    "var": lambda p, x, w: p.var(-1),
    "std": lambda p, x, w: p.std(0),
    "var_mean": lambda p, x, w: torch.var_mean(p, -1)[0],
    "std_mean": lambda p, x, w: torch.std_mean(p, 0)[1],
    "logsumexp": lambda p, x, w: p.logsumexp(1),
    "cumsum": lambda p, x, w: p.cumsum(1),
    "cumprod": lambda p, x, w: p.cumprod(1),
    "softmax": lambda p, x, w: p.softmax(-1) * x + w,
    "softmax across": lambda p, x, w: p.softmax(0),
    "softmax of nothing": lambda p, x, w: p.masked_fill(w > -6, -math.inf).softmax(-1),
    "log_softmax": lambda p, x, w: p.log_softmax(-1),
    "layer_norm": lambda p, x, w: functional.layer_norm(p, (p.shape[1],), w[0], w[1]),
    "group_norm": lambda p, x, w: functional.group_norm(p.view(5, 12, -1), 4),
    "rms_norm": lambda p, x, w: functional.rms_norm(p, (p.shape[1],), w[0]),
    "norm": lambda p, x, w: torch.linalg.vector_norm(p, dim=1),
    "amax": lambda p, x, w: p.amax(1),
    "amin": lambda p, x, w: p.amin(0),
    "argmax": lambda p, x, w: p.argmax(1),
    "argmin": lambda p, x, w: p.argmin(),
    "max": lambda p, x, w: p.max(1)[1],
    "min": lambda p, x, w: p.min(),
    "topk": lambda p, x, w: p.topk(5)[0],
    "sort": lambda p, x, w: torch.sort(p, dim=1, stable=True)[1],
    "index_add": lambda p, x, w: p.index_add(0, (w[0, :5] > 0).long(), w[:5]),
    "scatter_add": lambda p, x, w: p.scatter_add(0, (w[:5] > 0).long(), w[:5]),
    "scatter_reduce": lambda p, x, w: p.scatter_reduce(0, (w[:5] > 0).long(), w[:5], "sum"),
    "attention": lambda p, x, w: functional.scaled_dot_product_attention(*(v.view(1, 5, 12, -1) for v in (p, w, x))),
    "attention with a mask": lambda p, x, w: functional.scaled_dot_product_attention(
        p.view(1, 5, 12, -1),
        w.view(1, 5, 12, -1),
        x.view(1, 5, 12, -1),
        x[:1, None, None, :12].expand(1, 1, 12, 12) > 0,
    ),
    "safe softmax": lambda p, x, w: aten._safe_softmax(p, -1) * x,
}
HISTOGRAM: Cases = {"histc": lambda p, x, w: torch.histc(p, 20, -3, 3)}
PRODUCTS: Cases = {
    "mm": lambda p, x, w: p @ w.t() + 1,
    "mm across": lambda p, x, w: x.t() @ p,
    "one row": lambda p, x, w: p[:1] @ w.t(),
    "one column": lambda p, x, w: p @ w[:1].t(),
    "mv": lambda p, x, w: p @ w[0],
    "dot": lambda p, x, w: torch.dot(p[0], w[1]),
    "linear": lambda p, x, w: functional.linear(p, w, w.view(-1)[:60]),
    "addmm": lambda p, x, w: torch.addmm(x.view(-1)[: 60 * 60].view(60, 60), p, w.t(), beta=0.3, alpha=1.7),
    "a product and a sum": lambda p, x, w: x.view(-1)[: 60 * 60].view(60, 60) + p @ w.t(),
    "two products": lambda p, x, w: p @ w.t() + x @ w.t(),
    "bmm": lambda p, x, w: torch.bmm(p.view(5, 12, -1), w.view(5, 12, -1).transpose(1, 2)),
    "bmm of rows": lambda p, x, w: torch.bmm(p.view(60, 1, -1), w.view(60, -1, 1)),
    "baddbmm": lambda p, x, w: torch.baddbmm(w.view(-1)[:12], p.view(5, 12, -1), w.view(5, 12, -1).transpose(1, 2)),
    "addbmm": lambda p, x, w: torch.addbmm(w.view(-1)[:12], p.view(5, 12, -1), w.view(5, 12, -1).transpose(1, 2)),
    "mm of slices": lambda p, x, w: p[:, :128] @ x[::2, 128:].t() + w[:, 64:192] @ w[::2, :128].t(),
    "mm of repeats": lambda p, x, w: p[:1].expand(60, -1) @ w.t() + x[1:2].expand(60, -1) @ p.t(),
    "linear of slices": lambda p, x, w: functional.linear(p[::3, 64:192], (w + x)[::2, :128], w[0, :30]),
    "addmm of slices": lambda p, x, w: torch.addmm(w[:20, :30], p[::3, :128], x[::2, 128:].t(), beta=0.3, alpha=1.7),
    "bmm of slices": lambda p, x, w: torch.bmm(
        p.view(5, 12, -1)[:, ::2, 64:192], (w * x).view(5, 12, -1)[:, 2:, :128].transpose(1, 2)
    ),
    "bmm of repeats": lambda p, x, w: torch.bmm(
        p[None, :12].expand(5, -1, -1), w.view(5, 12, -1)[:1].expand(5, -1, -1).transpose(1, 2)
    ),
    "baddbmm of slices": lambda p, x, w: torch.baddbmm(
        w[:12, :12], p.view(5, 12, -1)[..., :128], w.view(5, 12, -1)[..., 128:].transpose(1, 2)
    ),
    "angles of positions": lambda p, x, w: (
        (p[0, None, :, None].float().expand(3, -1, 1) @ w[:3, None, :5].float()).transpose(1, 2).cos()
    ),
    "mv of slices": lambda p, x, w: p[::2, :128] @ w[0, 64:192] + x[1::2, 128:] @ p[3, :128],
    "addmv": lambda p, x, w: torch.addmv(x.view(-1)[:60], p, w[0], alpha=0.7),
}  # fmt: skip
GROUPED: Cases = {} if DEVICE == "cpu" and exactness.TORCH <= (2, 8) else {
    "_grouped_mm": lambda p, x, w: torch._grouped_mm(
        p, w.view(-1)[: 2 * WIDTH * 16].view(2, WIDTH, 16),
        offs=torch.arange(1, 3, dtype=torch.int32, device=p.device) * 30,
    ),
}  # fmt: skip
"""torch 2.8 has a kernel for GPUs only."""
WIDTH = 256


def kept_kernels(dtype: torch.dtype) -> Cases:
    """Return the kept reductions and products, on an intermediate and two inputs."""
    return {
        **REDUCED,
        **PRODUCTS,
        **(HISTOGRAM if dtype in WIDE else {}),
        **(GROUPED if dtype == torch.bfloat16 else {}),
    }


CAST = (*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def casts() -> Cases:
    """Return casts between all types for which the result is always defined, and operators on two types."""

    def cast(source: int, target: torch.dtype) -> Body:
        return lambda *values: (values[source].to(target) + values[CAST.index(target)]).to(target)

    def back(source: int, target: torch.dtype) -> Body:
        return lambda *values: values[source].to(target).to(values[source].dtype) * values[source]

    def mixed(one: int, other: int) -> Body:
        return lambda *values: values[one] * values[other] + values[one]

    def ordered(one: int, other: int) -> Body:
        return lambda *values: (values[one] > values[other]) | (values[one] == values[other])

    cases: dict[str, Body] = {}
    for one, source in enumerate(CAST):
        for other, target in enumerate(CAST):
            is_defined = target.is_floating_point or not source.is_floating_point or target == torch.bool
            if one != other and is_defined:
                cases[f"{source} to {target}"] = cast(one, target)
            if one != other and source.is_floating_point and target.is_floating_point:
                cases[f"{source} to {target} and back"] = back(one, target)
            if one < other and source.is_floating_point:
                cases[f"{source} times {target}"] = mixed(one, other)
                cases[f"{source} beside {target}"] = ordered(one, other)
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_operators_rounded_once_keep_their_bits(dtype: torch.dtype) -> None:
    """Sums, products, quotients, comparisons and movement, in full vectors and in rows shorter than one."""
    cases = _prefixed(rounded=ROUNDED, compared=COMPARED, moved=MOVED, wide=RSQRT if dtype in WIDE else {})
    draws = [tuple(drawn(dtype, LENGTH) for _ in range(3)) for _ in range(DRAWS)]
    assert compared(cases, draws) == {}
    torch._dynamo.reset()
    assert compared({**ROUNDED, **(RSQRT if dtype in WIDE else {})}, [tuple(map(in_rows, draws[0]))]) == {}


@pytest.mark.slow
def test_integers_and_booleans_keep_their_bits() -> None:
    """Signs of quotients and remainders, wrapping bytes, and integers compared with fractions."""
    for dtype in INTEGERS:
        signed = {} if dtype == torch.uint8 else NEGATIVE
        full = (torch.iinfo(dtype).min + 1, torch.iinfo(dtype).max)
        draws = [
            (drawn(dtype, LENGTH), drawn(dtype, LENGTH), torch.randint(*full, (LENGTH,), dtype=dtype))
            for _ in range(2)
        ]  # fmt: skip
        torch._dynamo.reset()
        assert compared(_prefixed(whole=WHOLE, negative=signed), draws) == {}, dtype
    torch._dynamo.reset()
    assert compared(TRUTH, [tuple(drawn(torch.bool, LENGTH) for _ in range(3))]) == {}


@pytest.mark.slow
def test_moved_elements_keep_their_bits() -> None:
    """Every operator that moves elements, between two products."""
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        draws = [(drawn(dtype, *PLANE), drawn(dtype, *PLANE), torch.randperm(PLANE[0])[:11]) for _ in range(3)]
        torch._dynamo.reset()
        assert compared(PLACED, draws) == {}, dtype


@pytest.mark.slow
def test_fused_casts_keep_their_bits() -> None:
    """Between all types, there and back, and implicit type promotion."""
    draws = [tuple(drawn(dtype, LENGTH) for dtype in CAST) for _ in range(2)]
    for draw in draws:  # the whole range of integers, if they are only cast
        large = torch.randint(-(2**62), 2**62, (LENGTH,))
        draw[CAST.index(torch.int64)][: LENGTH // 2] = large[: LENGTH // 2] // 2
    cases = {name: body for name, body in casts().items() if "int64 to" not in name or "float" in name.split(" to ")[1]}
    assert compared(cases, draws) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_one_element_keep_their_bits(dtype: torch.dtype) -> None:
    """For 16 bits all values, in vectors and in short rows; otherwise ATen's function is used."""
    draws = [(drawn(dtype, LENGTH), drawn(dtype, LENGTH)) for _ in range(DRAWS)]
    if dtype in NARROW:
        every = all_of(dtype)
        draws = [(every, drawn(dtype, len(every))) for _ in range(2)]
    assert compared(functions(dtype), draws) == {}
    if dtype in NARROW:
        torch._dynamo.reset()
        unary = {name: body for name, body in functions(dtype).items() if name in UNARY}
        assert compared(unary, [(in_rows(x), in_rows(y)) for x, y in draws]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kept_kernels_keep_their_bits(dtype: torch.dtype) -> None:
    """Sums and products with terms of many magnitudes, after something to fuse with."""
    draws = []
    for _ in range(3):
        scale = torch.exp2(torch.randint(-4, 5, (60, WIDTH)))
        draws.append((torch.randn(60, WIDTH).to(dtype), (torch.randn(60, WIDTH) * scale).to(dtype)))
    assert compared(kept_kernels(dtype), draws, prologue=lambda x, w: x * w + x) == {}


@pytest.mark.slow
@pytest.mark.skipif(DEVICE != "cpu", reason="the option is for CPUs")
def test_a_cpp_wrapper_keeps_the_bits() -> None:
    """The option only changes how the kernels are called."""
    cases = _prefixed(rounded=ROUNDED, wide=RSQRT)
    draws = [tuple(drawn(torch.float32, LENGTH) for _ in range(3)) for _ in range(2)]
    assert compared(cases, draws, cpp_wrapper=True) == {}


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU, other arithmetic needs it as well")
def test_casts_need_emulation_only_for_16_bit_results() -> None:
    """16-bit values may be read, widened and moved without it."""
    cases: Cases = {
        "widened": lambda x, y, f: x.float() * y.float() + f,
        "promoted": lambda x, y, f: (x * f + y.float()) / f,
        "moved": lambda x, y, f: torch.where(x > y, x, y).roll(3).float() * f,
    }
    dtypes = (torch.bfloat16, torch.bfloat16, torch.float32)
    draws = [tuple(drawn(dtype, LENGTH) for dtype in dtypes) for _ in range(DRAWS)]
    assert compared(cases, draws, emulate_precision_casts=False) == {}


NOT_ON_A_CPU = {
    "_fused_rms_norm", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"
}  # fmt: skip
"""A CPU has no kernel for these: other operators are dispatched there."""


def _prefixed(**groups: Cases) -> Cases:
    return {f"{group}: {name}": body for group, cases in groups.items() for name, body in cases.items()}


def region_of(body: Body, *inputs: Any) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """Return the graph of a region that only calls ``body``, and its inputs."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"input_{index}") for index in range(len(inputs))]
    module = nn.Module()
    module.body = Bodies({"body": body}, None)  # a function itself would count as opaque to the capture
    graph.output(graph.call_module("body", tuple(placeholders)))
    return fx.GraphModule(module, graph), inputs


def operators_of(cases: Cases, *inputs: Tensor) -> set[tuple[str, torch.dtype]]:
    """Return the names of the operators that the cases dispatch, each with the type of its first tensor."""
    calls = [call for body in cases.values() for call in dispatched(*region_of(body, *inputs))]
    return {(call.name, call.tensors[0].dtype) for call in calls if call.tensors}


def test_there_is_a_case_for_every_claim() -> None:
    """A new name or type in a table needs a case that tries to refute it."""
    seen: set[tuple[str, torch.dtype]] = set()
    for dtype in FLOATS:
        x, plane = drawn(dtype, LENGTH), drawn(dtype, *PLANE)
        pointwise = _prefixed(rounded=ROUNDED, compared=COMPARED, moved=MOVED, wide=RSQRT if dtype in WIDE else {})
        seen |= operators_of(pointwise, x, x, x) | operators_of(functions(dtype), x, x)
        seen |= operators_of(PLACED, plane, plane, torch.arange(11))
        seen |= operators_of(kept_kernels(dtype), *(torch.randn(60, WIDTH).to(dtype) for _ in range(3)))
    for dtype in INTEGERS:
        x = drawn(dtype, LENGTH)
        seen |= operators_of(_prefixed(whole=WHOLE, negative={} if dtype == torch.uint8 else NEGATIVE), x, x, x)
    seen |= operators_of(TRUTH, *(drawn(torch.bool, LENGTH) for _ in range(3)))
    seen |= operators_of(casts(), *(drawn(dtype, LENGTH) for dtype in CAST))
    names = {name for name, _ in seen}
    without_kernel = NOT_ON_A_CPU if GROUPED else {*NOT_ON_A_CPU, "_grouped_mm"}
    tables = exactness.MOVEMENT | exactness.COMPARISONS | exactness.ROUNDED | exactness.ROUNDED_ON_CPU
    tables |= (
        exactness.INTEGERS | exactness.SAME_OR_CAST | {*exactness.ENUMERATED, *FUNCTIONS_ON_GPU, *MATMULS, *REDUCTIONS}
    )
    assert tables - names - without_kernel == set()
    claimed = {(name, dtype) for table in (exactness.ENUMERATED, FUNCTIONS) for name in table for dtype in table[name]}
    claimed |= {(name, dtype) for name in exactness.ROUNDED | exactness.ROUNDED_ON_CPU for dtype in WIDE}
    claimed |= {(name, dtype) for name in exactness.INTEGERS - {"arange"} for dtype in INTEGERS}
    assert claimed - seen == set()


X = torch.ones(6, 8)
NARROW_X = X.bfloat16()
WHOLE_X = X.long()
NOT_CLAIMED: Mapping[str, tuple[Body, tuple[Tensor, ...], str]] = {
    "a function that is in no table": (lambda x: x.sin().sinh(), (X,), "not in the table"),
    "powers of numbers": (lambda x: 2**x, (X,), "to the power of a number"),
    "powers of tensors": (lambda x: x**x, (X,), "to the power of a number"),
    "fractional powers of integers": (lambda i: i**0.5, (WHOLE_X,), "to the power of a number"),
    "a multiple that is added": (lambda x: torch.add(x, x, alpha=2), (X,), "in one rounding"),
    "a quotient that is rounded": (lambda x: torch.div(x, x, rounding_mode="floor"), (X,), "several steps"),
    "values that are accumulated": (
        lambda x: x.index_put((torch.arange(2),), x[:2], accumulate=True), (X,), "accumulated"
    ),
    "fractions as integers": (lambda x: x.int(), (X,), "do not fit"),
    "fractions written to integers": (lambda x, i: i.clone().copy_(x), (X, WHOLE_X), "do not fit"),
    "floating-point positions": (lambda x: x * torch.arange(8.0), (X,), "exact only on integers"),
    "complex numbers": (lambda x: torch.complex(x, x) * 2, (X,), "not covered"),
    "numbers of 8 bits": (lambda x: x.to(torch.float8_e4m3fn), (X,), "not covered"),
    "numbers that 16 bits do not hold": (lambda x: x + 0.1, (NARROW_X,), "not representable"),
    "a tensor of such numbers": (lambda x: torch.full_like(x, 0.1) * x, (NARROW_X,), "not representable"),
    "filling with such numbers": (lambda x: x.clone().fill_(257) * x, (NARROW_X,), "not representable"),
    "a scalar tensor of it": (lambda x: torch.scalar_tensor(0.1, dtype=x.dtype) * x, (NARROW_X,), "not representable"),
    "a constant that is cast": (lambda x: torch.full((8,), 0.1).double() * x, (X,), "computed ahead"),
    "a constant that is promoted": (lambda x: torch.full((8,), 0.1) * x, (X.double(),), "cast ahead"),
    "positions that wrap": (lambda x: (torch.arange(100, dtype=torch.int8) * 3) // 2, (X,), "computed ahead"),
    "positions that are cast": (lambda x: torch.arange(500).to(torch.int8) // 3, (X,), "computed ahead"),
    "positions as truth values": (lambda x: torch.arange(9).bool().int() * 3, (X,), "computed ahead"),
    "positions in 16 bits": (lambda x: x + torch.arange(8000)[-8:], (NARROW_X,), "cast ahead"),
    "powers of positions": (lambda x: torch.arange(5000).float() ** 2, (X,), "computed ahead"),
    "an integer scalar tensor in 16 bits": (lambda x, i: x * i[0, 0], (NARROW_X, WHOLE_X), "different point"),
    "a scalar tensor of another type": (lambda x, y: x * y[0, 0], (X, X.double()), "different point"),
    "truth of bytes": (lambda x: x.byte().any(), (WHOLE_X,), "uint8"),
    "bits of another type": (lambda x: x.view(torch.int32), (X,), "which NaN"),
    "softplus with arguments": (lambda x: functional.softplus(x, 1.7, 3.0), (NARROW_X,), "default arguments"),
    "erf in 16 bits": (torch.erf, (NARROW_X,), "not in the table"),
    "a product of columns with gaps": (lambda x: x[:, ::2] @ x[:4], (X,), "strides is 1"),
    "products of columns with gaps": (lambda x: torch.bmm(x[None, :, ::2], x[None, :4]), (X,), "strides is 1"),
    "a product of a number": (lambda x: x[:, :1].expand(6, 8) @ x.t(), (X,), "strides is 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_CLAIMED)
def test_operators_without_a_guarantee_are_reported(name: str) -> None:
    """With the reason; most of these do differ in practice."""
    body, inputs, reason = NOT_CLAIMED[name]
    lines = bit_changing_operators(*region_of(body, *inputs), with_defaults(EXACT), "cpu")
    assert any(reason in line for line in lines), lines


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"reductions": "fused"}, "another order"),
        ({"matmul": "autotune"}, "other kernels"),
        ({"freezing": True}, "repacked"),
        ({"emulate_precision_casts": False}, "set emulate_precision_casts"),
    ],
)
def test_option_values_that_may_change_bits_are_reported(option: dict[str, Option], reason: str) -> None:
    """For all operators; 16 bits need emulated casts if something is computed, cast or filled in."""
    options = with_defaults({**EXACT, **option})
    for body in (lambda x: x.exp(), lambda x: torch.empty_like(x).copy_(x.float()), lambda x: x + x):
        lines = bit_changing_operators(*region_of(body, NARROW_X), options, "cpu")
        assert lines and all(reason in line for line in lines), lines


def test_a_gpu_needs_emulated_casts_for_all_arithmetic() -> None:
    """Its compiler rounds a product and a sum together otherwise."""
    options = with_defaults({**EXACT, "emulate_precision_casts": False})
    bodies: tuple[Body, ...] = (lambda x: x * x + x, lambda x: x**2 - x, lambda x: NARROW_X.float() * x)
    for body in bodies:
        assert bit_changing_operators(*region_of(body, X), options, "cpu") == ()
        assert "together" in bit_changing_operators(*region_of(body, X), options, "cuda")[0]
    assert bit_changing_operators(*region_of(lambda x: x.roll(3) > x, X), options, "cuda") == ()


def test_a_gpu_may_have_other_functions() -> None:
    """Of what is fused and exact on a CPU, some is left to ATen on a GPU, and some is not claimed there."""
    options = with_defaults(EXACT)
    kept: list[tuple[Body, Tensor]] = [
        (torch.reciprocal, X), (lambda x: x / x, X), (torch.rsqrt, X), (torch.relu, X), (functional.silu, NARROW_X)
    ]  # fmt: skip
    for body, value in kept:
        (call,) = dispatched(*region_of(body, value))
        assert [is_function_kept(call.name, value.dtype, device) for device in ("cpu", "cuda")] == [False, True]
        assert bit_changing_operators(*region_of(body, value), options, "cuda") == ()
    bodies: list[tuple[Body, Tensor]] = [
        (lambda i: i / 3, WHOLE_X),
        (lambda x: x.scatter_add(0, torch.zeros_like(x, dtype=torch.long), x), X),
        (lambda i: i.bfloat16(), WHOLE_X),
        (lambda i: i * torch.ones((8,), dtype=torch.bfloat16), WHOLE_X),
    ]
    for body, value in bodies:
        assert bit_changing_operators(*region_of(body, value), options, "cpu") == ()
        assert "GPU" in bit_changing_operators(*region_of(body, value), options, "cuda")[0]
