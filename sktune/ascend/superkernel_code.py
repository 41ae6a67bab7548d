"""What is generated for one SuperKernel: kernel type, cores, barriers, waits, preloads; or why it is refused.

Restated from graph-autofusion's generator (``super_kernel/src/jit/superkernel``, 8d0b4fbc) and held to the code that it
writes (``tests/golden/ge``), for sub-kernels with static shapes.

A SuperKernel of two streams has a queue for each kind of cores, and signals between them
(``super_kernel_op_infos.py``, ``insert_sync_by_stream_idx`` to ``optimize_sync_pass``, ``gen_2_real_stream_*`` in
``super_kernel.py``); the result depends on the order in which signals are removed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Literal

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
from sktune.core.plan import Option
from sktune.core.scope_options import option_defaults

Queue = Literal["cube", "vector"]
QUEUES: tuple[Queue, ...] = ("cube", "vector")
"""In the order in which they are generated."""
_OTHER: Mapping[Queue, Queue] = {"cube": "vector", "vector": "cube"}


def generate(kernels: Sequence[SubKernel], options: Mapping[str, Option]) -> GeneratedCode | Refusal:
    """Return what is generated for ``kernels``, in execution order, or why that is refused."""
    value = {**option_defaults(), **options}
    two_streams = _two_streams(kernels, is_fused=value["stream-fusion"] == 1)
    if isinstance(two_streams, Refusal):
        return two_streams
    aic, aiv = (cores if isinstance(cores := value[f"debug-{core}-num"], int) else 0 for core in ("aic", "aiv"))
    merged = merge(kernels, aic, aiv)
    if isinstance(merged, Refusal):
        return merged
    kernel_type, blocks = merged
    inner = inner_events(kernels)
    if two_streams:
        return _synchronised(kernels, value, kernel_type, blocks, inner)
    barriers = _barriers(kernels, value, kernel_type, inner)
    if isinstance(barriers, Refusal):
        return barriers
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
) -> Counter[Core] | Refusal:
    """Return the barriers between operators, and those that events make necessary, or why events are refused."""
    if kernels[0].receives:
        return Refusal.FIRST_WAITS
    barriers = Counter[Core]()
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
                return Refusal.UNDEFINED_NAME
            case "cube", "vector" | "mix":
                barriers["vector"] += 1
    if kernels[-1].sends:
        return Refusal.LAST_NOTIFIES
    if value["debug-sync-all"] == 1:
        barriers[kernel_type.core] += len(kernels)
    if value["feed-sync-all"] == 1:
        barriers[feed_barrier(kernel_type)] += 1
    return barriers


def _synchronised(
    kernels: Sequence[SubKernel], value: Mapping[str, Option], kernel_type: KernelType, blocks: int,
    inner: frozenset[int],
) -> GeneratedCode | Refusal:  # fmt: skip
    """Return what is generated for kernels on two streams that are not all linked by events."""
    last = len(kernels) - 1
    if any(set(each.sends) & set(each.receives) for each in kernels):
        return Refusal.EVENT_WITHIN_OPERATOR
    queues = _Queues(kernels, inner)
    for queue in QUEUES:
        if 0 in queues.places[queue] and kernels[0].receives:
            return Refusal.FIRST_WAITS
        if last in queues.places[queue] and kernels[last].sends:
            return Refusal.LAST_NOTIFIES
    barriers, signals = Counter[Core](), Counter[Core]()
    waits = notifies = 0
    for queue in QUEUES:
        places = queues.places[queue]
        for place in places:
            queues.send(place, queue, barriers, signals)
            notifies += queues.notifies(place, queue)
        for place in places[1:]:
            outer = len(set(kernels[place].receives) - inner)
            waits += outer
            barriers[kernels[place].kernel_type.core] += outer > 0
        if value["debug-sync-all"] == 1:
            barriers[queue] += len(places)
    feeds = value["feed-sync-all"] == 1
    if feeds:
        barriers[feed_barrier(kernel_type)] += 1
    hungry = starved(kernels, kernel_type, blocks)
    lines = value["preload-code"]
    in_queues = [[kernels[place] for place in queues.places[queue]] for queue in QUEUES]
    return GeneratedCode(
        kernel_type, blocks, True, barriers, {}, waits, notifies,
        preloaded_lines=sum(preloaded_lines(each, lines) for each in in_queues if each),
        copies=int(value["split-mode"]), fed=hungry if feeds else (), starved=() if feeds else hungry,
        clears_workspace=feeds, signals=signals,
    )  # fmt: skip


class _Queues:
    """What each kernel must signal to which.

    Attributes:
        places: the positions of each queue's kernels.
    """

    def __init__(self, kernels: Sequence[SubKernel], inner: frozenset[int]) -> None:
        self._kernels, self._inner = kernels, inner
        self.places: dict[Queue, list[int]] = {
            "cube": [place for place, each in enumerate(kernels) if each.kernel_type.core != "vector"],
            "vector": [place for place, each in enumerate(kernels) if each.kernel_type.core != "cube"],
        }
        self._sends: list[dict[int, str]] = [{} for _ in kernels]
        self._receives: list[dict[int, str]] = [{} for _ in kernels]
        self._notify_queue: dict[int, Queue] = {
            place: "cube" if each.kernel_type.core == "cube" else "vector" for place, each in enumerate(kernels)
        }
        streams = dict.fromkeys(each.stream for each in kernels)
        on = {stream: [place for place, each in enumerate(kernels) if each.stream == stream] for stream in streams}
        self._ends_stream = {places[-1] for places in on.values()}
        for places in on.values():
            for before, after in pairwise(places):
                self._link(before, after)
        receivers = {event: place for place, each in enumerate(kernels) for event in each.receives}
        for event, sender in {event: place for place, each in enumerate(kernels) for event in each.sends}.items():
            if event in receivers:
                self._link(sender, receivers[event])
        self._link_notifiers()
        self._remove_crossed()
        self._keep_one(self._sends, latest=False)
        self._keep_one(self._receives, latest=True)

    def send(self, place: int, queue: Queue, barriers: Counter[Core], signals: Counter[Core]) -> None:
        """Count what a kernel does at its end for those that depend on it."""
        if place == len(self._kernels) - 1:
            return
        events = [event for text in self._sends[place].values() for event in text.split(";")]
        within = f"{queue}:{queue}", f"{_OTHER[queue]}:{queue}"
        across = f"{queue}:{_OTHER[queue]}"
        notifies_outside = place in self._ends_stream and self._outer(place) > 0
        if across in events or notifies_outside or any(event in events for event in within):
            barriers[queue] += 1
            signals[queue] += sum(across in text.split(";") for text in self._sends[place].values())

    def notifies(self, place: int, queue: Queue) -> int:
        """Return the number of events to the outside that a kernel sends from this queue."""
        return self._outer(place) if self._notify_queue[place] == queue else 0

    def _outer(self, place: int) -> int:
        return len(set(self._kernels[place].sends) - self._inner)

    def _core(self, place: int) -> Core:
        return self._kernels[place].kernel_type.core

    def _link(self, before: int, after: int) -> None:
        one, other = self._core(before), self._core(after)
        if one == other == "mix":
            event = "cube:vector;vector:cube"
        elif one == "mix":
            event = "vector:cube" if other == "cube" else "cube:vector"
        elif other == "mix":
            event = "cube:vector" if one == "cube" else "vector:cube"
        else:
            event = f"{one}:{other}"
        self._sends[before][after] = self._receives[after][before] = event

    def _link_notifiers(self) -> None:
        """A mix kernel that notifies the outside does so before the next operator, on whose core that takes."""
        for place in range(len(self._kernels) - 1):
            if self._core(place) != "mix" or not self._outer(place):
                continue
            if self._core(place + 1) == "cube":
                self._notify_queue[place] = "cube"
            if self._kernels[place + 1].stream != self._kernels[place].stream and place + 1 not in self._sends[place]:
                self._link(place, place + 1)

    def _index(self, place: int, queue: Queue) -> int:
        return self.places[queue].index(place) if place in self.places[queue] else 0

    def _remove_crossed(self) -> None:
        """Remove signals that a later one to an earlier receiver makes needless."""
        removed = list[tuple[int, int, str]]()
        for queue in QUEUES:
            other = _OTHER[queue]
            across = f"{queue}:{other}"
            for sender in self.places[queue]:
                for receiver, text in self._sends[sender].items():
                    is_crossed = any(
                        self._index(source, queue) > self._index(sender, queue)
                        for earlier in self.places[other][: self._index(receiver, other)]
                        for source, signal in self._receives[earlier].items()
                        if across in signal
                    )
                    if is_crossed and across in text.split(";"):
                        removed.append((sender, receiver, _without(text, across)))
        self._apply(removed)

    def _keep_one(self, ends: Sequence[Mapping[int, str]], *, latest: bool) -> None:
        """Of several signals in one direction, keep that to the earliest receiver, or from the latest sender."""
        for queue in reversed(QUEUES):
            across = f"{_OTHER[queue]}:{queue}" if latest else f"{queue}:{_OTHER[queue]}"
            removed = list[tuple[int, int, str]]()
            for place in self.places[queue]:
                found = [(each, text) for each, text in ends[place].items() if across in text]
                if len(ends[place]) > 1 and len(found) > 1:
                    found.sort(key=lambda pair: self._index(pair[0], _OTHER[queue]), reverse=latest)
                    for each, text in found[1:]:
                        sender, receiver = (each, place) if latest else (place, each)
                        removed.append((sender, receiver, _without(text, across)))
            self._apply(removed)

    def _apply(self, removed: Sequence[tuple[int, int, str]]) -> None:
        for sender, receiver, rest in removed:
            for events, key in ((self._sends[sender], receiver), (self._receives[receiver], sender)):
                if rest:
                    events[key] = rest
                else:
                    events.pop(key, None)


def _without(text: str, event: str) -> str:
    return ";".join(each for each in text.split(";") if each != event)
