"""Operators that Inductor leaves to ATen's kernels, so that a region has the same bits as eager execution.

Inductor turns matrix-vector products into multiply-and-sum, and sums in a different order: sometimes faster, and almost
never bit-identical. Kept operators are neither decomposed nor lowered, and get inputs in eager's memory layout, since a
BLAS sums in another order if a matrix is transposed. ``sktune.backends.inductor.exactness`` explains why the others
need not be kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from ..torch_private import (
    CustomGraphPass,
    IRNode,
    TensorBox,
    fallback_handler,
    fast_random_decomps,
    lowerings,
    replaced,
    resolve,
)
from .versions import DIVIDES_BY_CONSTANTS_SINCE, ORDERS_WRITES_SINCE, number_of

aten = torch.ops.aten

MATMULS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot")
REDUCTIONS = (
    "sum", "mean", "prod", "var", "std", "var_mean", "std_mean", "logsumexp", "cumsum", "cumprod",
    "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "_fused_rms_norm",
    "linalg_vector_norm", "amax", "amin", "argmax", "argmin", "max", "min", "topk", "sort", "histc",
    "index_add", "scatter_add", "scatter_reduce", "_grouped_mm", "_safe_softmax",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)  # fmt: skip
WIDE = (torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.float16)
FUNCTIONS: Mapping[str, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(("exp", "log", "tanh", "sigmoid", "silu", "softplus", "sqrt", "erf", "cos"), WIDE),
    "sin": (*WIDE, torch.float16),
    "rsqrt": NARROW,
    **dict.fromkeys(("gelu", "maximum", "minimum", "clamp", "clamp_min", "clamp_max"), (*WIDE, *NARROW)),
    **dict.fromkeys(("expm1", "log1p", "elu", "mish", "leaky_relu"), (*WIDE, *NARROW)),
}
"""Elementwise functions whose fused code on CPUs has other bits than ATen's kernel, and the types for which it has.

In float32 ATen calls MKL or, if a vector is not full, the C library; fused code calls SLEEF. In 16 bits the same
functions round to the same results. The maximum of two zeros of different sign may be either.
"""
FUNCTIONS_ON_GPU = frozenset((
    *FUNCTIONS, "div", "reciprocal", "relu", "hardswish",
))  # fmt: skip
"""The same on GPUs, for all types: Triton approximates these functions, and of 0.0 and -0.0 its maximum returns the one
that ATen does not."""
# Inductor's lowering of these already calls ATen's kernel if max-autotune may only choose ATen. On a GPU it has two for
# ``addmm``, and chooses by timing.
_EXTERN_BY_CHOICE = ("mm", "addmm", "baddbmm")
_NEGATED: Callable[..., Any] = lowerings[aten.neg.default]
_ROOT = -0.5
"""The exponent for which ATen's kernel for CPUs computes a reciprocal square root (Gemma's norms)."""


class CacheIdentity(CustomGraphPass):
    """Leaves graphs unchanged; separates code in Inductor's caches that was compiled under different sktune rules."""

    def __init__(self, rules: str) -> None:
        self._uuid = f"sktune-11-{rules}"

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Leave ``graph`` unchanged."""

    def uuid(self) -> str:
        """Return the part of the key of Inductor's caches."""
        return self._uuid


def settings(matmuls: bool, reductions: bool) -> dict[str, Any]:
    """Return Inductor's settings needed beside ``kept_operators``.

    Inductor's patterns turn ``mm`` and a sum into ``addmm``, and two ``mm`` into one, which skips a rounding; its
    folding drops the addition of zero, which turns -0 into 0.
    """
    if not matmuls:
        return {}
    rewrites = not reductions
    return {
        "max_autotune_gemm_backends": "ATEN",
        "max_autotune_gemm": False,
        "pattern_matcher": rewrites,
        "joint_graph_constant_folding": rewrites,
    }


