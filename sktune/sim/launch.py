"""What starting a task costs: the gap before it, the head of its duration, and code that no cache holds yet.

The figures are of profiles of A2, where a task on cube and vector cores together (MIX) waits longer than others before
it starts and after it ends, and where a head grows with the number of blocks that are launched. A SuperKernel with cube
operators is launched as MIX, whatever the others are.
"""

from collections.abc import Sequence
from dataclasses import replace

from sktune.sim.constants import Constants
from sktune.sim.operators import Core, Operator


def gap_us(before: Core, core: Core, constants: Constants) -> float:
    """Return the time between two unfused tasks of one stream, by the cores on which they run."""
    gap = constants["dispatch_gap_us"]
    if before == "mix":
        gap += constants["gap_out_of_mix_us"]
    return gap + constants["gap_into_mix_us"] if core == "mix" else gap


def gaps_us(operators: Sequence[Operator], constants: Constants) -> list[float]:
    """Return the gap before each operator, unfused: the measured one, or the model's; zero for a stream's first."""
    gaps = []
    before: dict[int, Core] = {}
    for operator in operators:
        if operator.wait_us is not None:
            gaps.append(operator.wait_us)
        else:
            is_first = operator.stream not in before
            gaps.append(0.0 if is_first else gap_us(before[operator.stream], operator.core, constants))
        before[operator.stream] = operator.core
    return gaps


def superkernel_gaps_us(kind: str, first: Operator, last: Operator, constants: Constants) -> tuple[float, float]:
    """Return how much longer the gaps before and after a SuperKernel are than those of its operators.

    The profiles show them around ``MIX_AIC`` tasks, also around such that use no AIV, but around no ``MIX_AIV`` task.
    """
    if kind.startswith("MIX_AIV"):
        return 0.0, 0.0
    return (
        0.0 if first.core == "mix" else constants["gap_into_mix_us"],
        0.0 if last.core == "mix" else constants["gap_out_of_mix_us"],
    )


def launch_us(core: Core, blocks: int, constants: Constants) -> float:
    """Return the head of a task on so many blocks: AIV for vector tasks, else AIC, with their AIV if it is MIX."""
    if core in ("aicpu", "communication"):
        return constants["head_us"]
    return constants["head_us"] + blocks * constants["head_per_aiv_us" if core == "vector" else "head_per_aic_us"]


def task_us(constants: Constants) -> float:
    """Return gap and head of a vector task on half of the cores, which stand for those of any."""
    return constants["dispatch_gap_us"] + launch_us("vector", int(constants["aiv_cores"]) // 2, constants)


def head_us(operator: Operator, constants: Constants) -> float:
    """Return the part of an unfused task's duration in which its blocks are started and end."""
    blocks = operator.blocks
    if operator.is_dynamic:
        blocks = int(constants["aiv_cores" if operator.core == "vector" else "aic_cores"])
    head = launch_us(operator.core, blocks, constants)
    return head if operator.duration_us is None else min(head, operator.duration_us)


def first_use_us(operator: Operator, constants: Constants) -> float:
    """Return how much longer an unfused task takes because its kernel runs for the first time in its step."""
    if not operator.is_first_use or operator.core in ("aicpu", "communication"):
        return 0.0
    first = constants["first_use_us"]
    return first if operator.duration_us is None else min(first, operator.duration_us - head_us(operator, constants))


def with_first_uses(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators, of which each is marked whose kernel has not run before it in the step."""
    seen: set[tuple[object, ...]] = set()
    marked = []
    for operator in operators:
        kernel = (operator.type, operator.core, operator.blocks, operator.dtype, operator.shapes)
        marked.append(replace(operator, is_first_use=kernel not in seen))
        seen.add(kernel)
    return tuple(marked)
