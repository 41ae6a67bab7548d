"""The cost of a SuperKernel: its operators' busy time, barriers, early start, instruction cache, stream overlap.

The formula is from section 6.3 of the fact sheet; the constants are in ``atlas_a3.yaml``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2
from typing import Literal

from sktune.backends.sim.constants import Constants
from sktune.backends.sim.operators import Operator
from sktune.core.plan import Option
from sktune.core.scope_options import check_options, normalise

TERMS = ("busy", "head", "gap", "barrier", "early_start", "icache", "sync_all", "stream_event", "stream_overlap")
"""The parts of a step's time; savings are negative."""
Border = Literal["vector", "cube", "mix"]


@dataclass(frozen=True, slots=True)
class FusionOptions:
    """The options of a scope that affect the model; others are ignored (fact sheet, 2.2)."""

    stream_fusion: int = 0
    early_start: int = 1
    preload_code: str = "per-func"
    split_mode: int = 4
    feed_sync_all: int = 0
    strict_scope_check: str = ""

    @classmethod
    def of(cls, options: Mapping[str, Option]) -> "FusionOptions":
        """Read them from a scope's options, with GE's names.

        Raises:
            SpaceError: the compiler would reject an option.
        """
        check_options(options)
        values = {name.replace("-", "_"): value for name, value in normalise(options).items()}
        return cls(**{name: value for name, value in values.items() if name in cls.__slots__})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SuperKernel:
    """Operators that became one task.

    Attributes:
        kind: merged kernel type: ``MIX_AIV_1_0``, ``MIX_AIC_1_0``, ``MIX_AIC_1_1`` or ``MIX_AIC_1_2``.
        blocks: cores on which it is launched: AIV for ``MIX_AIV_1_0``, else AIC.
        terms: microseconds by term; the sum is its duration.
        hang: why it never ends; empty if it does.
    """

    kind: str
    blocks: int
    terms: Mapping[str, float]
    hang: str = ""

    @property
    def duration_us(self) -> float:
        """Task time, including the head."""
        return sum(self.terms.values())


def roofline_us(operator: Operator, constants: Constants) -> tuple[float, float]:
    """Return an operator's compute time and its memory time.

    Using fewer cores slows it down less than proportionally: ``(all / cores) ** core_exponent``.
    """
    if operator.core in ("cube", "mix"):
        rate, cores = constants[f"cube_{operator.dtype}_tflops"] * constants["cube_efficiency"], constants["aic_cores"]
    else:
        rate, cores = constants["vector_tflops"], constants["aiv_cores"]
    blocks = cores if operator.is_dynamic else min(operator.blocks, cores)
    slowdown = float((cores / blocks) ** constants["core_exponent"])
    # 1 TFLOP/s and 1 TB/s are 1e6 operations or bytes per microsecond.
    bandwidth = constants["hbm_tbps"] * constants["hbm_efficiency"]
    return operator.flops / rate / 1e6 * slowdown, operator.bytes_moved / bandwidth / 1e6 * slowdown


def busy_us(operator: Operator, constants: Constants) -> float:
    """Return how long an operator computes or moves data: measured time minus the head, or the roofline's."""
    if operator.duration_us is not None:
        return operator.duration_us - head_us(operator, constants)
    return max(constants["busy_floor_us"], *roofline_us(operator, constants))


def head_us(operator: Operator, constants: Constants) -> float:
    """Return the part of an unfused task's duration that disappears inside a SuperKernel."""
    head = constants["head_us"]
    return head if operator.duration_us is None else min(head, operator.duration_us)


def fuse(operators: Sequence[Operator], options: FusionOptions, constants: Constants) -> SuperKernel:
    """Return the SuperKernel of consecutive fusable operators; with a single one, nothing is gained or lost."""
    kind, blocks, aic, aiv = _merge(operators, constants)
    busy = [busy_us(operator, constants) for operator in operators]
    terms = dict.fromkeys(TERMS, 0.0)
    terms["busy"] = sum(busy)
    terms["head"] = head_us(operators[0], constants)
    if len(operators) > 1:
        weights = barrier_weights(operators, options, constants)
        terms["barrier"] = sum(weight * constants[f"barrier_{border}_us"] for border, weight in weights.items())
        terms["early_start"] = -_early_start_us(operators, busy, options, constants)
        terms["icache"] = _icache_us(operators, busy, options, constants)
        terms["stream_event"], terms["stream_overlap"] = _streams_us(operators, busy, options, constants)
    starved = [
        operator for operator in operators if operator.calls_sync_all and operator.blocks < _of(operator, aic, aiv)
    ]
    if options.feed_sync_all:
        terms["sync_all"] = len(starved) * constants["feed_sync_all_us"]
        starved = []
    hang = ""
    if starved:
        first = starved[0]
        hang = (
            f"{first.type} ({first.name}) calls SyncAll on {first.blocks} cores of a SuperKernel that has "
            f"{_of(first, aic, aiv)}; set feed-sync-all=1, or leave the operator out of the scope"
        )
    return SuperKernel(kind, blocks, terms, hang)


