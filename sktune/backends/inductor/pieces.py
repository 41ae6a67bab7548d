"""Run a cut graph piece by piece, to time each piece and to find those that fail or change bits."""

import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

import torch
from torch import fx

from sktune.backends.base import CompileError, OnScope, Step
from sktune.backends.inductor.region_check import Round
from sktune.core.errors import described
from sktune.measure.bits import same_bits
from sktune.measure.devices import Cpu, Cuda
from sktune.program.sktune_program.inductor.regions import Cutting
from sktune.targets.base import Inputs

WARM_UP_ROUNDS = 2
MAX_ROUNDS = 20
MIN_ROUNDS = 5
OBSERVE_S = 0.3
"""Rounds of baseline and plan end after this time or after ``MAX_ROUNDS``, but not before ``MIN_ROUNDS``."""

UNCHECKED = ("grouped_mm", "embedding_bag", "jagged", "scaled_mm")
"""Functions that take offsets without checking them: others would have them access memory that is not theirs."""

Run = Callable[..., Any]
Around = Callable[[str, tuple[Any, ...]], Any]
"""Takes the name of a piece and its inputs; runs it and returns its outputs."""


class Pieces:
    """The pieces of a graph that was cut and filled: scopes and the gaps between them.

    Attributes:
        labels: by the pieces' names in execution order, the scope's label, ``""`` outside of scopes.
    """

    def __init__(self, cutting: Cutting) -> None:
        self._whole = cutting.whole
        inside = {str(slot.call.target): slot for slot in cutting.slots}
        calls = [str(node.target) for node in cutting.whole.graph.nodes if node.op == "call_module"]
        self.labels = {name: inside[name].label if name in inside else "" for name in calls}
        self._compiled: Mapping[str, Run] = {name: cutting.whole.get_submodule(name) for name in calls}
        # A call of the module itself would print each failure: those of inputs that the kernels reject fill a log.
        uncompiled = {name: slot.region.kernels.forward for name, slot in inside.items()}
        self._uncompiled: Mapping[str, Run] = {**self._compiled, **uncompiled}
        self._numbers = {name: _compared_numbers(slot.region.kernels) for name, slot in inside.items()}
        self._written = {name: slot.region.written_by_kernels for name, slot in inside.items()}

    def first_run(self, on_scope: OnScope, device: Cpu | Cuda) -> Run:
        """Return a function that runs the compiled step, calls ``on_scope``, and blames a scope that raises.

        The function raises ``CompileError``.
        """

        def around(name: str, inputs: tuple[Any, ...]) -> Any:
            label = self.labels[name]
            on_scope(label)
            try:
                outputs = self._compiled[name](*inputs)
                device.now_s()  # synchronises: asynchronous kernels fail here, and not in a later scope
            except Exception as failure:
                if not label:
                    raise
                raise CompileError.of_scope(label, f"its first run failed: {described(failure)}") from failure
            return outputs

        return _Walk(self._whole, around).run

    def observe(
        self, step_of: Callable[[Run], Step], begin: Callable[[], Inputs], device: Cpu | Cuda
    ) -> list[tuple[str, float, float]]:
        """Run baseline and plan alternately, and return each piece's label and its median milliseconds in both.

        Args:
            step_of: makes a step from a function that runs the graph.
            begin: sets up the state and returns the step's inputs.
            device: on which the pieces run.
        """
        timers = [_Timer(functions, device) for functions in (self._uncompiled, self._compiled)]
        steps = [step_of(_Walk(self._whole, timer.around).run) for timer in timers]
        rounds: list[list[list[float]]] = []
        began = time.perf_counter()
        while len(rounds) < WARM_UP_ROUNDS + MIN_ROUNDS or (
            len(rounds) < WARM_UP_ROUNDS + MAX_ROUNDS and time.perf_counter() - began < OBSERVE_S
        ):
            spent: list[list[float]] = [[], []]
            for side in (0, 1) if len(rounds) % 2 == 0 else (1, 0):
                inputs = begin()
                steps[side].prepare()
                steps[side].run(*inputs)
                spent[side] = timers[side].take_ms()
            rounds.append(spent)
        both = [
            [median(values) for values in zip(*side_ms, strict=True)]
            for side_ms in zip(*rounds[WARM_UP_ROUNDS:], strict=True)
        ]
        return list(zip(self.labels.values(), *both, strict=True))

    def blame(self, step_of: Callable[[Run], Step], steps: Iterable[Inputs]) -> tuple[str, ...]:
        """Run baseline steps, and within them each scope on the same inputs; see ``sktune.backends.base.Blame``."""
        differing: set[str] = set()

        def around(name: str, inputs: tuple[Any, ...]) -> Any:
            label = self.labels[name]
            if not label or label in differing:
                return self._uncompiled[name](*inputs)
            outputs, is_same = _run_both(self._uncompiled[name], self._compiled[name], inputs)
            if not is_same:
                differing.add(label)
            return outputs

        self._run_steps(step_of, steps, around)
        return tuple(dict.fromkeys(label for label in self.labels.values() if label in differing))

    def check_regions(self, step_of: Callable[[Run], Step], steps: Iterable[Inputs], regions: Round) -> None:
        """Run baseline steps, and compare each region with its kernels; see ``sktune.backends.base.CheckRegions``.

        Args:
            step_of: makes a step from a function that runs the graph.
            steps: inputs of ``REGION_STEPS`` consecutive steps.
            regions: does the comparison.
        """

        def around(name: str, inputs: tuple[Any, ...]) -> Any:
            kernels = self._uncompiled[name]
            if label := self.labels[name]:
                return regions(label, kernels, self._compiled[name], inputs, self._written[name], self._numbers[name])
            return kernels(*inputs)

        self._run_steps(step_of, steps, around)

    def _run_steps(self, step_of: Callable[[Run], Step], steps: Iterable[Inputs], around: Around) -> None:
        step = step_of(_Walk(self._whole, around).run)
        for inputs in steps:
            step.prepare()
            step.run(*inputs)


