"""The border of a region: memory that its inputs and outputs share with one another, and with what runs outside.

Eager execution sees at once, through every name, what is written through one. Inductor takes tensors for separate
buffers unless its own graph shows otherwise. Therefore inputs that share memory, of which one is written, enter a
region as one *window*, the stretch of memory that holds them all, and are made from it inside; and results that share
memory leave a region as one, from which the others are made outside. What cannot be handled is refused.

Where tensors lie in memory is known from the capture, and is the same in every step, as long as the step's own inputs
overlap as they did then: ``Overlaps`` checks that whenever the step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import fx

from ..torch_private import FakeTensorMode, ShapeEnv, TorchDispatchMode, schema_of, storage_id, tree_leaves

ALIGNMENT = 64
"""Bytes to which PyTorch aligns memory on CPUs (c10/core/alignment.h); more on GPUs."""


@dataclass(frozen=True)
class StoragePlace:
    """Where a tensor lies in a storage, in elements of its type."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, value: torch.Tensor) -> StoragePlace:
        """Return the place of a tensor."""
        return cls(tuple(value.size()), tuple(value.stride()), cast("int", value.storage_offset()), value.dtype)

    @property
    def elements(self) -> int:
        """The number of elements from the first to the last one, gaps included."""
        if 0 in self.size:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.size, self.stride))

    @property
    def bytes(self) -> tuple[int, int]:
        """Where the tensor begins and ends, in bytes from the storage's beginning."""
        return self.offset * self.dtype.itemsize, (self.offset + self.elements) * self.dtype.itemsize

    def is_like(self, other: StoragePlace) -> bool:
        """Return whether both places are the same; strides of dimensions of size 1 do not count."""
        strides = zip(self.size, self.stride, other.stride) if self.size == other.size else ()
        is_same = all(own == others for size, own, others in strides if size != 1)
        return is_same and (self.size, self.offset, self.dtype) == (other.size, other.offset, other.dtype)

    def tensor(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor at this place of a storage."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)

    def beside(self, value: torch.Tensor) -> torch.Tensor:
        """Return the tensor at this place of the storage of ``value``."""
        if value.dtype == self.dtype:
            return value.as_strided(self.size, self.stride, self.offset)
        return self.tensor(value.untyped_storage())


@dataclass(frozen=True)
class MemoryUse:
    """What a graph does with the memory of its inputs.

    Attributes:
        written: indices of the inputs into whose memory it writes, through whatever name.
        restrided: indices of the inputs whose memory it views by offsets from its beginning (``as_strided``).
        repeats: the operator that writes through a view in which elements repeat; empty if there is none.
    """

    written: tuple[int, ...] = ()
    restrided: tuple[int, ...] = ()
    repeats: str = ""


def memory_use(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> MemoryUse:
    """Return what ``graph_module`` does with the memory of ``inputs``, found by running it on fake tensors."""
    fake: Any = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())  # sizes may depend on the data
    with torch.inference_mode(False), torch.no_grad():
        fakes = [fake.from_tensor(each, static_shapes=True) if is_plain(each) else each for each in inputs]
        recorder = _Recorder([value for value in fakes if isinstance(value, torch.Tensor)])
        with fake, recorder:
            fx.Interpreter(graph_module).run(*fakes)
    storages = {index: storage_id(value) for index, value in enumerate(fakes) if isinstance(value, torch.Tensor)}
    written, restrided = (
        tuple(index for index, storage in storages.items() if storage in found)
        for found in (recorder.written, recorder.restrided)
    )
    return MemoryUse(written, restrided, recorder.repeats)


def overlapping(inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the groups of inputs of one storage that overlap, directly or through others; gaps count as elements."""
    by_storage: dict[int, list[tuple[int, int, int]]] = {}
    for index, value in enumerate(inputs):
        if is_plain(value) and value.numel():
            by_storage.setdefault(_address(value), []).append((*StoragePlace.of(value).bytes, index))
    groups: list[list[int]] = []
    for members in by_storage.values():
        reach = -1
        for begin, end, index in sorted(members):
            if begin < reach:
                groups[-1].append(index)
            else:
                groups.append([index])
            reach = max(reach, end)
    return [tuple(sorted(group)) for group in groups if len(group) > 1]


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is a tensor with strides and a storage."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested


class _Recorder(TorchDispatchMode):
    """Records into which storages is written, and writes through views in which elements repeat.

    Args:
        inputs: of the graph; elements of some may repeat.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: set[int] = set()
        self.restrided: set[int] = set()
        self.repeats = ""
        self._repeating = {id(value): value for value in inputs if _repeats(value)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        arguments = schema_of(func).arguments
        named = dict(zip((argument.name for argument in arguments), args)) | keywords
        for argument in arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for value in _tensors(named.get(argument.name)):
                    self.written.add(storage_id(value))
                    if id(value) in self._repeating:
                        self.repeats = str(func)
        inputs = _tensors(named)
        if func is torch.ops.aten.as_strided.default:
            self.restrided |= {storage_id(value) for value in inputs}
        tainted = {storage_id(value) for value in inputs if id(value) in self._repeating}
        for value in _tensors(result):
            # A view of a view in which elements repeat stands for all their repetitions, too.
            if _repeats(value) or storage_id(value) in tainted:
                self._repeating[id(value)] = value
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and is_plain(value)]


def _repeats(value: torch.Tensor) -> bool:
    """Return whether several elements of a tensor may be at one place in memory."""
    if not _is_static(value):
        return 0 in value.stride()
    reach = 0
    for stride, size in sorted(zip(value.stride(), value.shape)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


@dataclass(frozen=True)
class Window:
    """A stretch of memory in which several inputs of a scope lie.

    Attributes:
        members: their indices, and where each lies.
        start: where the window begins in the storage, in elements of ``dtype``: at an address that PyTorch aligns.
        size: its length in elements.
    """

    members: tuple[tuple[int, StoragePlace], ...]
    start: int
    size: int
    dtype: torch.dtype

    @classmethod
    def around(cls, members: Mapping[int, torch.Tensor], is_whole: bool) -> Window | None:
        """Return the window around some inputs, or around all of their storage.

        Returns:
            None if they are of types whose sizes do not fit together.
        """
        places = {index: StoragePlace.of(value) for index, value in members.items()}
        dtype = max((place.dtype for place in places.values()), key=lambda each: each.itemsize)
        start, end = min(place.bytes[0] for place in places.values()), max(place.bytes[1] for place in places.values())
        start -= start % ALIGNMENT
        if is_whole:
            start, end = 0, next(iter(members.values())).untyped_storage().nbytes()
        if (end - start) % dtype.itemsize:
            return None
        return cls(tuple(places.items()), start // dtype.itemsize, (end - start) // dtype.itemsize, dtype)

    def tensor(self, inputs: Sequence[Any]) -> torch.Tensor:
        """Return the window on the memory of ``inputs``, of shape (``size``,)."""
        first, place = self.members[0]
        moved = (inputs[first].storage_offset() - place.offset) * place.dtype.itemsize // self.dtype.itemsize
        return StoragePlace((self.size,), (1,), self.start + moved, self.dtype).beside(inputs[first])

    def view(self, graph: fx.Graph, window: fx.Node, place: StoragePlace) -> fx.Node:
        """Add to ``graph`` the view of the node ``window`` that is at ``place``, and return its node."""
        if place.dtype != self.dtype:
            window = graph.call_method("view", (window, place.dtype))
        offset = place.offset - self.start * self.dtype.itemsize // place.dtype.itemsize
        return graph.call_function(torch.as_strided, (window, place.size, place.stride, offset))


@dataclass(frozen=True)
class ScopeOutput:
    """How an output of the scope is made.

    Attributes:
        index: of the region's output that it is, or is a view of; with ``beside``, of the scope's input.
        place: of the output in that storage, which an output of the region then fills; None for that output as it is.
        beside: of the input in the same storage.
    """

    index: int
    place: StoragePlace | None = None
    beside: StoragePlace | None = None

    def make(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return the scope's output."""
        if self.place is None:
            return outputs[self.index]
        if self.beside is None:
            return self.place.beside(outputs[self.index])
        given = inputs[self.index]
        if self.place == self.beside:
            return given
        moved = (given.storage_offset() - self.beside.offset) * self.beside.dtype.itemsize // self.place.dtype.itemsize
        return replace(self.place, offset=self.place.offset + moved).beside(given)


@dataclass(frozen=True)
class Border:
    """Turns the inputs of a scope into those of the compiled region, and the region's outputs into those of the scope.

    Attributes:
        separate: indices of the inputs that enter as they are; the windows come after them.
        windows: the others.
        outputs: how each of the scope's outputs is made.
        own: where each of the region's outputs lies in memory of its own in eager execution, by index.
    """

    separate: tuple[int, ...]
    windows: tuple[Window, ...]
    outputs: tuple[ScopeOutput, ...]
    own: Mapping[int, StoragePlace]

    def inside(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the region's inputs."""
        return (*(inputs[index] for index in self.separate), *(window.tensor(inputs) for window in self.windows))


class Crossing:
    """A compiled region as it is called in place of its kernels.

    Compiled code may place two results into one buffer, or lay one out in another way than eager execution, which is
    what the kernels outside expect; such results are copied. The first call shows which.

    Args:
        function: the compiled region.
        border: of the scope.
    """

    def __init__(self, function: Callable[..., Any], border: Border) -> None:
        self._function, self._border = function, border
        is_same_inside = not border.windows
        is_same_outside = all(output.place is None for output in border.outputs)
        self._is_transparent = is_same_inside and is_same_outside
        self._copied: frozenset[int] | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the region; takes and returns what its kernels take and return."""
        if self._is_transparent and self._copied is not None and not self._copied:
            return tuple(self._function(*inputs))
        outputs = list(self._function(*self._border.inside(inputs)))
        if self._copied is None:
            self._copied = frozenset(_not_own(inputs, outputs, self._border.own))
        for index in self._copied:
            place = self._border.own[index]
            copy = torch.empty_strided(place.size, place.stride, dtype=place.dtype, device=outputs[index].device)
            outputs[index] = copy.copy_(outputs[index])
        return tuple(output.make(inputs, outputs) for output in self._border.outputs)


def _not_own(inputs: Sequence[Any], outputs: Sequence[Any], own: Mapping[int, StoragePlace]) -> Iterator[int]:
    """Yield which outputs share memory or lie in it otherwise than as in ``own``."""
    storages = [_address(value) for value in outputs]
    taken = {_address(value) for value in inputs} - {0}
    for index, place in own.items():
        address = storages[index]
        if not place.is_like(StoragePlace.of(outputs[index])) or (
            address and (address in taken or storages.count(address) > 1)
        ):
            yield index


def _address(value: Any) -> int:
    return value.untyped_storage().data_ptr() if is_plain(value) else 0


def region_outputs(
    graph: fx.Graph, returned: Sequence[Any], inputs: Mapping[int, tuple[int, StoragePlace]]
) -> tuple[list[Any], list[ScopeOutput], dict[int, StoragePlace]]:
    """Return what a region returns instead of the scope's outputs.

    Args:
        graph: its graph, with the captured values of its nodes.
        returned: the scope's outputs, nodes or constants.
        inputs: an index and a place of the scope's inputs by their storages.

    Returns:
        nodes or constants; how the scope's outputs are made of them; and the places of those that share memory with
        nothing else, by index.
    """
    values: list[Any] = [each.meta.get("example_value") if isinstance(each, fx.Node) else None for each in returned]
    storages = [storage_id(value) if is_plain(value) and _is_static(value) else 0 for value in values]
    nodes: list[Any] = []
    made: list[ScopeOutput] = []
    own: dict[int, StoragePlace] = {}
    bases: dict[int, int] = {}
    for node, value, storage in zip(returned, values, storages):
        if storage in inputs:
            made.append(ScopeOutput(inputs[storage][0], StoragePlace.of(value), inputs[storage][1]))
            continue
        if storage and (storages.count(storage) > 1 or not _fills_its_storage(value)):
            if storage not in bases and (base := _base(graph, storage)):
                bases[storage] = len(nodes)
                own[len(nodes)] = StoragePlace.of(base.meta["example_value"])
                nodes.append(base)
            if storage in bases:
                made.append(ScopeOutput(bases[storage], StoragePlace.of(value)))
                continue
        if storage:
            own[len(nodes)] = StoragePlace.of(value)
        made.append(ScopeOutput(len(nodes)))
        nodes.append(node)
    return nodes, made, own


def _base(graph: fx.Graph, storage: int) -> fx.Node | None:
    """Return the first node whose value fills ``storage``; None if no value of the graph does."""
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if is_plain(value) and _is_static(value) and storage_id(value) == storage and _fills_its_storage(value):
            found: fx.Node = node
            return found
    return None


def _fills_its_storage(value: torch.Tensor) -> bool:
    place = StoragePlace.of(value)
    nbytes = int(value.untyped_storage().nbytes())
    return place.bytes == (0, nbytes) and value.numel() == place.elements


def _is_static(value: torch.Tensor) -> bool:
    """Return whether size and place do not depend on the data."""
    return all(isinstance(each, int) for each in (*value.size(), *value.stride(), value.storage_offset()))


class Overlaps:
    """Checks whether the inputs of a step overlap in memory as they did when its regions were compiled.

    Only overlaps with memory that is written matter. Tensors that have not moved are not checked again.

    Args:
        inputs: of the step, as captured.
        written: indices of those into whose memory a region writes.
    """

    def __init__(self, inputs: Sequence[Any], written: Collection[int]) -> None:
        self._indices = [index for index, value in enumerate(inputs) if is_plain(value) and value.numel()]
        self._written = [index for index in self._indices if index in written]
        self._spans = {index: _span(inputs[index]) for index in self._indices}
        self._pairs = {(one, other) for one in self._written for other in self._indices if self._meets(one, other)}
        self._places = {index: StoragePlace.of(inputs[index]) for pair in self._pairs for index in pair}
        self._addresses = [inputs[index].data_ptr() for index in self._indices]

    def as_compiled(self, inputs: Sequence[Any]) -> bool:
        """Return whether ``inputs`` overlap as when the step was compiled."""
        addresses = [inputs[index].data_ptr() for index in self._indices]
        if not self._written or addresses == self._addresses:
            return True
        known = self._addresses or [-1] * len(addresses)
        moved = [index for index, new, old in zip(self._indices, addresses, known) if new != old]
        self._spans |= {index: _span(inputs[index]) for index in moved}
        self._addresses = addresses
        pairs = {(one, other) for one in self._written for other in moved}
        pairs |= {(one, other) for one in self._written if one in moved for other in self._indices}
        is_same = all(self._meets(*pair) == (pair in self._pairs) for pair in pairs)
        if is_same and all(
            StoragePlace.of(inputs[index]) == place for index, place in self._places.items() if index in moved
        ):
            return True
        self._addresses = []  # look at all of them again
        return False

    def _meets(self, one: int, other: int) -> bool:
        return one != other and _meet(self._spans[one], self._spans[other])


def separate_storages_meet(inputs: Sequence[Any], written: Collection[int]) -> tuple[int, int] | None:
    """Return two inputs whose storages overlap without being one, of which one is written; None if there are none."""
    spans = {index: _span(value) for index, value in enumerate(inputs) if is_plain(value) and value.numel()}
    for one in written:
        for other, span in spans.items():
            if one in spans and span != spans[one] and _meet(span, spans[one]):
                return one, other
    return None


def _span(value: torch.Tensor) -> tuple[int, int]:
    """Return where the storage of a tensor begins and ends in memory."""
    storage = value.untyped_storage()
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
