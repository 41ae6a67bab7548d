"""What is compared of a program's decode step: every tensor, wherever the program keeps it."""

import types
from collections import ChainMap, OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
import torch
from torch import nn

from sktune.core.errors import TargetError
from sktune.runners.program.tensors import digest_of, digests_of, outputs_of, signature_of, state_of

KEPT_BY_MODULE: dict[str, Any] = {}


class Pair(NamedTuple):
    """One of each."""

    key: Any
    value: Any


@dataclass(slots=True)
class Slots:
    """As a cache may be kept; it has no ``__dict__``."""

    key: Any = None
    value: Any = None


class PlainSlots:
    """Slots of a base class count, those without a value do not."""

    __slots__ = ("_hidden", "unset")

    def __init__(self, value: Any) -> None:
        self._hidden = value


class Below(PlainSlots):
    """Adds none."""

    __slots__ = ()


class OwnSequence(Sequence[Any]):
    """A sequence of the program's own, which must not be called."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError(index)

    def __len__(self) -> int:
        raise AssertionError

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


class OwnMapping(Mapping[str, Any]):
    """A mapping of the program's own, which must not be called."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        raise AssertionError(key)

    def __len__(self) -> int:
        raise AssertionError

    def __iter__(self) -> Iterator[str]:
        raise AssertionError


class OwnList(list[Any]):
    """A list whose iteration has a side effect."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


class Watchful:
    """Whatever asks for an attribute of it runs the program's code."""

    def __init__(self, value: Any) -> None:
        self.__dict__["kept"] = value

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            return object.__getattribute__(self, name)
        raise AssertionError(name)

    @property
    def surprise(self) -> Any:
        """Must not be read."""
        raise AssertionError


