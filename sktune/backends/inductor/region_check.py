"""Compare regions with the kernels that they replace, on recorded inputs and on variations chosen to expose errors."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sktune.backends.base import REGION_STEPS, RegionBudget
from sktune.backends.inductor.variations import Draw, draw_kind, vary, vary_whole
from sktune.core.errors import described
from sktune.core.verification import RegionCheck
from sktune.measure.bits import bits_of, first_difference, same_bits
from sktune.measure.devices import ran_out_of_memory

Run = Callable[..., Any]
Memory = dict[int, torch.Tensor]
"""Bytes by address."""

SEED = 0
"""Of the variations."""
MAX_VALUES = 1 << 16
"""Values varied together: drawing many costs less per value, but they should fit in a cache."""
MAX_ROWS = 64
MAX_NUMBERS = 64
"""Elements of an integer tensor that are taken for numbers to which others are compared, such as tokens."""
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
WHOLE_SHARE = 0.5
"""Share of the variations in which integers and booleans are varied, too, so that rare branches are taken."""
STATE_SHARE = 0.25
"""Share of the variations in which state is varied, too: it is large, so it is used for several calls."""


@dataclass
class RegionChecks:
    """Results for each region in this process: a plan continues the comparison of earlier plans with the same region.

    Attributes:
        elements: how many output elements of a region were equal with the weights of one scope, by key and label.
        differences: where a region differs, in one line, by its key.
        draws: the random numbers of the variations, by device. They differ from call to call, and are the same in every
            process.
    """

    elements: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: dict[str, str] = field(default_factory=dict)
    draws: dict[torch.device, Draw] = field(default_factory=dict)


class Round:
    """Compares the regions of one plan while baseline steps run; the steps continue with the kernels' outputs.

    Both versions run on the same tensors, whose values are varied in place and restored: a region may depend on the
    addresses of its weights and state, and inputs may share memory. Weights are not varied.

    Args:
        checks: the results of earlier plans.
        keys: of the regions by the labels of their scopes: equal for scopes that share code.
        budget: limits of the comparison.
        exact: keys of the regions that are exact by construction.
        written: addresses of the memory that a step writes and that outlives it.
    """

    def __init__(
        self,
        checks: RegionChecks,
        keys: Mapping[str, str],
        budget: RegionBudget,
        exact: Collection[str],
        written: Collection[int],
    ) -> None:
        self._checks, self._keys, self._exact, self._written = checks, keys, exact, written
        scopes = Counter(keys.values())
        self._wanted = {label: -(-budget.elements // scopes[key]) for label, key in keys.items()}
        self._calls_left = dict.fromkeys(keys, REGION_STEPS)
        self._seconds_left = budget.seconds

    @property
    def is_done(self) -> bool:
        """Whether the comparison is complete."""
        return all(self._left(label) <= 0 for label in self._keys)

    def results(self) -> tuple[RegionCheck, ...]:
        """Return the result for each distinct region."""
        labels: dict[str, list[str]] = {}
        for label, key in self._keys.items():
            labels.setdefault(key, []).append(label)
        return tuple(
            RegionCheck(
                sharing[0],
                key,
                sum(self._checks.elements[key, label] for label in sharing),
                key in self._exact,
                self._checks.differences.get(key, ""),
            )
            for key, sharing in labels.items()
        )

    def __call__(
        self,
        label: str,
        expected: Run,
        got: Run,
        inputs: tuple[Any, ...],
        written: Collection[int],
        numbers: Collection[int] | None,
    ) -> Any:
        """Run ``expected`` on ``inputs``, compare ``got`` with it on these and on variations; return its outputs.

        Args:
            label: of the scope.
            expected: its kernels.
            got: the compiled region.
            inputs: of both.
            written: indices of those that its kernels write, though perhaps only for rare inputs.
            numbers: integers to which the region compares; None if its integers must not be varied.
        """
        calls = sum(max(1, left) for other, left in self._calls_left.items() if self._left(other) > 0)
        self._calls_left[label] -= 1
        left = self._left(label)
        if left <= 0 or self._seconds_left <= 0:
            return expected(*inputs)
        began_s = time.perf_counter()
        call, key = _Call(expected, got, inputs, self._written, written, numbers), self._keys[label]
        if call.device not in self._checks.draws:
            self._checks.draws[call.device] = Draw(torch.Generator(call.device).manual_seed(SEED))
        outputs = call.compare(left, began_s + self._seconds_left / calls, self._checks.draws[call.device])
        self._checks.elements[key, label] += call.elements
        if call.difference:
            where = f"scope {label} differs from the kernels that it replaces on {call.difference}"
            self._checks.differences[key] = where
        self._seconds_left -= time.perf_counter() - began_s
        return outputs

    def _left(self, label: str) -> int:
        """Return how many elements remain to be compared in this scope."""
        key = self._keys[label]
        return 0 if key in self._checks.differences else self._wanted[label] - self._checks.elements[key, label]


@dataclass(frozen=True, slots=True)
class _Side:
    """The outputs and effects of one version."""

    outputs: list[torch.Tensor]
    written: Memory


class _Call:
    """One call of a region, in both versions.

    Attributes:
        elements: number of equal elements in outputs and written state; elements that are NaN in both do not count.
        difference: the first one, in one line.
    """

    def __init__(
        self,
        expected: Run,
        got: Run,
        inputs: tuple[Any, ...],
        outlasting: Collection[int],
        written: Collection[int],
        numbers: Collection[int] | None,
    ) -> None:
        self._expected, self._got, self._inputs = expected, got, inputs
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self._memory = {
            _address(value): torch.tensor([], dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
            for value in tensors
            if value.numel() and (not isinstance(value, torch.nn.Parameter) or _address(value) in outlasting)
        }
        varied = [
            value.detach() for value in tensors
            if _address(value) in self._memory and value.numel() and not _repeats(value)
        ]  # fmt: skip
        self._state = [value for value in varied if value.is_floating_point() and _address(value) in outlasting]
        self._activations = [
            value for value in varied if value.is_floating_point() and _address(value) not in outlasting
        ]
        self._whole = [
            value for value in varied
            if value.dtype == torch.bool or (value.dtype in INTEGERS and numbers is not None)
        ]  # fmt: skip
        self._numbers = sorted(numbers or ())
        # On a GPU an index out of range ends the process, and on a CPU it is an error that is passed over.
        if self.device.type == "cpu":
            small = [value for value in self._whole if value.numel() <= MAX_NUMBERS]
            recorded = {int(number) for value in small for number in value.flatten().tolist()}
            self._numbers = sorted(recorded.union(self._numbers))
        self._written = {_address(inputs[index]) for index in written} & self._memory.keys()
        self._written_elements = 0
        self.elements, self.difference = 0, ""

    def compare(self, most: int, ends_s: float, draw: Draw) -> Any:
        """Compare on the inputs and then on variations; return the outputs for the inputs, and leave their effects."""
        before = self._contents(self._memory)
        outputs = self._expected(*self._inputs)
        after = self._contents(self._memory)
        self._written_elements = sum(
            -(-int((before[address] != after[address]).sum()) // self._dtype(address).itemsize)
            for address in self._written
        )
        try:
            self._restore(before)
            self._judge("its recorded inputs", self._contents(self._written))
            while (self._activations or self._state or self._whole) and self._continues(most, ends_s):
                self._restore(before)
                self._vary(most, ends_s, draw)
        finally:
            self._restore(after)
        return outputs

    def _continues(self, most: int, ends_s: float) -> bool:
        return not self.difference and self.elements < most and time.perf_counter() < ends_s

    def _vary(self, most: int, ends_s: float, draw: Draw) -> None:
        kind = draw_kind(draw)
        what = f"{kind[0].name} values, {kind[1].name}"
        if not self._activations or float(draw.uniform(1)) < STATE_SHARE:
            for value in self._state:
                value.copy_(vary(value.flatten(), 1, kind, draw)[0].view(value.shape))
        whole = self._whole if float(draw.uniform(1)) < WHOLE_SHARE else []
        count = sum(value.numel() for value in (*self._activations, *whole))
        rows = max(1, min(MAX_ROWS, MAX_VALUES // count)) if count else 1
        drawn = [vary(value.flatten(), rows, kind, draw).view(-1, *value.shape) for value in self._activations]
        drawn += [vary_whole(value.flatten(), rows, self._numbers, draw).view(-1, *value.shape) for value in whole]
        start = self._contents(self._written)
        written = {_address(value) for value in (*self._activations, *whole)} & self._written
        may_be_nan = True
        for row in range(rows):
            for value, values in zip((*self._activations, *whole), drawn, strict=True):
                value.copy_(values[row])
            start |= self._contents(written)
            has_nan = self._judge(what, start, may_be_nan)
            may_be_nan = kind[1].reaches_limits or (may_be_nan and has_nan)
            if not self._continues(most, ends_s):
                return

    def _judge(self, what: str, start: Memory, may_be_nan: bool = True) -> bool:
        """Run both versions on the current inputs, and return whether an output contains NaN.

        Args:
            what: description of the inputs.
            start: the contents of the memory that is written.
            may_be_nan: whether to search for NaN, which takes time.
        """
        try:
            left = self._side(self._expected)
        except Exception as failure:
            if ran_out_of_memory(failure):
                raise
            self._restore(start)  # inputs that the kernels reject do not occur in practice
            return True
        self._restore(start)
        try:
            right = self._side(self._got)
        except Exception as failure:
            if ran_out_of_memory(failure):
                raise
            self.difference = f"{what}: it fails and they do not, {described(failure)}"
            return True
        finally:
            self._restore(start)
        self.difference = self._difference(what, left, right)
        if self.difference:
            return True
        fractions = [output for output in left.outputs if may_be_nan and output.is_floating_point()]
        not_a_number = sum(int(output.isnan().sum()) for output in fractions)
        self.elements += sum(output.numel() for output in left.outputs) + self._written_elements - not_a_number
        return not_a_number > 0

    def _side(self, run: Run) -> _Side:
        outputs = [value for value in run(*self._inputs) if isinstance(value, torch.Tensor)]
        if not self._written:
            return _Side(outputs, {})
        # Outputs may be views of memory that will be restored.
        return _Side([output.clone() for output in outputs], self._contents(self._written))

    def _difference(self, what: str, left: _Side, right: _Side) -> str:
        if len(left.outputs) != len(right.outputs):
            return f"{what}: {len(right.outputs)} outputs instead of {len(left.outputs)}"
        for index, (one, other) in enumerate(zip(left.outputs, right.outputs, strict=True)):
            if not same_bits(one, other) and (difference := _first(f"output {index}", one, other)):
                return f"{what}: {difference}"
        for address, one in left.written.items():
            if not torch.equal(one, right.written[address]):
                dtype = self._dtype(address)
                count = one.numel() // dtype.itemsize * dtype.itemsize
                both = (side.written[address][:count].view(dtype) for side in (left, right))
                if difference := _first("the state", *both):
                    return f"{what}: {difference}"
        return ""

    def _dtype(self, address: int) -> torch.dtype:
        return next(
            value.dtype for value in self._inputs if isinstance(value, torch.Tensor) and _address(value) == address
        )

    def _contents(self, addresses: Collection[int]) -> Memory:
        return {address: self._memory[address].clone() for address in addresses}

    def _restore(self, contents: Memory) -> None:
        for address, content in contents.items():
            self._memory[address].copy_(content)


def _address(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _repeats(value: torch.Tensor) -> bool:
    """Return whether an element of a tensor is at several positions, as in an expanded one."""
    return any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True))


def _first(name: str, expected: torch.Tensor, got: torch.Tensor) -> str:
    """Return the first difference in one line; NaNs with different bits are not one."""
    if expected.shape == got.shape and expected.dtype == got.dtype and expected.is_floating_point():
        both = expected.isnan() & got.isnan()
        expected, got = expected.where(~both, 0.0), got.where(~both, 0.0)
        if torch.equal(bits_of(expected), bits_of(got)):
            return ""
    mismatch = first_difference(name, expected, got, 0, 0)
    return mismatch.where if mismatch else ""
