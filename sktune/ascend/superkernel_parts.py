"""The sub-kernels of a SuperKernel, and what its code consists of.

Restated from graph-autofusion's generator (``super_kernel/src/jit/superkernel``, 8d0b4fbc), as is ``superkernel_code``,
which uses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Literal

from sktune.core.plan import Option
from sktune.core.scope_options import MAX_AIC, MAX_AIV

MAX_PRELOAD_BYTES = 16 * 1024
"""Most code of a sub-kernel that is preloaded, on both kinds of cores: the size of an AIV's instruction cache."""
PRELOAD_LINE_BYTES = 2048
Core = Literal["cube", "vector", "mix"]


class KernelType(StrEnum):
    """On which cores a kernel runs, and in which ratio."""

    AIV_ONLY = "AIV_ONLY"
    AIC_ONLY = "AIC_ONLY"
    MIX_AIV_1_0 = "MIX_AIV_1_0"
    MIX_AIC_1_0 = "MIX_AIC_1_0"
    MIX_AIC_1_1 = "MIX_AIC_1_1"
    MIX_AIC_1_2 = "MIX_AIC_1_2"

    @property
    def core(self) -> Core:
        """The cores whose barrier ends it."""
        if self in (KernelType.AIV_ONLY, KernelType.MIX_AIV_1_0):
            return "vector"
        return "cube" if self in (KernelType.AIC_ONLY, KernelType.MIX_AIC_1_0) else "mix"

    @property
    def vectors_per_block(self) -> int:
        """AIV for each of its blocks."""
        return {KernelType.MIX_AIC_1_2: 2, KernelType.AIC_ONLY: 0, KernelType.MIX_AIC_1_0: 0}.get(self, 1)


@dataclass(frozen=True, slots=True)
class SubKernel:
    """An operator inside a SuperKernel.

    Attributes:
        kernel_type: of its own kernel.
        blocks: of its own kernel: AIV for vector kernels, else AIC.
        stream: on which it would run alone.
        sends, receives: numbers of its events.
        calls_sync_all: whether it waits for all cores of its launch.
        text_bytes: size of its code.
    """

    kernel_type: KernelType
    blocks: int
    stream: int = 0
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    calls_sync_all: bool = False
    text_bytes: int = 8192


class Refusal(StrEnum):
    """Why the generator refuses a SuperKernel: with EB0500, except for the last, which is an error of its own."""

    UNLINKED_STREAMS = "neighbours on different streams without a common event"
    EVENT_WITHIN_STREAM = "an event between operators of one stream"
    EVENT_WITHIN_OPERATOR = "an operator that waits for its own event"
    FIRST_WAITS = "the first operator waits for an event"
    LAST_NOTIFIES = "the last operator sends an event"
    CORES_RATIO = "debug-aic-num and debug-aiv-num in a ratio that no kernel has"
    CORES_OF_DEVICE = "more cores than the device has"
    CORES_OF_OPERATOR = "fewer cores than an operator needs"
    UNDEFINED_NAME = "a cube operator after a vector operator waits for an event (NameError in the generator)"

    @property
    def fix(self) -> str:
        """What to change in the plan."""
        return _FIXES[self]


_FIXES: Mapping[Refusal, str] = {
    Refusal.UNLINKED_STREAMS: "set stream-fusion=1, or end the scope where the stream changes",
    Refusal.EVENT_WITHIN_STREAM: "end the scope between these operators",
    Refusal.EVENT_WITHIN_OPERATOR: "leave the operator out of the scope",
    Refusal.FIRST_WAITS: "begin the scope earlier",
    Refusal.LAST_NOTIFIES: "end the scope later",
    Refusal.CORES_RATIO: "set debug-aiv-num to debug-aic-num or twice that",
    Refusal.CORES_OF_DEVICE: "set fewer cores",
    Refusal.CORES_OF_OPERATOR: "set debug-aic-num and debug-aiv-num to what the largest operator needs, or neither",
    Refusal.UNDEFINED_NAME: "end the scope before the operator that waits",
}


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """What the code of a SuperKernel does.

    Attributes:
        kernel_type, blocks: of the SuperKernel: blocks are AIV for ``MIX_AIV_1_0``, else AIC.
        is_two_streams: whether cube and vector cores run queues of their own, with events between them.
        barriers: by the cores that meet in them.
        borders: early-start borders, by the cores before and after; empty with ``early-start=0``.
        waits, notifies: of events from and to the outside.
        preloaded_lines: lines of ``PRELOAD_LINE_BYTES`` that are preloaded, for one copy of the code.
        copies: of each sub-kernel.
        fed: positions of sub-kernels whose SyncAll idle cores answer.
        starved: positions of sub-kernels that wait for cores that do not run them: the SuperKernel hangs.
        signals: between the queues of cube and vector cores, by the cores that send them.
        clears_workspace: whether it begins by clearing the workspace of ``feed-sync-all``, with a barrier.
    """

    kernel_type: KernelType
    blocks: int
    is_two_streams: bool = False
    barriers: Mapping[Core, int] = field(default_factory=dict)
    borders: Mapping[tuple[Core, Core], int] = field(default_factory=dict)
    waits: int = 0
    notifies: int = 0
    preloaded_lines: int = 0
    copies: int = 1
    fed: tuple[int, ...] = ()
    starved: tuple[int, ...] = ()
    clears_workspace: bool = False
    signals: Mapping[Core, int] = field(default_factory=dict)