class Wrapper(torch.Tensor):
    """A tensor that holds its values in two inner ones, as quantised tensors do."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> Self:
        own = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)
        own.values_, own.scale = values, scale  # type: ignore[attr-defined]
        return own

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values_", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError


def nested(value: Any, depth: int) -> Any:
    """Return ``value`` in so many lists."""
    for _ in range(depth):
        value = [value]
    return value


CONTAINERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "list": lambda tensor: [1, tensor],
    "tuple": lambda tensor: (tensor,),
    "dict": lambda tensor: {"a": tensor},
    "key of a dict": lambda tensor: {tensor: 1},
    "set": lambda tensor: {tensor, 3},
    "frozenset": lambda tensor: frozenset((tensor,)),
    "deque": lambda tensor: deque([None, tensor], maxlen=2),
    "named tuple": lambda tensor: Pair(1, tensor),
    "ordered dict": lambda tensor: OrderedDict(a=tensor),
    "user dict": lambda tensor: UserDict(a=tensor),
    "chain map": lambda tensor: ChainMap({}, {"a": tensor}),
    "keys": lambda tensor: {tensor: 1}.keys(),
    "values": lambda tensor: {"a": tensor}.values(),
    "ordered values": lambda tensor: OrderedDict(a=tensor).values(),
    "items": lambda tensor: {"a": tensor}.items(),
    "proxy": lambda tensor: types.MappingProxyType({"a": tensor}),
    "proxy of a mapping of its own": lambda tensor: types.MappingProxyType(OwnMapping(a=tensor)),
    "namespace": lambda tensor: types.SimpleNamespace(a=tensor),
    "dataclass with slots": lambda tensor: Slots(value=Slots(key=tensor)),
    "slots of a base class": Below,
    "sequence of its own": OwnSequence,
    "mapping of its own": lambda tensor: OwnMapping(a=tensor),
    "list of its own": lambda tensor: OwnList([tensor]),
    "watchful": Watchful,
    "partial": lambda tensor: partial(print, tensor),
    "array of objects": lambda tensor: np.array([None, Slots(tensor)], dtype=object),
    "very deep": lambda tensor: nested(tensor, 5000),
    "list of modules": lambda tensor: [holding(tensor)],
    "buffer list": lambda tensor: nn.BufferList([tensor]) if hasattr(nn, "BufferList") else [tensor],
}


def holding(tensor: torch.Tensor) -> nn.Module:
    """Return a module that nobody has registered, with a buffer."""
    module = nn.Module()
    module.register_buffer("cache", tensor)
    return module


def bits_of_state(module: nn.Module, arguments: Any = (), function: Any = None) -> dict[str, str]:
    """Return digests of the state by name."""
    return digests_of(state_of(module, arguments, function))


class TestState:
    """All that outlives a step."""

    @pytest.mark.parametrize("kind", CONTAINERS)
    def test_a_bit_is_seen_wherever_it_lies(self, kind: str) -> None:
        """As an attribute of a module, as an argument, and in an output; nothing of the program's is called."""
        tensor, module = torch.zeros(3), nn.Module()
        kept = CONTAINERS[kind](tensor)
        module.__dict__["cache"] = kept
        found = [bits_of_state(module), bits_of_state(nn.Module(), (kept,)), digests_of(outputs_of(kept))]
        tensor[1] = -0.0
        after = [bits_of_state(module), bits_of_state(nn.Module(), (kept,)), digests_of(outputs_of(kept))]
        for before, later in zip(found, after, strict=True):
            assert before.keys() == later.keys()
            assert before != later

    def test_it_is_what_is_no_parameter(self) -> None:
        """Buffers, attributes, lists of them, and what the call is given."""
        module = nn.BatchNorm1d(2)
        module.cache = [torch.zeros(1), {"k": torch.ones(1)}]  # type: ignore[assignment]
        names = set(bits_of_state(module, ((torch.ones(2),), {"meta": types.SimpleNamespace(table=torch.ones(1))})))
        assert names == {
            "model.cache[0]", "model.cache[1]['k']", "model.running_mean", "model.running_var",
            "model.num_batches_tracked", "arguments[0][0]", "arguments[1]['meta'].table",
        }  # fmt: skip

    def test_every_module_counts(self) -> None:
        """Each layer's attention may hold its own cache: none is skipped, so a change in any of them is seen."""
        tree = nn.ModuleList([nn.Identity() for _ in range(20)])
        for module in tree:
            module.cache = [torch.zeros(2), torch.zeros(2)]  # type: ignore[assignment]
        before = bits_of_state(tree)
        for number, module in enumerate(tree):
            for place in range(2):
                module.cache[place].add_(1)  # type: ignore[index]
                after = bits_of_state(tree)
                changed = [name for name in after if before.get(name) != after[name]]
                assert changed == [f"model.{number}.cache[{place}]"]
                before = after

    def test_it_may_lie_in_the_step_itself(self) -> None:
        """In its closure, in one of a function that it calls, in its defaults, and in a variable of its file."""
        inner, outer, default = torch.zeros(1), torch.zeros(1), torch.zeros(1)
        KEPT_BY_MODULE["cache"] = torch.zeros(1)

        def attend() -> torch.Tensor:
            return inner

        def step(tokens: torch.Tensor, kept: torch.Tensor = default) -> Any:
            return tokens, kept, outer, attend(), KEPT_BY_MODULE

        found = bits_of_state(nn.Module(), (), step)
        for tensor in (inner, outer, default, KEPT_BY_MODULE["cache"]):
            tensor.add_(1)
            after = bits_of_state(nn.Module(), (), step)
            assert sum(found[name] != after[name] for name in found) == 1
            found = after

    def test_it_may_hang_on_a_class(self) -> None:
        """One cache for all layers, as an attribute of their class."""

        class Layer(nn.Module):
            cache: Any = [torch.zeros(1)]

        before = bits_of_state(Layer())
        Layer.cache[0].add_(1)
        assert bits_of_state(Layer()) != before

    def test_cycles_end_and_objects_count_once(self) -> None:
        """However many ways lead to them."""
        shared = Slots(torch.zeros(1))
        shared.value = shared
        module: Any = nn.Module()
        module.one, module.other, module.module = [shared, shared], {"again": shared}, [module]
        assert list(bits_of_state(module)) == ["model.one[0].key"]

    def test_iterators_are_not_advanced(self) -> None:
        """Neither a generator nor an iterator over a list loses an element."""
        module: Any = nn.Module()
        module.generator = (number for number in range(2))
        module.iterator = iter([torch.zeros(1), torch.ones(1)])
        bits_of_state(module)
        digests_of(outputs_of([module.generator, module.iterator]))
        assert len(list(module.generator)) == 2
        assert len(list(module.iterator)) == 2

    def test_sets_have_no_order(self) -> None:
        """The same tensors have the same digest, in whatever order a set gives them."""
        digests = []
        for _ in range(20):
            module: Any = nn.Module()
            module.cache = {torch.full((2,), float(value)) for value in range(6)}
            digests.append(bits_of_state(module))
        assert all(own == digests[0] for own in digests)
        assert digests[0]["model.cache{}"].endswith("/12")

    def test_caches_of_transformers_are_seen(self) -> None:
        """Keys and values of each layer."""
        cache = pytest.importorskip("transformers").DynamicCache()
        for layer in range(2):
            cache.update(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), layer)
        before = bits_of_state(nn.Module(), (cache,))
        cache.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), 1)
        after = bits_of_state(nn.Module(), (cache,))
        assert sum(before[name] != after[name] for name in before) == 2
        assert len(before) == 4