@contextmanager
def kept_operators(matmuls: bool, reductions: bool) -> Iterator[None]:
    """Within the context, Inductor leaves matrix products, reductions, or both to ATen."""
    kept = [*_overloads(MATMULS if matmuls else ()), *_overloads(REDUCTIONS if reductions else ())]
    extern = set(_overloads(_EXTERN_BY_CHOICE))
    lowered: dict[Any, Any] = {op: fallback_handler(op, add_to_fallback_set=False) for op in kept if op not in extern}
    if matmuls:
        lowered[aten.bmm.default] = _extern_bmm
        lowered[aten.addmm.default] = _extern_addmm(lowerings[aten.addmm.default])
    decompositions = fast_random_decomps()  # Inductor compiles with this table, or with a part of it
    functions = {op: name for name in FUNCTIONS_ON_GPU if reductions for op in _overloads((name,))}
    chosen = {op: _lowered_unless_kept(name, op) for op, name in functions.items()}
    decomposed = {
        op: _decomposed_unless_kept(name, decompositions[op]) for op, name in functions.items() if op in decompositions
    }
    layouts = dict.fromkeys(kept, _constrain_to_eager_strides)
    layouts |= {op: partial(_constrain_if_kept, name) for op, name in functions.items()}
    chosen[aten.neg.default] = _negated
    if reductions:
        chosen[aten.pow.Tensor_Scalar] = _lowered_power()
        layouts[aten.pow.Tensor_Scalar] = _constrain_power
    saved = {op: decompositions[op] for op in (*kept, *decomposed) if op in decompositions}
    for op in kept:
        decompositions.pop(op, None)
    decompositions.update(decomposed)
    divides = number_of(torch.__version__) >= DIVIDES_BY_CONSTANTS_SINCE
    try:
        with (
            patch.dict(lowerings, lowered | chosen),
            patch.dict(resolve("_maybe_layout_constraints"), layouts),
            # It finds constant divisors; in these versions, nothing else asks.
            nullcontext() if divides else replaced("get_constant_value", lambda _: None),
        ):
            yield
    finally:
        decompositions.update(saved)


@contextmanager
def kept_casts(emulates: bool) -> Iterator[None]:
    """Within the context, code for CPUs that emulates casts rounds to 16 bits wherever it stores and reads again.

    Before torch 2.13 it used the unrounded value whatever the option says (pytorch/pytorch#185337), and vectorised
    code did not take the argument that asks for rounding, which has another name there.
    """
    if not emulates:
        yield
        return
    cast: Callable[..., Any] = resolve("CppVecOverrides.to_dtype")
    if "use_compute_types" not in inspect.signature(cast).parameters:

        def renamed(x: Any, dtype: Any, src_dtype: Any = None, use_compute_types: bool = True) -> Any:
            return cast(x, dtype, src_dtype, use_compute_types)

        renamed.__name__ = cast.__name__  # Inductor looks it up by name
        takes_rounding: Any = replaced("CppVecOverrides.to_dtype", staticmethod(renamed))
    else:
        takes_rounding = nullcontext()
    with replaced("CppKernel.cache_dtype_convert", lambda *_: None), takes_rounding:
        yield


@contextmanager
def kept_copies(writes: bool) -> Iterator[None]:
    """Within the context, Inductor makes each copy that the graph has, if the region writes its inputs.

    Otherwise it returns the memory of an input for a copy that was made between two writes to it, and the copy has the
    value of the last write (torch 2.13: ``remove_noop_ops``, then ``reinplace_inplaceable_ops``); and it computes a
    value inside of a joined tensor, which changes with what is written into that value afterwards (``ConcatKernel``).
    """
    if not writes:
        yield
        return
    place = resolve("ConcatKernel.realize_into").__func__

    def place_copy(kernel: Any, source: Any, target: Any, /, **_: Any) -> Any:  # torch 2.15 also asks for copies
        copy = resolve("Pointwise.create")(
            device=source.get_device(),
            dtype=source.get_dtype(),
            inner_fn=source.make_loader(),
            ranges=list(target.get_size()),
        )
        return place(kernel, copy.data, target)

    with (
        replaced("remove_noop_ops", lambda graph: None),
        replaced("ConcatKernel.realize_into", classmethod(place_copy)),
    ):
        yield