def barrier_weights(operators: Sequence[Operator], options: FusionOptions, constants: Constants) -> dict[Border, float]:
    """Return how many barriers of each kind a SuperKernel has; one between few cores counts for less.

    Vector units synchronise after vector work, cube units after cube work, all of them where the type changes (fact
    sheet, 2.3). That a barrier's cost grows with the logarithm of its cores is an assumption.
    """
    _, _, aic, aiv = _merge(operators, constants)
    all_aic, all_aiv = constants["aic_cores"], constants["aiv_cores"]
    size: dict[Border, float] = {
        "vector": log2(1 + aiv) / log2(1 + all_aiv),
        "cube": log2(1 + aic) / log2(1 + all_aic),
        "mix": log2(1 + aic + aiv) / log2(1 + all_aic + all_aiv),
    }
    # Without early start every border is a full barrier of the merged kernel (fact sheet, 2.2).
    is_full = not options.early_start and len(set(map(_unit, operators))) > 1
    weights: dict[Border, float] = dict.fromkeys(size, 0.0)
    for left, right in pairwise(operators):
        units = {_unit(left), _unit(right)}
        kind: Border = "mix" if is_full or len(units) > 1 else units.pop()
        weights[kind] += size[kind]
    return weights


def _unit(operator: Operator) -> Border:
    # A fused collective runs in AIV mode (fact sheet, 3.1).
    return operator.core if operator.core in ("cube", "mix") else "vector"


def _of(operator: Operator, aic: int, aiv: int) -> int:
    return aiv if _unit(operator) == "vector" else aic


def _merge(operators: Sequence[Operator], constants: Constants) -> tuple[str, int, int, int]:
    """Return kernel type, blocks, AIC and AIV of the merged kernel (fact sheet, 2.3)."""
    all_aic, all_aiv = int(constants["aic_cores"]), int(constants["aiv_cores"])
    aic = max((all_aic if op.is_dynamic else op.blocks for op in operators if _unit(op) != "vector"), default=0)
    aiv = max((all_aiv if op.is_dynamic else op.blocks for op in operators if _unit(op) == "vector"), default=0)
    if any(_unit(op) == "mix" for op in operators):
        aiv = max(aiv, 2 * aic)
    if not aic:
        return "MIX_AIV_1_0", aiv, 0, aiv
    if not aiv:
        return "MIX_AIC_1_0", aic, aic, 0
    if aiv <= aic:
        return "MIX_AIC_1_1", aic, aic, aic
    blocks = max(aic, ceil(aiv / 2))
    return "MIX_AIC_1_2", blocks, blocks, 2 * blocks


def _early_start_us(
    operators: Sequence[Operator], busy: Sequence[float], options: FusionOptions, constants: Constants
) -> float:
    """Return the time saved by running an operator's prologue during the end of the previous one."""
    if not options.early_start or options.stream_fusion:
        return 0.0
    most = constants["early_start_us"] * (constants["early_start_without_hooks"] if options.early_start == 2 else 1.0)
    pairs = zip(operators[1:], pairwise(busy), strict=True)
    return sum(min(most, before, current) for right, (before, current) in pairs if not right.is_dynamic)


def _icache_us(
    operators: Sequence[Operator], busy: Sequence[float], options: FusionOptions, constants: Constants
) -> float:
    """Return the time that sub-kernels wait for their code; the first one's is part of the head."""
    copies = options.split_mode
    cold = (
        constants["icache_fetch_us"] + constants["icache_contention_us"] / copies + constants["icache_copy_us"] * copies
    )
    loaded_kib = _text_kib(operators[0], constants)
    waited = 0.0
    for (left, right), before in zip(pairwise(operators), busy[:-1], strict=True):
        text = _text_kib(right, constants)
        loaded_kib += text
        if left.type == right.type:
            continue  # the code is still in the cache
        hidden = 0.0
        if options.preload_code == "max":
            hidden = cold if loaded_kib <= constants["icache_preload_kib"] else 0.0
        elif options.preload_code == "per-func":
            room = constants["icache_aiv_kib"] if _unit(right) == "vector" else constants["icache_aic_kib"]
            hidden = min(cold * min(1.0, room / text), before)
        waited += cold - hidden
    return waited


def _text_kib(operator: Operator, constants: Constants) -> float:
    return constants[f"text_{_unit(operator)}_kib"]


def _streams_us(
    operators: Sequence[Operator], busy: Sequence[float], options: FusionOptions, constants: Constants
) -> tuple[float, float]:
    """Return the time of events, and the time saved by overlapping cube and vector work of different streams."""
    streams = sorted({operator.stream for operator in operators})
    if not options.stream_fusion or len(streams) < 2:
        return 0.0, 0.0
    spent = {(stream, unit): 0.0 for stream in streams for unit in ("cube", "vector", "mix")}
    for operator, time_us in zip(operators, busy, strict=True):
        spent[operator.stream, _unit(operator)] += time_us
    one, other = streams
    saved = min(spent[one, "cube"], spent[other, "vector"]) + min(spent[other, "cube"], spent[one, "vector"])
    inside = {operator.position for operator in operators}
    events = sum(len(inside.intersection(operator.after)) for operator in operators)
    return events * constants["stream_event_us"], -saved