class TestOutputs:
    """What a step returns."""

    def test_numbers_and_strings_count(self) -> None:
        """Token ids may be returned as numbers; of a float every bit counts, and types do."""
        before = digests_of(outputs_of({"token_ids": [1, 2], "done": False, "score": 0.0, "text": "a"}))
        for other in (
            {"token_ids": [1, 3], "done": False, "score": 0.0, "text": "a"},
            {"token_ids": [1, 2], "done": 0, "score": 0.0, "text": "a"},
            {"token_ids": [1, 2], "done": False, "score": -0.0, "text": "a"},
            {"token_ids": [1, 2], "done": False, "score": 0.0, "text": "b"},
        ):
            assert digests_of(outputs_of(other)) != before
        assert digests_of(outputs_of(7)) != digests_of(outputs_of(8))
        assert sum(int(digest.partition("/")[2]) for digest in before.values()) == 5

    def test_nothing_is_nothing(self) -> None:
        """It cannot be taken for something that was compared."""
        for output in (None, [], {}, object(), [None], iter([1])):
            assert digests_of(outputs_of(output)) == {}

    def test_one_tensor_in_two_places_is_two_outputs(self) -> None:
        """A compiled step may return a copy in the second place."""
        tensor = torch.zeros(1)
        assert digests_of(outputs_of([tensor, tensor])) == digests_of(outputs_of([tensor, tensor.clone()]))


class TestDigests:
    """Identity of bits."""

    def test_every_bit_type_and_shape(self) -> None:
        """Negative zero is not zero."""
        zero = torch.zeros(2, dtype=torch.bfloat16)
        assert digest_of(zero) == digest_of(torch.zeros(4, dtype=torch.bfloat16)[::2])
        assert digest_of(zero) != digest_of(-zero)
        assert digest_of(zero) != digest_of(torch.zeros(2, dtype=torch.float16))
        assert digest_of(zero) != digest_of(zero.view(2, 1))

    @pytest.mark.parametrize(
        "make",
        [
            lambda value: torch.tensor([value, 1.0]).to_sparse(),
            lambda value: torch.tensor([[value, 1.0]]).to_sparse_csr(),
            lambda value: torch.nested.nested_tensor([torch.tensor([value]), torch.ones(2)]),
            lambda value: torch.nested.nested_tensor([torch.tensor([value]), torch.ones(2)], layout=torch.jagged),
            lambda value: torch.quantize_per_tensor(torch.tensor([value, 0.0]), 0.1, 0, torch.qint8),
            lambda value: torch.tensor([complex(0, value)]).conj(),
            lambda value: torch.tensor(value),
            lambda value: torch.tensor([value], requires_grad=True) * 1,
            lambda value: torch.tensor([value]).to(torch.float8_e4m3fn),
            lambda value: Wrapper(torch.tensor([int(value)], dtype=torch.int8), torch.ones(1)),
            lambda value: np.array([[value, 1.0]]).T,
            lambda value: np.float32(value),
        ],
    )
    def test_every_kind_of_tensor(self, make: Callable[[float], Any]) -> None:
        """Sparse, nested, quantised, complex, wrapped, without dimensions, and arrays."""
        one, same, other = (digests_of(outputs_of([make(value)])) for value in (1.0, 1.0, 2.0))
        assert one == same
        assert one != other

    def test_a_tensor_that_cannot_be_read_is_named(self) -> None:
        """It is no reason to compare nothing."""
        tensor = torch.zeros(4)
        tensor.untyped_storage().resize_(0)
        with pytest.raises(TargetError, match=r"output\['cache'\] cannot be compared"):
            digests_of(outputs_of({"cache": tensor}))

    def test_a_signature_is_of_tensors_alone(self) -> None:
        """A position given as a number does not make every step another."""
        assert signature_of((torch.zeros(2, 1), 5)) == signature_of((torch.zeros(2, 1), 6)) == "float32[2,1]"
