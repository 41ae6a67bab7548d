"""Exactness: which operators of a region are guaranteed to give the same bits fused as in separate kernels.

An operator is guaranteed for one of these reasons; the others are tested:

* the fused code calls ATen's kernel on inputs with eager's memory layout (``numerics``);
* nothing is computed: elements are moved or selected;
* the result is defined by IEEE 754 or by integer arithmetic, and no step is contracted, reordered or left out;
* it is a function of one 16-bit element that gave the same result for all 65,536 values, on both code paths.

Operators in none of these tables are not guaranteed. The guarantee does not cover the payload and sign of NaNs, nor
signed integers that overflow, which is undefined in C++. ``tests/backends/test_exactness.py`` tries to refute every
claim.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from types import FunctionType
from typing import Any

import torch
from torch import fx

from sktune.core.errors import described
from sktune.core.plan import Option
from sktune.program.sktune_program.inductor.border import ALIGNMENT
from sktune.program.sktune_program.inductor.numerics import MATMULS, NARROW, REDUCTIONS, WIDE, is_function_kept
from sktune.program.sktune_program.inductor.versions import (
    COMPARES_LONG_INTEGERS_SINCE,
    ROUNDS_FACTORS_SINCE,
    number_of,
)
from sktune.program.sktune_program.torch_private import (
    FakeTensorMode,
    TorchDispatchMode,
    schema_of,
    storage_id,
    tree_leaves,
)

MOVEMENT = frozenset((
    "alias", "as_strided", "cat", "clone", "constant_pad_nd", "copy", "detach", "diagonal", "embedding", "empty",
    "empty_like", "empty_strided", "expand", "fill", "flip", "full", "full_like", "gather", "index", "index_copy",
    "index_select", "lift_fresh", "lift_fresh_copy", "masked_fill", "new_empty", "new_full", "new_ones", "new_zeros",
    "new_empty_strided", "ones", "ones_like", "permute", "repeat", "roll", "scalar_tensor", "select", "select_scatter",
    "slice", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "t", "transpose", "tril", "triu",
    "unbind", "unfold", "unsqueeze", "view", "_reshape_alias", "_unsafe_view", "where", "zero", "zeros", "zeros_like",
    "unsafe_split", "scatter", "index_put", "_assert_async", "_assert_tensor_metadata",
))  # fmt: skip
"""Nothing is computed. If indices repeat within one write, eager does not define which value remains either."""

CREATED = frozenset((
    "arange", "empty", "empty_like", "empty_strided", "full", "full_like", "lift_fresh", "lift_fresh_copy", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros",
    "zeros_like",
))  # fmt: skip
"""Their elements do not depend on their tensors."""

COMPARISONS = frozenset((
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_and", "logical_or", "logical_not", "logical_xor",
    "any", "all",
))  # fmt: skip
ROUNDED = frozenset(("add", "sub", "rsub", "mul", "neg", "abs"))
"""Rounded once, by IEEE 754, on all devices; on a GPU only if casts are emulated, as nothing is contracted then."""

ROUNDED_ON_CPU = frozenset(("div", "reciprocal", "rsqrt", "relu"))
"""The same on a CPU (``rsqrt``: a root, then a quotient). On GPUs they are kept for fractions."""

ATOMIC_ON_GPU = frozenset(("index_add", "scatter_add", "scatter_reduce"))
"""On a GPU they add in whichever order threads arrive."""

INTEGERS = frozenset((
    "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "arange", "clamp", "clamp_min", "clamp_max", "maximum",
    "minimum", "floor_divide", "remainder", "pow", "sign",
)) | ROUNDED  # fmt: skip
"""Exact on integers and booleans that do not overflow. ``index_add`` and similar operators are kept, like sums."""

ENUMERATED: Mapping[str, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(("exp", "log", "tanh", "sigmoid", "silu", "softplus", "sqrt", "cos", "hardswish"), NARROW),
    "sin": (torch.bfloat16,),
}
"""Functions of one 16-bit element that gave the same result for all 65,536 values, vectorised and scalar."""

SAME_OR_CAST = frozenset(("_to_copy",))
FOLDED = SAME_OR_CAST | ROUNDED | ROUNDED_ON_CPU | (INTEGERS - {"arange", "sign"})
"""Inductor folds these if all operands are constants: with Python's numbers or symbols, which have no bit width."""

