"""Random decode steps whose values share memory: views of state and of results, written through one name and read
through another, inside of a scope and on both sides of its border, at addresses that are aligned and that are not.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sktune.targets.base import Target

Tensor = torch.Tensor
Apply = Callable[..., Tensor]
VOCABULARY = 16
MAX_ELEMENTS = 4096
UNARY: Mapping[str, Apply] = {
    "* 2": lambda x: x * 2,
    "sum -1": lambda x: x.sum(-1, keepdim=True),
    "mean -1": lambda x: x.mean(-1, keepdim=True),
    "amax -1": lambda x: x.amax(-1, keepdim=True),
    "cumsum -1": lambda x: x.cumsum(-1),
    "sort": lambda x: x.sort(-1).values,
    "softmax": lambda x: x.softmax(-1),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
    "rms_norm in float32": lambda x: x * (x.float().square().mean(-1, True) + 2.0**-20).rsqrt().to(x.dtype),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: functional.silu(x),
    "exp": lambda x: x.exp(),
    "sin": lambda x: x.sin(),
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: x.rsqrt(),
    "relu": lambda x: x.relu(),
    "reciprocal": lambda x: x.reciprocal(),
    "pow 2": lambda x: x.pow(2),
    "neg": lambda x: -x,
    "as float32": lambda x: x.float(),
    "as bfloat16": lambda x: x.bfloat16(),
    "x if x > 0.5 else -x": lambda x: torch.where(x > 0.5, x, -x),
    "0 if nan": lambda x: x.masked_fill(x.isnan(), 0.0),
    "flip": lambda x: x.flip(-1),
}
BINARY: Mapping[str, Apply] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "cat": lambda x, y: torch.cat((x, y), -1),
    "larger": lambda x, y: torch.maximum(x, y),
    "x if x < y else y": lambda x, y: torch.where(x < y, x, y),
}
OF_TOKEN: Mapping[str, Apply] = {
    "rows of token": lambda token, x: x[token % x.shape[0]],
    "+ token": lambda token, x: x + (token // 3).to(x.dtype)[0],
    "-x if token is odd": lambda token, x: torch.where((token % 2 == 0).all(), x, -x),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a program.

    Attributes:
        name: for a reader.
        apply: takes the operands; returns a tensor, which is a new value of the program.
        operands: their indices among the values.
    """

    name: str
    apply: Apply
    operands: tuple[int, ...]


