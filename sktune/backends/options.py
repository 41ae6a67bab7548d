"""The options that a scope may carry on each backend: values, default, and where they exist.

A default is what the compiler does when the option is not given, so a scope lists only what differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sktune.errors import SpaceError, nearest
from sktune.plan import Option


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option: the values that it may have, the compiler's default, and the device types that know it."""

    values: tuple[Option, ...]
    default: Option
    devices: tuple[str, ...]
    effect: str


_BOTH = ("cpu", "cuda")

INDUCTOR: Mapping[str, OptionSpec] = {
    "emulate_precision_casts": OptionSpec(
        (False, True), False, _BOTH, "round to bf16 wherever kernel-by-kernel execution would"
    ),
    "matmul": OptionSpec(
        ("autotune", "aten"),
        "autotune",
        _BOTH,
        "max-autotune GEMM and Inductor's decompositions, or ATen's kernels",
    ),
    "reductions": OptionSpec(
        ("fused", "aten"), "fused", _BOTH, "sums in Inductor's order inside fused kernels, or ATen's kernels"
    ),
    "cpp_wrapper": OptionSpec((False, True), False, _BOTH, "call kernels from C++ instead of from Python"),
    "freezing": OptionSpec((False, True), False, _BOTH, "treat weights as constants: fold and prepack them"),
    "cuda_graph": OptionSpec((False, True), False, ("cuda",), "capture the scope's kernels as one CUDA graph"),
}

OPTIONS: Mapping[str, Mapping[str, OptionSpec]] = {"inductor": INDUCTOR}


def check_option(backend: str, device: str, name: str, value: Option) -> None:
    """Raise ``SpaceError`` unless ``name=value`` is an option of ``backend`` on ``device`` (``cpu``, ``cuda``)."""
    known = {key: spec for key, spec in OPTIONS[backend].items() if device in spec.devices}
    if name not in known:
        raise SpaceError(f"{backend} on {device} has no option {name!r}{nearest(name, known)}")
    # True == 1 in Python, but an option that takes words or truth values takes no number.
    if not any(value == allowed and type(value) is type(allowed) for allowed in known[name].values):
        raise SpaceError(f"option {name} is one of {list(known[name].values)}, got {value!r}")


def option_defaults(backend: str) -> dict[str, Option]:
    """Return the compiler's default of every option of ``backend``."""
    return {name: spec.default for name, spec in OPTIONS[backend].items()}
