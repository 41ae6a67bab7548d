"""Every tensor of a program's decode step is compared, wherever the program keeps it."""

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
from sktune.program.sktune_program.tensors import digest_of, digests_of, outputs_of, signature_of, state_of

GLOBAL_CACHE: dict[str, Any] = {}


class Pair(NamedTuple):
    """A key and a value."""

    key: Any
    value: Any


@dataclass(slots=True)
class Slots:
    """A cache without a ``__dict__``."""

    key: Any = None
    value: Any = None


class PlainSlots:
    """A base class with slots, one of them without a value."""

    __slots__ = ("_hidden", "unset")

    def __init__(self, value: Any) -> None:
        self._hidden = value


class DerivedSlots(PlainSlots):
    """Adds no slots."""

    __slots__ = ()


class CustomSequence(Sequence[Any]):
    """A sequence written in Python, which must not be called."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError(index)

    def __len__(self) -> int:
        raise AssertionError

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


class CustomMapping(Mapping[str, Any]):
    """A mapping written in Python, which must not be called."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        raise AssertionError(key)

    def __len__(self) -> int:
        raise AssertionError

    def __iter__(self) -> Iterator[str]:
        raise AssertionError


class CustomList(list[Any]):
    """A list whose iteration has a side effect."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


class Watchful:
    """An object whose attribute access runs code of the program."""

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
    """A tensor that keeps its values in two inner tensors, as quantised tensors do."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> Self:
        wrapper = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)
        wrapper.values_, wrapper.scale = values, scale  # type: ignore[attr-defined]
        return wrapper

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values_", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError


def nested(value: Any, depth: int) -> Any:
    """Return ``value`` inside ``depth`` nested lists."""
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
    "proxy of a custom mapping": lambda tensor: types.MappingProxyType(CustomMapping(a=tensor)),
    "namespace": lambda tensor: types.SimpleNamespace(a=tensor),
    "dataclass with slots": lambda tensor: Slots(value=Slots(key=tensor)),
    "slots of a base class": DerivedSlots,
    "custom sequence": CustomSequence,
    "custom mapping": lambda tensor: CustomMapping(a=tensor),
    "custom list": lambda tensor: CustomList([tensor]),
    "watchful": Watchful,
    "partial": lambda tensor: partial(print, tensor),
    "array of objects": lambda tensor: np.array([None, Slots(tensor)], dtype=object),
    "very deep": lambda tensor: nested(tensor, 5000),
    "list of modules": lambda tensor: [module_with_buffer(tensor)],
    "buffer list": lambda tensor: nn.BufferList([tensor]) if hasattr(nn, "BufferList") else [tensor],
}


def module_with_buffer(tensor: torch.Tensor) -> nn.Module:
    """Return a module that is registered nowhere, with a buffer."""
    module = nn.Module()
    module.register_buffer("cache", tensor)
    return module


def state_digests(module: nn.Module, arguments: Any = (), function: Any = None) -> dict[str, str]:
    """Return the digests of the state by name."""
    return digests_of(state_of(module, arguments, function))


