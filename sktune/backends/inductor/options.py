"""The options of Inductor's scopes."""

from collections.abc import Mapping

from sktune.backends.options import ListedOptions, OptionSpec
from sktune.core.plan import Option

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

EXACT: Mapping[str, Option] = {name: spec.exact for name, spec in INDUCTOR.items() if spec.exact is not None}
OPTIONS = ListedOptions("inductor", INDUCTOR)


def with_defaults(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return ``options``, completed by the compiler's defaults."""
    return {**OPTIONS.rules.defaults, **options}