@contextmanager
def kept_order() -> Iterator[None]:
    """Within the context, Inductor writes memory after all that reads what was there.

    Before torch 2.10 it forgets that a write must wait for a kernel that reads, if it also needs a result of that
    kernel; and then it may fuse both the other way round.
    """
    if number_of(torch.__version__) >= ORDERS_WRITES_SINCE:
        yield
        return

    weak = resolve("WeakDep")

    def prune(node: Any, fused: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Remove a fused kernel's weak dependencies on itself, and no others."""
        waits = [dependency for dependency in node.unmet_dependencies if isinstance(dependency, weak)]
        itself = {each for each in waits if fused[buffers[each.name].defining_op_name()] is node}
        node.unmet_dependencies = node.unmet_dependencies - itself
        node.set_read_writes(node.read_writes.remove_reads(itself))

    with replaced("_prune_redundant_deps", prune):
        yield


def is_function_kept(name: str, dtype: torch.dtype, device: str) -> bool:
    """Return whether ``name`` is left to ATen for elements of ``dtype`` on ``cpu`` or ``cuda`` if reductions are."""
    if device != "cpu" and name in FUNCTIONS_ON_GPU:
        return dtype in (*WIDE, *NARROW)
    return dtype in FUNCTIONS.get(name, ())


def _are_kept(name: str, tensors: Sequence[torch.Tensor]) -> bool:
    device = "cuda" if any(value.is_cuda for value in tensors) else "cpu"
    return is_function_kept(name, tensors[0].dtype, device)


def _decomposed_unless_kept(name: str, decompose: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(*arguments: Any, **keywords: Any) -> Any:
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        # NotImplemented leaves the operator in the graph.
        return NotImplemented if _are_kept(name, tensors) else decompose(*arguments, **keywords)

    return decomposed


def _lowered_unless_kept(name: str, op: Any) -> Callable[..., Any]:
    call = fallback_handler(op, add_to_fallback_set=False)
    fused = lowerings.get(op, call)

    def lowered(*arguments: Any, **keywords: Any) -> Any:
        values = [value for value in arguments if isinstance(value, IRNode)]
        device = "cuda" if any(value.get_device_or_error().type == "cuda" for value in values) else "cpu"
        is_kept = is_function_kept(name, values[0].get_dtype(), device)
        return (call if is_kept else fused)(*arguments, **keywords)

    return lowered


def _constrain_if_kept(name: str, node: torch.fx.Node, *args: Any, **keywords: Any) -> Any:
    is_kept = _are_kept(name, [value.meta["val"] for value in node.all_input_nodes])
    return _constrain_to_eager_strides(node, *args, **keywords) if is_kept else (args, keywords)


def _negated(value: Any) -> Any:
    """Lower a negation: Triton subtracts from zero, which makes the negative of zero positive."""
    if value.get_dtype() in (*WIDE, *NARROW) and value.get_device().type == "cuda":
        return lowerings[aten.mul.Tensor](value, -1.0)
    return _NEGATED(value)


def _is_power_fused(base: Any, exponent: Any, device: str) -> bool:
    """Whether fused code computes a power as ATen does: as a product, or as a reciprocal square root."""
    is_root = exponent == _ROOT and base in WIDE and device == "cpu"
    return exponent == 2 or is_root or not base.is_floating_point


def _lowered_power() -> Callable[..., Any]:
    op = aten.pow.Tensor_Scalar
    fused, call = lowerings[op], fallback_handler(op, add_to_fallback_set=False)

    def lowered(base: Any, exponent: Any) -> Any:
        if not _is_power_fused(base.get_dtype(), exponent, base.get_device().type):
            return call(base, exponent)
        return lowerings[aten.rsqrt.default](base) if exponent == _ROOT else fused(base, exponent)

    return lowered


def _constrain_power(node: torch.fx.Node, *args: Any, **keywords: Any) -> Any:
    base = node.all_input_nodes[0].meta["val"]
    is_fused = _is_power_fused(base.dtype, node.args[1], base.device.type)
    return (args, keywords) if is_fused else _constrain_to_eager_strides(node, *args, **keywords)


def _constrain_to_eager_strides(node: torch.fx.Node, *args: Any, **keywords: Any) -> Any:
    """Lay out the inputs as in eager execution, including gaps and repeats; an order of strides is not enough."""

    def constrained(value: Any, argument: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(constrained, value, argument))
        expected = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        if not isinstance(value, TensorBox) or not isinstance(expected, torch.Tensor):
            return value
        return resolve("ExternKernel.require_exact_strides")(value, expected.stride())

    return (
        tuple(map(constrained, args, node.args)),
        {name: constrained(value, node.kwargs[name]) for name, value in keywords.items()},
    )


def _extern_bmm(mat1: Any, mat2: Any) -> Any:
    """Lower ``bmm`` to ATen's kernel, as max-autotune does if that kernel is fastest."""
    _, _, _, layout, mat1, mat2 = resolve("mm_args")(mat1, mat2)
    return resolve("aten_bmm").bind((mat1, mat2), layout).output_node()


def _extern_addmm(by_choice: Callable[..., Any]) -> Callable[..., Any]:
    call = fallback_handler(aten.addmm.default, add_to_fallback_set=False)

    def lowered(bias: Any, *factors: Any, **scales: Any) -> Any:
        return (call if bias.get_device().type == "cuda" else by_choice)(bias, *factors, **scales)

    return lowered


def _overloads(names: tuple[str, ...]) -> list[Any]:
    packets = [getattr(aten, name) for name in names]
    return [
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
        if not overload.endswith("out")
    ]