class _Walk(fx.Interpreter):
    """Runs a graph and calls ``around`` for each of its pieces."""

    def __init__(self, whole: fx.GraphModule, around: Around) -> None:
        super().__init__(whole)
        self.extra_traceback = False  # it would precede the failure's message
        self._around = around

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        return self._around(target, args)


class _Timer:
    """Times every piece of a step."""

    def __init__(self, functions: Mapping[str, Run], device: Cpu | Cuda) -> None:
        self._functions, self._device = functions, device
        self._moments: list[tuple[Any, Any]] = []

    def around(self, name: str, inputs: tuple[Any, ...]) -> Any:
        function = self._functions[name]
        start = self._device.moment()
        outputs = function(*inputs)
        self._moments.append((start, self._device.moment()))
        return outputs

    def take_ms(self) -> list[float]:
        """Return and clear the milliseconds of each piece of the last step."""
        self._device.now_s()
        spent = [self._device.between_s(start, end) * 1e3 for start, end in self._moments]
        self._moments.clear()
        return spent


def _compared_numbers(kernels: fx.GraphModule) -> frozenset[int] | None:
    """Return the integers to which a region compares for equality; None if its integers must not be varied."""
    calls = [(getattr(node.target, "__name__", str(node.target)), node.args) for node in kernels.graph.nodes]
    if any(unchecked in name for name, _ in calls for unchecked in UNCHECKED):
        return None
    return frozenset(
        argument for name, arguments in calls if name.strip("_") in ("eq", "ne") for argument in arguments
        if isinstance(argument, int)
    )  # fmt: skip


def _run_both(expected: Run, got: Run, inputs: tuple[Any, ...]) -> tuple[Any, bool]:
    """Run both on the same tensors, and leave the effects of ``expected``; return its outputs and whether both agree.

    Copies would not work: a region may depend on the addresses of its weights and state, and inputs may share memory.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    memory = {
        value.untyped_storage().data_ptr(): value.untyped_storage()
        for value in tensors
        if not isinstance(value, torch.nn.Parameter)
    }

    def restore(contents: Mapping[int, torch.UntypedStorage]) -> None:
        for address, storage in memory.items():
            storage.copy_(contents[address])

    before = {address: storage.clone() for address, storage in memory.items()}
    outputs = expected(*inputs)
    left = _copies([*outputs, *tensors])
    after = {address: storage.clone() for address, storage in memory.items()}
    restore(before)
    right = _copies([*got(*inputs), *tensors])
    restore(after)
    is_same = len(left) == len(right) and all(map(same_bits, left, right))
    return outputs, is_same


def _copies(values: Iterable[Any]) -> list[torch.Tensor]:
    return [value.detach().clone() for value in values if isinstance(value, torch.Tensor)]