ALIGNED = frozenset((
    *MATMULS, "_grouped_mm", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
))  # fmt: skip
"""Those that call a BLAS or a library like it, whose kernels depend on the addresses of their operands."""

TORCH = number_of(torch.__version__)

COVERED = frozenset((*WIDE, *NARROW, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool))
_LARGEST_CONSTANT: Mapping[torch.dtype, float] = {
    torch.bfloat16: 2.0**8, torch.float16: 2.0**11, torch.float32: 2.0**24, torch.float64: 2.0**53,
    **{dtype: float(torch.iinfo(dtype).max) for dtype in (torch.int8, torch.int16, torch.int32)},
    torch.int64: 2.0**62,
}  # fmt: skip
"""Integers up to this magnitude are neither rounded nor wrapped; unsigned types are left out: they wrap below zero."""


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator as eager execution dispatches it.

    Attributes:
        name: of the operator, without overload, and without the underscore of its in-place form.
        overload: its full name.
        arguments: by the schema's names.
        inputs, outputs: its tensors.
        written: those that it writes in place.
    """

    name: str
    overload: str
    arguments: Mapping[str, Any]
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    written: tuple[torch.Tensor, ...] = ()

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Inputs and outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def is_floating(self) -> bool:
        """Whether any of its tensors has floating-point or complex elements."""
        return any(value.is_floating_point() or value.is_complex() for value in self.tensors)

    @property
    def numbers(self) -> Iterator[float]:
        """The numbers among its arguments that can be operands."""
        for name in ("self", "other", "exponent", "value", "min", "max", "fill_value", "s"):
            value = self.arguments.get(name)
            if isinstance(value, int | float):
                yield float(value)


def bit_changing_operators(
    kernels: fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Option], device: str
) -> tuple[str, ...]:
    """Return the operators of a region that are not guaranteed to equal their kernels, each with the reason.

    Args:
        kernels: the region's graph as captured; it is traced with eager execution's dispatch, on fake tensors.
        inputs: of the region; those that share memory do so here.
        options: of its scope, including defaults.
        device: ``cpu`` or ``cuda``.

    Returns:
        lines such as ``"aten.exp.default: ..."``, each once, in execution order; empty if the region is exact.
    """
    exact_options = {
        "matmul": ("aten", "products may use other kernels, chosen by timing"),
        "reductions": ("aten", "sums are in another order, and operators may be rewritten"),
        "freezing": (False, "operators on weights only are computed ahead, and weights are repacked"),
    }
    inexact = {name: why for name, (exact, why) in exact_options.items() if options[name] != exact}
    if inexact:
        return tuple(f"{name}: {options[name]}: {why}" for name, why in inexact.items())
    try:
        calls = dispatched(kernels, inputs)
    except Exception as failure:  # noqa: BLE001 - a model's code may raise anything on fake tensors
        return (f"the region cannot be traced on fake tensors: {described(failure)}",)
    emulates = bool(options["emulate_precision_casts"])
    # The functions that the capture has not looked into.
    called = {node.target for node in kernels.graph.nodes if node.op == "call_function"}
    names = sorted(f"{each.__module__}.{each.__qualname__}" for each in called if isinstance(each, FunctionType))
    opaque = "it is opaque to the compiler (allow_in_graph), and what it keeps from call to call is lost"
    doubts = {name: opaque for name in names if name.partition(".")[0] != "torch"}
    constants, rewritten, joined = _Constants(), _Rewritten(), _misaligned_when_joined(calls)
    for call in calls:
        reason = (
            constants.doubt(call)
            or rewritten.doubt(call, device)
            or _alignment(call, joined)
            or _doubt(call, emulates, device)
        )
        if reason:
            doubts.setdefault(call.overload, reason)
    return tuple(f"{overload}: {reason}" for overload, reason in doubts.items())


def _misaligned_when_joined(calls: Sequence[OperatorCall]) -> set[int]:
    """Return the storages that Inductor may place inside of a joined tensor, at an address that is not aligned."""
    found = set()
    for call in calls:
        if call.name not in ("cat", "stack") or not call.outputs:
            continue
        whole, start = call.outputs[0], 0
        dim = int(call.arguments.get("dim", 0)) % max(1, whole.dim())
        for value in call.inputs:
            if start * whole.itemsize % ALIGNMENT:
                found.add(storage_id(value))
            length = 1 if call.name == "stack" else value.shape[dim] if value.dim() else 1
            start += length * whole.stride(dim)
    return found


def _alignment(call: OperatorCall, joined: Collection[int]) -> str:
    """Check alignment: a library chooses its kernel by it, and fused code may place a tensor at another address."""
    if call.name in ALIGNED and any(
        value.storage_offset() * value.itemsize % ALIGNMENT or storage_id(value) in joined for value in call.inputs
    ):
        return "its input begins at an address that is not aligned, by which the library chooses its kernel"
    return ""


def dispatched(kernels: fx.GraphModule, inputs: Sequence[Any]) -> tuple[OperatorCall, ...]:
    """Return the operators that eager execution dispatches for a region, in order."""
    fake: Any = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [fake.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    recorder = _Recorder()
    with torch.no_grad(), fake, recorder:
        fx.Interpreter(kernels).run(*fakes)
    return tuple(recorder.calls)


class _Recorder(TorchDispatchMode):
    """Records the dispatched operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OperatorCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        if func.namespace == "prim":  # queries about a tensor, such as its device
            return result
        schema = schema_of(func)
        named = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | keywords
        name = schema.name.removeprefix("aten::")
        in_place = schema.is_mutable and name.endswith("_")
        inputs, outputs = (
            tuple(value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
            for values in (named, result)
        )
        written = tuple(
            value for argument in schema.arguments if argument.alias_info is not None and argument.alias_info.is_write
            for value in tree_leaves(named.get(argument.name)) if isinstance(value, torch.Tensor)
        )  # fmt: skip
        self.calls.append(
            OperatorCall(name.removesuffix("_") if in_place else name, str(func), named, inputs, outputs, written)
        )
        return result


class _Constants:
    """The tensors of a region that do not depend on its inputs, with a bound on the integers in them.

    They are identified by their storage, so that views are constants as well. A partly written constant remains one.
    """

    def __init__(self) -> None:
        self._bounds: dict[int, float] = {}

    def doubt(self, call: OperatorCall) -> str:
        """Return why constant operands of ``call`` may change bits, "" if they do not; track the constants it makes."""
        known = [value for value in call.inputs if storage_id(value) in self._bounds]
        is_constant = call.name in CREATED or len(known) == len(call.inputs) or _is_filled(call)
        if not is_constant:
            return self._doubt_mixed(call, known)
        bound = self._bound(call, [self._bounds[storage_id(value)] for value in known])
        for value in call.outputs:
            self._bounds[storage_id(value)] = max(bound, self._bounds.get(storage_id(value), 0.0))
        is_computed = known and call.name in FOLDED
        if is_computed and any(bound > _LARGEST_CONSTANT.get(value.dtype, 0.0) for value in call.outputs):
            return "constants are computed ahead, in numbers of another width"
        return ""

    def _doubt_mixed(self, call: OperatorCall, known: list[torch.Tensor]) -> str:
        if not known or not call.outputs:
            return ""
        if call.name in MOVEMENT:
            known, target = [value for value in known if value.is_floating_point()], call.outputs[0].dtype
        else:
            target = call.inputs[0].dtype
            for value in call.inputs:
                target = torch.promote_types(target, value.dtype)
        largest = _LARGEST_CONSTANT.get(target, 0.0)
        if any(
            value.dtype not in (target, torch.bool) and self._bounds[storage_id(value)] > largest for value in known
        ):
            return "a constant of another type is cast ahead, without rounding"
        return ""

    def _bound(self, call: OperatorCall, bounds: list[float]) -> float:
        numbers = [abs(number) if number.is_integer() else inf for number in call.numbers]
        terms = [*bounds, *numbers]
        if call.name in ("ones", "ones_like", "new_ones"):
            return 1.0
        if call.name in ("lift_fresh", "lift_fresh_copy", "div", "reciprocal", "rsqrt", "pow"):
            return inf
        if call.name == "arange":
            return float(max(abs(call.arguments.get(name, 0)) for name in ("start", "end")))
        if call.name in CREATED or _is_filled(call):
            return max(numbers, default=0.0)
        if call.name in ("add", "sub", "rsub"):
            return sum(terms) if call.arguments.get("alpha", 1) == 1 else inf
        if call.name == "mul":
            return prod(terms)
        return max(terms, default=inf)


class _Rewritten:
    """The memory that a region has written in a way after which compiled code lays it out differently.

    Compiled code makes a new tensor of what is written in place, and views of it are made from that. Its layout is the
    same if all of a contiguous tensor or contiguous parts of one were written, with values in the same layout. Kernels
    whose bits depend on the layout are not guaranteed after other writes.
    """

    def __init__(self) -> None:
        self._bases: dict[int, torch.Tensor] = {}
        self._parts: set[int] = set()
        self._odd: set[int] = set()

    def doubt(self, call: OperatorCall, device: str) -> str:
        """Return why the layout of an operand of ``call`` may change bits, "" if it does not; track what it writes."""
        for value in call.inputs:
            self._bases.setdefault(storage_id(value), value)
        depends_on_layout = (
            call.name in MATMULS
            or call.name in REDUCTIONS
            or bool(call.inputs and is_function_kept(call.name, call.inputs[0].dtype, device))
        )
        is_odd = depends_on_layout and any(
            storage_id(value) in self._odd
            or (storage_id(value) in self._parts and not (value.is_contiguous() and not self._is_part(value)))
            for value in call.inputs
        )
        for value in call.written:
            self._write(value, call)
        for value in call.outputs:
            self._bases.setdefault(storage_id(value), value)
        return (
            "its input was written in place through a view, after which compiled code lays it out anew"
            if is_odd
            else ""
        )

    def _write(self, value: torch.Tensor, call: OperatorCall) -> None:
        storage = storage_id(value)
        # Inductor replaces what is copied to by what is copied, with the layout of that.
        sources = [each for each in call.inputs if call.name == "copy" and each is not value]
        is_like = all(each.shape == value.shape and each.stride() == value.stride() for each in sources)
        strides = [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]
        is_row_major = strides == sorted(strides, reverse=True)
        if not self._bases[storage].is_contiguous() or not is_row_major or not (is_like or self._is_part(value)):
            self._odd.add(storage)
        elif not value.is_contiguous() or not is_like:
            self._parts.add(storage)

    def _is_part(self, value: torch.Tensor) -> bool:
        return value.numel() < self._bases[storage_id(value)].numel()


def _is_filled(call: OperatorCall) -> bool:
    return call.name == "zero" or (call.name == "fill" and not isinstance(call.arguments.get("value"), torch.Tensor))


def _doubt(call: OperatorCall, emulates: bool, device: str) -> str:
    """Return why fusing ``call`` may change its bits, "" if it does not."""
    if uncovered := {value.dtype for value in call.tensors} - COVERED:
        return f"numbers of type {min(map(str, uncovered))} are not covered".replace("torch.", "")
    dtype = call.inputs[0].dtype if call.inputs else None
    if call.name in MATMULS:
        return _product(call, device)
    if call.name in ATOMIC_ON_GPU and device != "cpu" and call.is_floating:
        return "a GPU adds in an undefined order"
    if call.name in REDUCTIONS or (dtype is not None and is_function_kept(call.name, dtype, device)):
        return ""
    for names, doubt in _RULES:
        if call.name in names:
            reason = doubt(call, device)
            return reason if reason or emulates else _without_emulated_casts(call, device)
    if call.name not in INTEGERS:
        return "not in the table of exact operators"
    return "exact only on integers" if call.is_floating else ""


def _without_emulated_casts(call: OperatorCall, device: str) -> str:
    if any(value.dtype in NARROW for value in call.outputs) and (call.name not in MOVEMENT or _casts(call)):
        return "its result is not rounded to 16 bits; set emulate_precision_casts"
    if device != "cpu" and call.is_floating and call.name in ROUNDED | {"pow"}:
        return "a GPU may round a product and a sum together; set emulate_precision_casts"
    return ""


def _product(call: OperatorCall, device: str) -> str:
    """Check layouts: a BLAS sums in an order that depends on them.

    Products get eager's, except that Inductor copies an input none of whose strides is 1 (``require_stride1``). On GPUs
    only inputs without gaps and repeats were tried.
    """
    if device != "cpu" and not all(map(_is_dense, call.inputs)):
        return "its input has gaps or repeats in memory, with which products were not tried on GPUs"
    if all(1 in value.stride() or value.numel() == 1 for value in call.inputs):
        return ""
    return "none of its input's strides is 1, and Inductor lays it out anew"


def _is_dense(value: torch.Tensor) -> bool:
    size = 1
    for stride, length in sorted(zip(value.stride(), value.shape, strict=True)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def _casts(call: OperatorCall) -> bool:
    """Return whether moved elements are cast to another type in between; masks and indices are not moved."""
    target = call.outputs[0].dtype
    takes_integers = call.name in ("where", "cat", "stack", "copy", "masked_fill")
    return any(
        value.dtype != target and (value.is_floating_point() or (takes_integers and value.dtype != torch.bool))
        for value in call.inputs
    )


def _movement(call: OperatorCall, device: str) -> str:
    if "dtype" in call.arguments and call.name == "view" and call.is_floating:
        return "as another type, the bits show which NaN it is"
    if doubt := _numbers(call):
        return doubt
    if call.arguments.get("accumulate") or call.arguments.get("reduce"):
        return "values are accumulated in an undefined order"
    return _cast(call, device) if call.name == "copy" else ""


def _comparison(call: OperatorCall, device: str) -> str:  # noqa: ARG001
    if call.name in ("any", "all") and call.inputs[0].dtype == torch.uint8:
        return "ATen then returns uint8 instead of bool"
    types = {value.dtype for value in call.inputs}
    if TORCH < COMPARES_LONG_INTEGERS_SINCE and types & set(NARROW) and types & {torch.int32, torch.int64}:
        return "before torch 2.10 it is compared in another type"
    return _operands(call)


def _rounded(call: OperatorCall, device: str) -> str:
    if not call.is_floating:
        return ""
    if call.name in ROUNDED_ON_CPU and device != "cpu":
        return "GPUs may compute it in another way"
    if call.arguments.get("rounding_mode"):
        return "a quotient rounded to an integer is computed in several steps"
    if call.arguments.get("alpha", 1) != 1:
        return "ATen may multiply and add in one rounding"
    return _narrowed(call, device) or _operands(call)


def _operands(call: OperatorCall) -> str:
    """Return why the types of the operands may change bits."""
    types = {value.dtype for value in call.inputs}
    scalars = [value for value in call.inputs if value.dim() == 0]
    if len(types) > 1 and scalars and (types & set(NARROW) or any(value.is_floating_point() for value in scalars)):
        return "a scalar tensor of another type is cast at a different point"
    return "" if call.name in ("mul", "div") and TORCH < ROUNDS_FACTORS_SINCE else _numbers(call)


def _numbers(call: OperatorCall) -> str:
    """Return whether a number has to be rounded to 16 bits, which happens at different points."""
    for dtype in {value.dtype for value in call.tensors} & set(NARROW):
        if any(torch.tensor(number, dtype=dtype).item() != number for number in call.numbers if number == number):
            return f"its number is not representable in {dtype}".replace("torch.", "")
    return ""


def _power(call: OperatorCall, device: str) -> str:  # noqa: ARG001
    if not call.is_floating:
        return ""
    is_covered = not isinstance(call.arguments.get("exponent"), torch.Tensor) and call.inputs[0].is_floating_point()
    return "" if is_covered else "only a tensor of fractions to the power of a number is covered"


def _enumerated(call: OperatorCall, device: str) -> str:
    if device != "cpu":
        return "a GPU's compiler may call another function than ATen"
    if call.inputs[0].dtype not in ENUMERATED[call.name]:
        return f"the fused function differs for {call.inputs[0].dtype}".replace("torch.", "")
    if call.arguments.get("beta", 1) != 1 or call.arguments.get("threshold", 20) != 20:
        return "it was compared only with default arguments"
    return ""


def _cast(call: OperatorCall, device: str) -> str:
    """Check casts: they are rounded by IEEE 754, but a float that does not fit an integer is undefined."""
    for source in call.inputs:
        for target in call.outputs:
            if source.is_floating_point() and not target.is_floating_point() and target.dtype != torch.bool:
                return "values that do not fit an integer depend on the code path"
    return _narrowed(call, device)


def _narrowed(call: OperatorCall, device: str) -> str:
    """Check casts of long integers to 16 bits, which may go through float32, which does not hold them either."""
    is_long = any(value.dtype in (torch.int32, torch.int64) for value in call.inputs)
    is_narrowed = is_long and any(value.dtype in NARROW for value in call.outputs)
    return "GPUs may round an integer twice on its way to 16 bits" if is_narrowed and device != "cpu" else ""


_RULES: tuple[tuple[frozenset[str], Callable[[OperatorCall, str], str]], ...] = (
    (MOVEMENT, _movement),
    (COMPARISONS, _comparison),
    (ROUNDED | ROUNDED_ON_CPU, _rounded),
    (frozenset(("pow",)), _power),
    (frozenset(ENUMERATED), _enumerated),
    (SAME_OR_CAST, _cast),
)
