"""The cost of a SuperKernel: its operators' busy time, and what the generated code adds or hides.

What is generated is ``sktune.ascend.superkernel_code``'s; each of its barriers, signals, waits and copies
costs one constant of ``atlas_a3.yaml``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from sktune.ascend.superkernel_code import generate
from sktune.ascend.superkernel_parts import MAX_PRELOAD_BYTES, Core, GeneratedCode, KernelType, Refusal, SubKernel
from sktune.ascend.superkernel_pass import Events
from sktune.ascend.sync_all_splits import sync_all_splits
from sktune.core.plan import Option
from sktune.core.scope_options import check_options, option_defaults
from sktune.sim.constants import Constants
from sktune.sim.launch import first_use_us, head_us, launch_us
from sktune.sim.operators import Operator

TERMS = ("busy", "head", "gap", "barrier", "early_start", "icache", "sync_all", "stream_event", "stream_overlap")
"""The parts of a step's time; savings are negative."""
_KIB = 1024


@dataclass(frozen=True, slots=True)
class SuperKernel:
    """Operators that became one task.

    Attributes:
        kind: merged kernel type: ``MIX_AIV_1_0``, ``MIX_AIC_1_0``, ``MIX_AIC_1_1`` or ``MIX_AIC_1_2``.
        blocks: cores on which it is launched: AIV for ``MIX_AIV_1_0``, else AIC.
        terms: microseconds by term; the sum is its duration.
        hang: why it never ends; empty if it does.
        refusal: why the compiler refuses it; None if it does not.
    """

    kind: str
    blocks: int
    terms: Mapping[str, float]
    hang: str = ""
    refusal: Refusal | None = None

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
    """Return how long an operator computes or moves data: the roofline's time, or the measured one without its head
    and without what the first use of its kernel costs."""
    if operator.duration_us is not None:
        return operator.duration_us - head_us(operator, constants) - first_use_us(operator, constants)
    return max(constants["busy_floor_us"], *roofline_us(operator, constants))


def generated(
    operators: Sequence[Operator], options: Mapping[str, Option], constants: Constants, events: Sequence[Events] = ()
) -> GeneratedCode | Refusal:
    """Return what is generated for operators in one SuperKernel, or why that is refused.

    Raises:
        SpaceError: the compiler would reject an option.
    """
    check_options(options)
    each = events or [Events()] * len(operators)
    return generate([_kernel(op, event, constants) for op, event in zip(operators, each, strict=True)], options)


def starts_by_sync_all(operators: Sequence[Operator], constants: Constants) -> tuple[int, ...]:
    """Return the positions of operators with which GE begins another SuperKernel because of a SyncAll."""
    return sync_all_splits([_kernel(operator, Events(), constants) for operator in operators])


def _kernel(operator: Operator, events: Events, constants: Constants) -> SubKernel:
    unit = core_in_superkernel(operator)
    kernel_type = {"cube": KernelType.AIC_ONLY, "mix": KernelType.MIX_AIC_1_2, "vector": KernelType.AIV_ONLY}[unit]
    blocks = operator.blocks
    if operator.is_dynamic:
        blocks = int(constants["aiv_cores" if unit == "vector" else "aic_cores"])
    return SubKernel(
        kernel_type, blocks, operator.stream, events.sends, events.receives, operator.calls_sync_all,
        int(text_kib(operator, constants) * _KIB),
    )  # fmt: skip


def core_in_superkernel(operator: Operator) -> Core:
    """Return the cores that an operator uses; a fused collective runs in AIV mode (fact sheet, 3.1)."""
    return operator.core if operator.core in ("cube", "mix") else "vector"


def text_kib(operator: Operator, constants: Constants) -> float:
    """Return the size of an operator's code."""
    return constants[f"text_{core_in_superkernel(operator)}_kib"]


def fuse(
    operators: Sequence[Operator], options: Mapping[str, Option], constants: Constants, events: Sequence[Events] = ()
) -> SuperKernel:
    """Return the SuperKernel of operators in execution order; with a single one, nothing is gained or lost.

    Args:
        operators: all of them fusable.
        options: of the scope, with GE's names.
        constants: of the device.
        events: of each operator, if they are on several streams or wait for the outside.

    Raises:
        SpaceError: the compiler would reject an option.
    """
    code = generated(operators, options, constants, events)
    terms = dict.fromkeys(TERMS, 0.0)
    if isinstance(code, Refusal):
        return SuperKernel("", 0, terms, refusal=code)
    busy = [busy_us(operator, constants) for operator in operators]
    terms["busy"] = sum(busy)
    terms["head"] = head_us(operators[0], constants)
    terms["icache"] = first_use_us(operators[0], constants)
    if len(operators) > 1:
        terms["head"] = launch_us(code.kernel_type.core, code.blocks, constants)
        weights = barrier_weights(code, constants)
        terms["barrier"] = sum(weight * constants[name] for name, weight in weights.items())
        terms["early_start"] = -_early_start_us(operators, busy, options, constants)
        terms["icache"] += _icache_us(operators, busy, options, code.copies, constants)
        terms["stream_event"] = constants["stream_event_us"] * (code.waits + code.notifies)
        if code.is_two_streams:
            terms["stream_overlap"] = -_overlap_us(operators, busy, events)
    if code.clears_workspace:
        terms["sync_all"] = constants["feed_prologue_us"] + len(code.fed) * constants["feed_sync_all_us"]
    hang = ""
    if code.starved:
        first = operators[code.starved[0]]
        hang = (
            f"{first.type} ({first.name}) calls SyncAll on {first.blocks} cores of a SuperKernel that has more "
            f"({code.kernel_type} on {code.blocks}); set feed-sync-all=1, or leave the operator out of the scope"
        )
    return SuperKernel(str(code.kernel_type), code.blocks, terms, hang)


