"""Which operators Inductor leaves to ATen's own kernels, so that a region keeps the bits of eager execution.

Inductor turns matrix-vector products into multiply-and-sum, and sums in an order of its own: faster at times,
and almost never bit-identical. Kept operators stay as they are: neither decomposed nor lowered, and given
inputs in eager's memory layout, since a BLAS sums in another order when a matrix comes transposed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor import decomposition, lowering
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.kernel.bmm import aten_bmm
from torch._inductor.kernel.mm_common import mm_args

aten = torch.ops.aten

MATMULS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot")
REDUCTIONS = (
    "sum", "mean", "prod", "var", "std", "var_mean", "std_mean", "logsumexp", "cumsum", "cumprod",
    "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "_fused_rms_norm",
    "linalg_vector_norm",
)  # fmt: skip
# Inductor's lowering of these is already a call of ATen's kernel where max-autotune may only choose ATen.
_EXTERN_BY_CHOICE = ("mm", "addmm", "baddbmm")


class CacheIdentity(CustomGraphPass):
    """Does nothing to a graph; makes Inductor's caches tell apart what was compiled under different rules of ours."""

    def __init__(self, rules: str) -> None:
        self._uuid = f"sktune-2-{rules}"

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Leave ``graph`` as it is."""

    def uuid(self) -> str:
        """Return what enters the key of Inductor's caches."""
        return self._uuid


@contextmanager
def kept_operators(matmuls: bool, reductions: bool) -> Iterator[None]:
    """Within the context, Inductor leaves matrix products and reductions to ATen where asked."""
    kept = [*_overloads(MATMULS if matmuls else ()), *_overloads(REDUCTIONS if reductions else ())]
    extern = set(_overloads(_EXTERN_BY_CHOICE))
    lowered = {op: lowering.fallback_handler(op, add_to_fallback_set=False) for op in kept if op not in extern}
    if matmuls:
        lowered[aten.bmm.default] = _extern_bmm
    layouts = dict.fromkeys(kept, lowering.constrain_to_fx_strides)
    decompositions = decomposition.select_decomp_table()
    removed = {op: decompositions.pop(op) for op in kept if op in decompositions}
    try:
        with (
            patch.dict(lowering.lowerings, lowered),
            patch.dict(lowering._maybe_layout_constraints, layouts),  # noqa: SLF001 - no public way
        ):
            yield
    finally:
        decompositions.update(removed)


def _extern_bmm(mat1: Any, mat2: Any) -> Any:
    """Lower ``bmm`` to ATen's kernel, as max-autotune does where that kernel wins."""
    _, _, _, layout, mat1, mat2 = mm_args(mat1, mat2)
    return aten_bmm.bind((mat1, mat2), layout).output_node()


def _overloads(names: tuple[str, ...]) -> list[Any]:
    packets = [getattr(aten, name) for name in names]
    return [
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
        if not overload.endswith("out")
    ]