class TestState:
    """Everything that outlives a step is compared."""

    @pytest.mark.parametrize("kind", CONTAINERS)
    def test_every_bit_counts_in_any_container(self, kind: str) -> None:
        """As an attribute of a module, an argument, or an output; no code of the program is called."""
        tensor, module = torch.zeros(3), nn.Module()
        container = CONTAINERS[kind](tensor)
        module.__dict__["cache"] = container
        first = [state_digests(module), state_digests(nn.Module(), (container,)), digests_of(outputs_of(container))]
        tensor[1] = -0.0
        after = [state_digests(module), state_digests(nn.Module(), (container,)), digests_of(outputs_of(container))]
        for before, later in zip(first, after, strict=True):
            assert before.keys() == later.keys()
            assert before != later

    def test_state_is_everything_but_parameters(self) -> None:
        """Buffers, attributes, lists of attributes, and the arguments of the call."""
        module = nn.BatchNorm1d(2)
        module.cache = [torch.zeros(1), {"k": torch.ones(1)}]  # type: ignore[assignment]
        names = set(state_digests(module, ((torch.ones(2),), {"meta": types.SimpleNamespace(table=torch.ones(1))})))
        assert names == {
            "model.cache[0]", "model.cache[1]['k']", "model.running_mean", "model.running_var",
            "model.num_batches_tracked", "arguments[0][0]", "arguments[1]['meta'].table",
        }  # fmt: skip

    def test_every_module_counts(self) -> None:
        """Each layer's attention may hold its own cache, and a change in any of them is detected."""
        tree = nn.ModuleList([nn.Identity() for _ in range(20)])
        for module in tree:
            module.cache = [torch.zeros(2), torch.zeros(2)]  # type: ignore[assignment]
        before = state_digests(tree)
        for number, module in enumerate(tree):
            for place in range(2):
                module.cache[place].add_(1)  # type: ignore[index]
                after = state_digests(tree)
                changed = [name for name in after if before.get(name) != after[name]]
                assert changed == [f"model.{number}.cache[{place}]"]
                before = after

    def test_state_may_belong_to_the_step_function(self) -> None:
        """In its closure, the closure of a function that it calls, its defaults, or a global variable."""
        inner, outer, default = torch.zeros(1), torch.zeros(1), torch.zeros(1)
        GLOBAL_CACHE["cache"] = torch.zeros(1)

        def attend() -> torch.Tensor:
            return inner

        def step(tokens: torch.Tensor, cache: torch.Tensor = default) -> Any:
            return tokens, cache, outer, attend(), GLOBAL_CACHE

        before = state_digests(nn.Module(), (), step)
        for tensor in (inner, outer, default, GLOBAL_CACHE["cache"]):
            tensor.add_(1)
            after = state_digests(nn.Module(), (), step)
            assert sum(before[name] != after[name] for name in before) == 1
            before = after

    def test_state_may_be_a_class_attribute(self) -> None:
        """One cache for all layers."""

        class Layer(nn.Module):
            cache: Any = [torch.zeros(1)]

        before = state_digests(Layer())
        Layer.cache[0].add_(1)
        assert state_digests(Layer()) != before

    def test_cycles_end_and_objects_count_once(self) -> None:
        """However often they are referenced."""
        shared = Slots(torch.zeros(1))
        shared.value = shared
        module: Any = nn.Module()
        module.one, module.other, module.module = [shared, shared], {"again": shared}, [module]
        assert list(state_digests(module)) == ["model.one[0].key"]

    def test_iterators_are_not_advanced(self) -> None:
        """Neither a generator nor an iterator over a list loses an element."""
        module: Any = nn.Module()
        module.generator = (number for number in range(2))
        module.iterator = iter([torch.zeros(1), torch.ones(1)])
        state_digests(module)
        digests_of(outputs_of([module.generator, module.iterator]))
        assert len(list(module.generator)) == 2
        assert len(list(module.iterator)) == 2

    def test_sets_have_no_order(self) -> None:
        """The same tensors have the same digest, in whatever order a set yields them."""
        digests = []
        for _ in range(20):
            module: Any = nn.Module()
            module.cache = {torch.full((2,), float(value)) for value in range(6)}
            digests.append(state_digests(module))
        assert all(each == digests[0] for each in digests)
        assert digests[0]["model.cache{}"].endswith("/12")

    def test_caches_of_transformers_are_compared(self) -> None:
        """Keys and values of each layer."""
        cache = pytest.importorskip("transformers").DynamicCache()
        for layer in range(2):
            cache.update(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), layer)
        before = state_digests(nn.Module(), (cache,))
        cache.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), 1)
        after = state_digests(nn.Module(), (cache,))
        assert sum(before[name] != after[name] for name in before) == 2
        assert len(before) == 4


class TestOutputs:
    """Everything that a step returns is compared."""

    def test_numbers_and_strings_count(self) -> None:
        """Token ids may be returned as numbers; every bit of a float and every type counts."""
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

    def test_an_output_without_values_has_no_digests(self) -> None:
        """So it cannot be mistaken for something that was compared."""
        for output in (None, [], {}, object(), [None], iter([1])):
            assert digests_of(outputs_of(output)) == {}

    def test_one_tensor_in_two_places_is_two_outputs(self) -> None:
        """As a compiled step may return a copy as the second one."""
        tensor = torch.zeros(1)
        assert digests_of(outputs_of([tensor, tensor])) == digests_of(outputs_of([tensor, tensor.clone()]))


class TestDigests:
    """Digests identify bits."""

    def test_bits_type_and_shape_count(self) -> None:
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
    def test_every_kind_of_tensor_has_a_digest(self, make: Callable[[float], Any]) -> None:
        """Sparse, nested, quantised, complex, wrapped and scalar ones, and arrays."""
        one, same, other = (digests_of(outputs_of([make(value)])) for value in (1.0, 1.0, 2.0))
        assert one == same
        assert one != other

    def test_a_tensor_that_cannot_be_read_is_named(self) -> None:
        """It is an error, and not left out of the comparison."""
        tensor = torch.zeros(4)
        tensor.untyped_storage().resize_(0)
        with pytest.raises(TargetError, match=r"output\['cache'\] cannot be compared"):
            digests_of(outputs_of({"cache": tensor}))

    def test_a_signature_has_only_tensors(self) -> None:
        """A position passed as a number does not make every step a different call."""
        assert signature_of((torch.zeros(2, 1), 5)) == signature_of((torch.zeros(2, 1), 6)) == "float32[2,1]"