class Part(nn.Module):
    """A part of the program; takes and returns all values so far."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__()
        self.operations = tuple(operations)

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        values = list(values)
        for operation in self.operations:
            values.append(operation.apply(*(values[index] for index in operation.operands)))
        return values


class Program(nn.Module):
    """What runs before the scope, in it, and after it, on state and the step's token and activation."""

    def __init__(
        self, state: Sequence[Tensor], weights: Sequence[Tensor], parts: Sequence[Sequence[Operation]]
    ) -> None:
        super().__init__()
        for index, each in enumerate(state):
            self.register_buffer(f"state_{index}", each)
        for index, each in enumerate(weights):
            self.register_parameter(f"weight_{index}", nn.Parameter(each, requires_grad=False))
        self.names = [f"state_{index}" for index in range(len(state))]
        self.names += [f"weight_{index}" for index in range(len(weights))]
        self.before, self.inside, self.after = map(Part, parts)

    def forward(self, token: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        values = [token, hidden, *(getattr(self, name) for name in self.names)]
        values = self.after(self.inside(self.before(values)))
        return tuple(value.clone() for value in values if value.is_floating_point())


def program_of(seed: int, operations: int = 5) -> Target:
    """Return a target that runs the program of a seed, with ``operations`` in each of its three units."""
    drawn = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dtype = drawn.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    shapes = [drawn.choice(((2, 2, 6, 8), (4, 8), (3, 16), (32,), (1, 8), (5, 7))) for _ in range(drawn.randint(1, 3))]
    state = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    weights = [torch.randn(shape, generator=generator).to(dtype) for shape in ((24, 8), (8, 8), (200,))]

    def step_inputs(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return (
            torch.randint(0, VOCABULARY, (2,), generator=generator), torch.randn((2, 8), generator=generator).to(dtype)
        )  # fmt: skip

    values = [*step_inputs(generator), *(each.clone() for each in (*state, *weights))]
    parts = []
    for _ in range(3):
        part: list[Operation] = []
        while len(part) < operations:
            # A view of a value, and a write through one of them, are what is to be shown: half of all.
            draw = drawn.choice((_view, _view, _write, _write, _compute, _compute, _product, _guarded))
            operation = draw(drawn, values)
            if operation is None:
                continue
            try:
                result = operation.apply(*(values[index] for index in operation.operands))
            except (RuntimeError, IndexError):
                continue
            if not isinstance(result, Tensor) or not 0 < result.numel() <= MAX_ELEMENTS:
                continue
            values.append(result)
            part.append(operation)
        parts.append(part)
    program = Program([each.clone() for each in state], [each.clone() for each in weights], parts).eval()
    held = {name: getattr(program, name) for name in program.names}  # weights are written, too

    def prefill(seed: int, steps: int) -> list[tuple[Any, ...]]:
        generator = torch.Generator().manual_seed(seed)
        for value, first in zip(held.values(), (*state, *weights), strict=True):
            value.copy_(first)
        return [step_inputs(generator) for _ in range(steps)]

    return Target(program, program.forward, prefill, held, f"random program {seed}")


def described(target: Target) -> str:
    """Return the program of a target, one line for each operation."""
    program: Any = target.module
    lines = [f"{index}: {name}" for index, name in enumerate(["token", "hidden", *program.names])]
    for name, part in (("before", program.before), ("inside", program.inside), ("after", program.after)):
        for operation in part.operations:
            lines.append(f"{len(lines)}: {name}: {operation.name} {operation.operands}")
    return "\n".join(lines)


def _floating(drawn: random.Random, values: Sequence[Tensor]) -> int:
    """Return the index of a floating-point value; half of the time a late one."""
    indices = [index for index, value in enumerate(values) if value.is_floating_point()]
    return drawn.choice(indices[-4:] if drawn.random() < 0.5 else indices)


def _view(drawn: random.Random, values: Sequence[Tensor]) -> Operation | None:
    index = _floating(drawn, values)
    value = values[index]
    dim = drawn.randrange(max(1, value.dim()))
    size = value.shape[dim] if value.dim() else 1
    start = drawn.randrange(size)
    step = drawn.choice((1, 1, 2))
    kind = drawn.choice(("slice", "select", "transpose", "flat", "expand", "strided", "chunk", "view"))
    if kind == "slice":
        return Operation(
            f"[{start}::{step}] of {dim}", lambda x: x.movedim(dim, 0)[start::step].movedim(0, dim), (index,)
        )
    if kind == "select" and value.dim() > 1:
        return Operation(f"select {dim} {start}", lambda x: x.select(dim, start), (index,))
    if kind == "transpose" and value.dim() > 1:
        return Operation(f"transpose 0 {dim}", lambda x: x.transpose(0, dim), (index,))
    if kind == "flat":
        skip = drawn.randrange(min(8, value.numel()))
        return Operation(f"view(-1)[{skip}:]", lambda x: x.view(-1)[skip:], (index,))
    if kind == "expand" and value.dim() < 4:
        return Operation("expand 3", lambda x: x.unsqueeze(0).expand(3, *x.shape), (index,))
    if kind == "strided" and value.numel() > 8:
        offset, stride = value.storage_offset() + drawn.randrange(4), drawn.choice((1, 2))
        return Operation(f"as_strided 3 {stride} {offset}", lambda x: x.as_strided((3,), (stride,), offset), (index,))
    if kind == "chunk" and size > 1:
        return Operation(f"chunk 2 {dim}", lambda x: x.chunk(2, dim)[-1], (index,))
    if kind == "view" and value.numel() % 8 == 0:
        return Operation("view -1 8", lambda x: x.view(-1, 8), (index,))
    return None


def _write(drawn: random.Random, values: Sequence[Tensor]) -> Operation | None:
    index, other = _floating(drawn, values), _floating(drawn, values)
    kind = drawn.choice(("copy", "add", "mul", "fill", "index_copy", "set"))
    if kind == "copy":
        return Operation("copy_", lambda x, y: x.copy_(y), (index, other))
    if kind == "add":
        return Operation("add_", lambda x, y: x.add_(y), (index, other))
    if kind == "mul":
        return Operation("mul_ 0.5", lambda x: x.mul_(0.5), (index,))
    if kind == "fill":
        return Operation("[0] = 1", _first_filled, (index,))
    if kind == "set":
        return Operation("x.add_(x)", lambda x: x.add_(x), (index,))
    return Operation(
        "index_copy_", lambda token, x, y: x.index_copy_(0, token[:1] % x.shape[0], y[:1]), (0, index, other)
    )


def _first_filled(value: Tensor) -> Tensor:
    value[0] = 1.0
    return value


def _guarded(drawn: random.Random, values: Sequence[Tensor]) -> Operation | None:
    """Return a write that happens only for one token of many."""
    index, wanted = _floating(drawn, values), drawn.randrange(VOCABULARY)
    kind = drawn.choice(("fill", "mul"))
    if kind == "fill":
        return Operation(
            f"cleared if token is {wanted}", lambda token, x: x.masked_fill_((token == wanted).any(), 0.0), (0, index)
        )
    return Operation(
        f"multiplied unless token is {wanted}", lambda token, x: x.mul_((token != wanted).all().to(x.dtype)), (0, index)
    )


def _compute(drawn: random.Random, values: Sequence[Tensor]) -> Operation | None:
    index, other = _floating(drawn, values), _floating(drawn, values)
    name = drawn.choice((*UNARY, *BINARY, *OF_TOKEN))
    if name in UNARY:
        return Operation(name, UNARY[name], (index,))
    if name in BINARY:
        return Operation(name, BINARY[name], (index, other))
    return Operation(name, OF_TOKEN[name], (0, index))


def _product(drawn: random.Random, values: Sequence[Tensor]) -> Operation | None:
    index, other = _floating(drawn, values), _floating(drawn, values)
    first, second = values[index], values[other]
    if second.dim() != 2 or not first.dim():
        return None
    if first.shape[-1] == second.shape[1]:
        return Operation("linear", lambda x, w: functional.linear(x, w), (index, other))
    if first.dim() == 1 and first.numel() >= second.shape[1]:
        rows, width = first.numel() // second.shape[1], second.shape[1]
        start = first.numel() - rows * width
        bias = _floating(drawn, values)
        if values[bias].shape == (second.shape[0],):
            return Operation(
                f"linear of {rows} rows from {start} with bias",
                lambda x, w, b: functional.linear(x[start:].view(rows, width), w, b), (index, other, bias),
            )  # fmt: skip
        return Operation(
            f"linear of {rows} rows from {start}",
            lambda x, w: functional.linear(x[start:].view(rows, width), w),
            (index, other),
        )
    return None