def inner_events(kernels: Sequence[SubKernel]) -> frozenset[int]:
    """Return the events between two of the kernels."""
    sent = {event for kernel in kernels for event in kernel.sends}
    return frozenset(event for kernel in kernels for event in kernel.receives if event in sent)


def merge(kernels: Sequence[SubKernel], aic: int = 0, aiv: int = 0) -> tuple[KernelType, int] | Refusal:
    """Return kernel type and blocks of the SuperKernel.

    Args:
        kernels: its sub-kernels.
        aic, aiv: the options ``debug-aic-num`` and ``debug-aiv-num``; 0 if not given.
    """
    types = {kernel.kernel_type for kernel in kernels}
    most_aic = max((k.blocks for k in kernels if k.kernel_type.core != "vector"), default=0)
    most_aiv = max((k.blocks * k.kernel_type.vectors_per_block for k in kernels), default=0)
    cores = {kernel_type.core for kernel_type in types}
    if cores == {"vector"}:
        kernel_type, blocks = KernelType.MIX_AIV_1_0, most_aiv
    elif cores == {"cube"}:
        kernel_type, blocks = KernelType.MIX_AIC_1_0, most_aic
    elif types == {KernelType.MIX_AIC_1_1} or most_aiv <= most_aic:
        kernel_type, blocks = KernelType.MIX_AIC_1_1, most_aic
    else:
        kernel_type, blocks = KernelType.MIX_AIC_1_2, max(most_aic, ceil(most_aiv / 2))
    return _with_cores(kernel_type, blocks, aic, aiv) if aic or aiv else (kernel_type, blocks)


def _with_cores(kernel_type: KernelType, blocks: int, aic: int, aiv: int) -> tuple[KernelType, int] | Refusal:
    if aic and aiv and aiv not in (aic, 2 * aic):
        return Refusal.CORES_RATIO
    if aic > MAX_AIC or aiv > MAX_AIV:
        return Refusal.CORES_OF_DEVICE
    needed_aiv = blocks * kernel_type.vectors_per_block
    if (kernel_type.core != "vector" and aic < blocks) or (kernel_type.core != "cube" and aiv < needed_aiv):
        return Refusal.CORES_OF_OPERATOR
    if not aiv:
        return KernelType.MIX_AIC_1_0, aic
    if not aic:
        return KernelType.MIX_AIV_1_0, aiv
    return (KernelType.MIX_AIC_1_1 if aic == aiv else KernelType.MIX_AIC_1_2), aic


def starved(kernels: Sequence[SubKernel], kernel_type: KernelType, blocks: int) -> tuple[int, ...]:
    """Return the positions of kernels whose SyncAll waits for cores of the SuperKernel that do not run them."""
    found = []
    for place, kernel in enumerate(kernels):
        is_whole = kernel.blocks == blocks and kernel.kernel_type == kernel_type
        is_doubled = kernel_type is KernelType.MIX_AIC_1_2 and kernel.kernel_type.core == "vector"
        if kernel.calls_sync_all and not is_whole and kernel.blocks < (2 * blocks if is_doubled else blocks):
            found.append(place)
    return tuple(found)


def feed_barrier(kernel_type: KernelType) -> Core:
    """Return the cores that meet after clearing the workspace of ``feed-sync-all``."""
    return "cube" if kernel_type.core == "cube" else "vector"


def preloaded_lines(kernels: Sequence[SubKernel], mode: Option) -> int:
    """Return how many lines of code are preloaded, for one copy: of each next kernel, or 8 at the beginning."""
    if mode == "none":
        return 0
    if mode == "max":
        return MAX_PRELOAD_BYTES // PRELOAD_LINE_BYTES
    functions = (kernel for kernel in kernels for _ in range(2 if kernel.kernel_type.core == "mix" else 1))
    return sum(ceil(min(kernel.text_bytes, MAX_PRELOAD_BYTES) / PRELOAD_LINE_BYTES) for kernel in functions)