def barrier_weights(code: GeneratedCode, constants: Constants) -> dict[str, float]:
    """Return how often each constant of synchronisation applies; one between few cores counts for less.

    At a border with early start the cores of the operator before meet, and signal those of the operator after if these
    are others (``WaitPreTaskEndImpl`` in mirror-cann/asc-devkit); borders of operators on both kinds of cores are full
    barriers. That a barrier's cost grows with the logarithm of its cores is an assumption.
    """
    aiv_per_block = code.kernel_type.vectors_per_block
    aic, aiv = (0 if code.kernel_type.core == "vector" else code.blocks), code.blocks * aiv_per_block
    all_aic, all_aiv = constants["aic_cores"], constants["aiv_cores"]
    size: dict[Core, float] = {
        "vector": log2(1 + aiv) / log2(1 + all_aiv),
        "cube": log2(1 + aic) / log2(1 + all_aic),
        "mix": log2(1 + aic + aiv) / log2(1 + all_aic + all_aiv),
    }
    weights = {f"barrier_{core}_us": size[core] * code.barriers.get(core, 0) for core in size}
    signals = float(sum(code.signals.values()))
    for (before, after), count in code.borders.items():
        meets: Core = "mix" if "mix" in (before, after) else before
        weights[f"barrier_{meets}_us"] += count * size[meets]
        signals += count * (meets != "mix" and before != after)
    return weights | {"signal_us": signals}


def _early_start_us(
    operators: Sequence[Operator], busy: Sequence[float], options: Mapping[str, Option], constants: Constants
) -> float:
    """Return the time saved by overlapping the end of an operator with the prologue of the next one.

    One hook is enough: the generator signals after a kernel that does not do it before its end, and waits before one
    that does not do it after its prologue. Kernels are compiled with their hooks only with ``early-start=1``, and
    without ``stream-fusion``.
    """
    if options.get("early-start", 1) != 1 or options.get("stream-fusion", 0) == 1:
        return 0.0
    most, hooked = constants["early_start_us"], constants.early_start_types.value
    borders = zip(pairwise(operators), pairwise(busy), strict=True)
    return sum(
        min(most, before, current)
        for (left, right), (before, current) in borders
        if not right.is_dynamic and (left.type in hooked or right.type in hooked)
    )


def _icache_us(
    operators: Sequence[Operator], busy: Sequence[float], options: Mapping[str, Option], copies: int,
    constants: Constants,
) -> float:  # fmt: skip
    """Return the time that sub-kernels after the first wait for their code.

    Each of a MIX kernel's two functions is preloaded (``superkernel_parts.preloaded_lines``).
    """
    value = {**option_defaults(), **options}
    preloaded_kib = MAX_PRELOAD_BYTES / _KIB
    loaded_kib = text_kib(operators[0], constants)
    waited = 0.0
    for (left, right), before in zip(pairwise(operators), busy[:-1], strict=True):
        text = text_kib(right, constants)
        loaded_kib += text
        cold = first_use_us(right, constants)
        if left.type != right.type:  # otherwise the code is still in the instruction cache
            cores = constants["aiv_cores" if core_in_superkernel(right) == "vector" else "aic_cores"]
            # A fetch takes longer the more cores share a copy.
            share = 1.0 if right.is_dynamic else min(1.0, right.blocks / cores)
            contention = constants["icache_contention_us"] * share
            cold += constants["icache_fetch_us"] + contention / copies + constants["icache_copy_us"] * copies
        hidden = 0.0
        if value["preload-code"] == "max":
            hidden = cold if loaded_kib <= preloaded_kib else 0.0
        elif value["preload-code"] == "per-func":
            function_kib = text / 2 if core_in_superkernel(right) == "mix" else text
            hidden = min(cold * min(1.0, preloaded_kib / function_kib), before)
        waited += cold - hidden
    return waited


def _overlap_us(operators: Sequence[Operator], busy: Sequence[float], events: Sequence[Events]) -> float:
    """Return the time saved by two queues: an operator starts after those before it in its queues, on its stream, and
    those that signal it."""
    ends: list[float] = []
    queues: dict[str, float] = {}
    streams: dict[int, float] = {}
    senders = {event: place for place, each in enumerate(events) for event in each.sends}
    for place, (operator, time_us) in enumerate(zip(operators, busy, strict=True)):
        core = core_in_superkernel(operator)
        own = ("cube", "vector") if core == "mix" else (core,)
        signalled = [ends[senders[event]] for event in (events[place].receives if events else ()) if event in senders]
        start = max([streams.get(operator.stream, 0.0), *(queues.get(queue, 0.0) for queue in own), *signalled])
        ends.append(start + time_us)
        queues.update(dict.fromkeys(own, ends[-1]))
        streams[operator.stream] = ends[-1]
    return sum(busy) - max(ends)
