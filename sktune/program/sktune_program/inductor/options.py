"""The options of Inductor's scopes."""

from __future__ import annotations

from collections.abc import Mapping

from ..listed_options import OptionSpec, check_listed, options_on
from ..plan import Option

INDUCTOR: Mapping[str, OptionSpec] = {
    "emulate_precision_casts": OptionSpec(
        (False, True), False, "round to bf16 wherever kernel-by-kernel execution would", exact=True
    ),
    "matmul": OptionSpec(
        ("autotune", "aten"), "autotune", "max-autotune GEMM and Inductor's decompositions, or ATen's kernels",
        exact="aten",
    ),
    "reductions": OptionSpec(
        ("fused", "aten"), "fused", "sums in Inductor's order within fused kernels, or ATen's kernels", exact="aten"
    ),
    "cpp_wrapper": OptionSpec((False, True), False, "call kernels from C++ instead of from Python", ("cpu",)),
    "freezing": OptionSpec((False, True), False, "treat weights as constants: fold and prepack them", exact=False),
    "cuda_graph": OptionSpec((True, False), False, "capture the scope's kernels as one CUDA graph", ("cuda",)),
}  # fmt: skip
"""docs/explanation/exactness.md explains which values do not change bits."""


def with_defaults(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return ``options``, completed by the compiler's defaults."""
    return {**{name: spec.default for name, spec in INDUCTOR.items()}, **options}


def check_option(device: str, name: str, value: Option) -> None:
    """Raise ``SpaceError`` unless ``name=value`` is an option on ``device``."""
    check_listed(f"inductor on {device}", options_on(device, INDUCTOR), name, value)
