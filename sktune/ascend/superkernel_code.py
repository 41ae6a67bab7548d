"""What is generated for one SuperKernel: kernel type, cores, barriers, waits, preloads; or why it is refused.

Restated from graph-autofusion's generator (``super_kernel/src/jit/superkernel``, 8d0b4fbc) and held to the code that it
writes (``tests/golden/ge``), for sub-kernels with static shapes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

from sktune.ascend.superkernel_parts import (
    Core,
    GeneratedCode,
    KernelType,
    Refusal,
    SubKernel,
    feed_barrier,
    inner_events,
    merge,
    preloaded_lines,
    starved,
)
from sktune.ascend.superkernel_streams import synchronise
from sktune.core.plan import Option
from sktune.core.scope_options import option_defaults


def generate(kernels: Sequence[SubKernel], options: Mapping[str, Option]) -> GeneratedCode | Refusal:
    """Return what is generated for ``kernels``, in execution order, or why that is refused."""
    value = {**option_defaults(), **options}
    two_streams = _two_streams(kernels, is_fused=value["stream-fusion"] == 1)
    if isinstance(two_streams, Refusal):
        return two_streams
    merged = merge(kernels, _cores(value["debug-aic-num"]), _cores(value["debug-aiv-num"]))
    if isinstance(merged, Refusal):
        return merged
    kernel_type, blocks = merged
    inner = inner_events(kernels)
    if two_streams:
        return synchronise(kernels, value, kernel_type, blocks, inner)
    refusal, barriers = _barriers(kernels, value, kernel_type, inner)
    if refusal:
        return refusal
    starts_early = value["early-start"] != 0
    pairs = pairwise(kernel.kernel_type.core for kernel in kernels)
    feeds = value["feed-sync-all"] == 1
    hungry = starved(kernels, kernel_type, blocks)
    return GeneratedCode(
        kernel_type, blocks, False, barriers, Counter(pairs) if starts_early else {},
        waits=sum(len(set(kernel.receives) - inner) for kernel in kernels),
        notifies=sum(len(set(kernel.sends) - inner) for kernel in kernels),
        preloaded_lines=preloaded_lines(kernels, value["preload-code"]), copies=int(value["split-mode"]),
        fed=hungry if feeds else (), starved=() if feeds else hungry, clears_workspace=feeds,
    )  # fmt: skip


def _cores(value: Option) -> int:
    return value if isinstance(value, int) else 0


def _two_streams(kernels: Sequence[SubKernel], *, is_fused: bool) -> bool | Refusal:
    """Return whether the code is generated for two streams: if neighbours on different streams share no event."""
    two_streams = False
    for before, after in pairwise(kernels):
        if set(after.sends) & set(after.receives):
            return Refusal.EVENT_WITHIN_OPERATOR
        is_linked = bool(set(before.sends) & set(after.receives))
        if before.stream == after.stream and is_linked:
            return Refusal.EVENT_WITHIN_STREAM
        if before.stream != after.stream and not is_linked:
            if not is_fused:
                return Refusal.UNLINKED_STREAMS
            two_streams = True
            break
    if any(one.stream == other.stream and set(one.sends) & set(other.receives)
           for one, other in combinations(kernels, 2)):  # fmt: skip
        return Refusal.EVENT_WITHIN_STREAM
    return two_streams


def _barriers(
    kernels: Sequence[SubKernel], value: Mapping[str, Option], kernel_type: KernelType, inner: frozenset[int]
) -> tuple[Refusal | None, Counter[Core]]:
    """Return why events are refused, and the barriers between operators, and those that events make necessary."""
    barriers = Counter[Core]()
    if kernels[0].receives:
        return Refusal.FIRST_WAITS, barriers
    for before, after in pairwise(kernels):
        if value["early-start"] == 0:
            barriers[kernel_type.core] += 1
        if not after.receives:
            continue
        if before.sends:
            # A notification and a wait at one border need a barrier between them.
            if set(after.receives) - inner:
                barriers[kernel_type.core] += 1
            continue
        match before.kernel_type.core, after.kernel_type.core:
            case "vector", "cube":
                return Refusal.UNDEFINED_NAME, barriers
            case "cube", "vector" | "mix":
                barriers["vector"] += 1
    if kernels[-1].sends:
        return Refusal.LAST_NOTIFIES, barriers
    if value["debug-sync-all"] == 1:
        barriers[kernel_type.core] += len(kernels)
    if value["feed-sync-all"] == 1:
        barriers[feed_barrier(kernel_type)] += 1
    return None, barriers
