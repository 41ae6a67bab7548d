"""The options that plans may carry on each backend: values, default, and where they exist.

A default is what the compiler does when the option is not given, so a plan lists only what differs. The options of
SuperKernel scopes have a module of their own, ``sktune.core.scope_options``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sktune.core import scope_options as superkernel_options
from sktune.core.errors import PlanError, SpaceError, nearest
from sktune.core.plan import Option, Plan
from sktune.core.scope_options import SUPERKERNEL_OPTIONS
from sktune.core.space import OptionRules


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

TORCHAIR: Mapping[str, OptionSpec] = {
    "frozen_parameter": OptionSpec((True, False), True, ("npu",), "weights keep their address: less work on the host"),
    "tiling_schedule_optimize": OptionSpec(
        (True, False), True, ("npu",), "tiling on the device, without which operators that need it cannot be fused"
    ),
    "topology_sorting_strategy": OptionSpec(
        ("StableRDFS", "DFS", "RDFS", "BFS"), "StableRDFS", ("npu",), "order of operators, hence what lies in a scope"
    ),
}
"""TorchAir's own options, for the whole step (TorchAir, CompilerConfig). The baseline has the defaults, too."""

SUPERKERNEL_BACKENDS = ("npu", "sim")
EXACT: Mapping[str, Option] = {
    "emulate_precision_casts": True,
    "matmul": "aten",
    "reductions": "aten",
    "freezing": False,
}
"""Values that keep the bits (docs/explanation/exactness.md). The others are searched only if they are asked for."""


def check_option(backend: str, device: str, name: str, value: Option) -> None:
    """Raise ``SpaceError`` unless ``name=value`` is an option of ``backend`` on ``device``."""
    if backend in SUPERKERNEL_BACKENDS and name not in TORCHAIR:
        superkernel_options.check_option(name, value)
        return
    table = INDUCTOR if backend == "inductor" else TORCHAIR
    known = {key: spec for key, spec in table.items() if backend != "inductor" or device in spec.devices}
    if name not in known:
        raise SpaceError(f"{backend} on {device} has no option {name!r}{nearest(name, known)}")
    # True == 1 in Python, but an option that takes words or truth values takes no number.
    if not any(value == allowed and type(value) is type(allowed) for allowed in known[name].values):
        raise SpaceError(f"option {name} is one of {list(known[name].values)}, got {value!r}")


def check_searched(backend: str, device: str, name: str, value: Option) -> None:
    """Raise ``SpaceError`` unless ``name=value`` is something for a search to try.

    Options that rescue a hang, probe or diagnose are sktune's own to set, or the user's in a plan.
    """
    if value == "" and option_rules(backend).defaults.get(name) == "":
        return  # not given, beside the values to try
    check_option(backend, device, name, value)
    if backend in SUPERKERNEL_BACKENDS and name not in TORCHAIR and SUPERKERNEL_OPTIONS[name].role != "searched":
        raise SpaceError(f"option {name} is for {SUPERKERNEL_OPTIONS[name].role}, not for a search; leave it out")


def option_rules(backend: str) -> OptionRules:
    """Return the defaults of ``backend``, which options hold for the whole step, and which of them act."""
    if backend == "inductor":
        others = {(name, value) for name in EXACT for value in INDUCTOR[name].values if value != EXACT[name]}
        return OptionRules(_defaults(INDUCTOR), inexact=frozenset(others))
    defaults = {**superkernel_options.option_defaults(), **_defaults(TORCHAIR)}
    return OptionRules(defaults, frozenset(TORCHAIR), superkernel_options.normalise)


def check_step_options(backend: str, plan: Plan) -> None:
    """Raise ``PlanError`` unless the plan's options of the whole step are options of ``backend``."""
    for name, value in plan.options:
        if backend == "inductor":
            raise PlanError(f"options of the whole step belong to the backend npu, got {name!r}; leave it out")
        if name not in TORCHAIR:
            raise PlanError(f"{backend} has no option {name!r} of the whole step{nearest(name, TORCHAIR)}")
        if value not in TORCHAIR[name].values:
            raise PlanError(f"option {name} is one of {list(TORCHAIR[name].values)}, got {value!r}")


def step_options(backend: str, plan: Plan) -> dict[str, Option]:
    """Return every option of ``backend`` that holds for the whole step, with its value under ``plan``."""
    rules = option_rules(backend)
    values = {**rules.defaults, **dict(plan.options)}
    return {name: values[name] for name in sorted(rules.of_step)}


def option_defaults(backend: str) -> dict[str, Option]:
    """Return the compiler's default of every option of ``backend``."""
    return dict(option_rules(backend).defaults)


def default_choices(backend: str, device: str) -> dict[str, tuple[Option, ...]]:
    """Return what to try of every option, for a space that lists none: nothing that may change bits."""
    if backend in SUPERKERNEL_BACKENDS:
        return {name: option.choices for name, option in SUPERKERNEL_OPTIONS.items() if _is_worth_a_search(name)}
    known = {name: spec for name, spec in INDUCTOR.items() if device in spec.devices}
    return {name: (EXACT[name],) if name in EXACT else spec.values for name, spec in known.items()}


def with_inexact(choices: Mapping[str, Sequence[Option]], device: str) -> dict[str, list[Option]]:
    """Return ``choices`` of Inductor's options and, after them, the values that may change bits."""
    found = {name: list(values) for name, values in choices.items()}
    for name, exact in EXACT.items():
        own = found.setdefault(name, [exact])
        own += [value for value in INDUCTOR[name].values if value not in own and device in INDUCTOR[name].devices]
    return found


def _is_worth_a_search(name: str) -> bool:
    option = SUPERKERNEL_OPTIONS[name]
    return option.role == "searched" and len(option.choices) > 1 and name != "func-align"


def _defaults(table: Mapping[str, OptionSpec]) -> dict[str, Option]:
    return {name: spec.default for name, spec in table.items()}
