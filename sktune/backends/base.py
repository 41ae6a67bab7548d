"""The backend protocol: compile a plan and run a step."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from sktune.core.delivery import Delivery
from sktune.core.fused_scopes import FusedScope
from sktune.core.layout import Layout
from sktune.core.outcome import ScopeTime
from sktune.core.plan import Plan
from sktune.core.verification import RegionCheck
from sktune.program.sktune_program.errors import CompileError as CompileError
from sktune.targets.base import Inputs

if TYPE_CHECKING:
    from sktune.ascend.scope_check import CheckedScope

Observe = Callable[[Callable[[], Inputs]], tuple[ScopeTime, ...]]
"""Measures each scope and gap of a step. Its argument sets up the state and returns the inputs of a step."""

Blame = Callable[[Iterable[Inputs]], tuple[str, ...]]
"""Takes the inputs of consecutive baseline steps, which set up the state as they are drawn from the iterable.

Returns the labels of the scopes whose outputs differ from the baseline's on the same inputs, in execution order.
"""


@dataclass(frozen=True, slots=True)
class RegionBudget:
    """Limits of the comparison of a plan's regions with the kernels that they replace.

    Attributes:
        elements: output elements of each region.
        seconds: for all regions.
    """

    elements: int = 100_000_000
    seconds: float = 20.0


REGION_STEPS = 8
"""Decode steps whose activations are the inputs of the comparison."""

CheckRegions = Callable[[Iterable[Inputs], RegionBudget], tuple[RegionCheck, ...]]
"""Takes the inputs of ``REGION_STEPS`` baseline steps, drawn as for ``Blame``; checks each distinct region."""

Deliver = Callable[[Path], Delivery]
"""Writes the compiled code into a folder, for another process to load; raises ``BackendError`` if that fails."""

OnScope = Callable[[str], None]
"""Called with the label of a scope before it is compiled or run, and with ``""`` after the last one."""


def _nothing() -> None:
    pass


def ignore(label: str) -> None:
    """Do nothing: an ``OnScope`` for callers that do not need to know."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step, ready to run.

    Attributes:
        run: called with the step's inputs; returns the model's outputs.
        prepare: called before ``run``, and never timed.
    """

    run: Callable[..., Any]
    prepare: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled plan, or a reference, which has no regions.

    Attributes:
        step: runs one decode step.
        regions: distinct regions in the plan's scopes.
        reused: how many of these were already compiled in this process.
        code_digest: identity of the generated code; equal for equal code, in every process.
        fusion: how each scope was fused, in readable lines, if known.
        fused: the same as counts, scope by scope, if known.
        fusion_digest: equal for plans that became the same kernels; empty if unknown.
        simulated_ms: the step's latency if it is simulated, not measured.
        observe: measures each scope and each gap, beside the baseline; None if it is not possible.
        blame: finds the scopes that change bits; None if it is not possible.
        region_labels: the first scope with each distinct region, by the region's key.
        is_exact: whether every region consists of operators whose fused code equals their kernels by construction.
        check_regions: compares each distinct region with the kernels that it replaces; None if there are none.
        code: digest of the generated code of each scope, by label, if known.
        deliver: writes the code into a folder; None if the code is not available.
        inside: returns the step so that its operators run inside of a context manager; None if it is not possible.
    """

    step: Step
    regions: int = 0
    reused: int = 0
    code_digest: str = ""
    fusion: tuple[str, ...] = ()
    fused: tuple[FusedScope, ...] = ()
    fusion_digest: str = ""
    simulated_ms: float | None = None
    observe: Observe | None = None
    blame: Blame | None = None
    region_labels: Mapping[str, str] = field(default_factory=dict)
    is_exact: bool = False
    check_regions: CheckRegions | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    deliver: Deliver | None = None
    inside: Callable[[AbstractContextManager[Any]], Step] | None = None


class Backend(Protocol):
    """Compiles plans of one target.

    A worker creates one backend, asks for the baseline (the empty plan), then for one plan after another.
    Compiled steps stay valid until the process ends, and their calls may be interleaved: they share the target's
    weights and its state.

    Attributes:
        notes: what a reader of the figures must know, in a few words; empty if they are measured as usual.
    """

    notes: str

    def compile(self, plan: Plan, on_scope: OnScope = ignore) -> Compiled:
        """Compile ``plan`` and run it once, so that the first timed step has nothing left to compile.

        Calls ``on_scope`` before each scope, so that a hang can be attributed.

        Raises:
            CompileError: the compiler rejects the plan.
        """
        ...

    def written(self) -> Mapping[str, torch.Tensor]:
        """Return the known tensors that a step writes in place and that outlive it, by name.

        They are the same objects for the lifetime of the target; ``Target.state`` may include some of them, or none.
        """
        ...

    def with_operators(self, layout: Layout) -> Layout:
        """Return the layout with what is known of its units' operators before anything is compiled."""
        ...

    def check_machine(self) -> None:
        """Compile one operator, without any cache, if that is cheap; raise what keeps the machine from it."""

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """Return the alternatives without sktune: functions that compile them, by name; they may raise CompileError."""
        ...


class SimulatedBackend(Backend, Protocol):
    """A backend that simulates latencies: ``Compiled.simulated_ms`` is never None."""

    def time_shares(self) -> Mapping[str, float]:
        """Return each unit's share of the baseline's latency, 0 to 1."""
        ...


class SuperKernelBackend(Backend, Protocol):
    """A backend whose scopes become SuperKernels, of GE graphs or of captured ones."""

    def check(self, plan: Plan) -> "tuple[CheckedScope, ...]":
        """Return what the compiler will make of the plan's scopes, and what it will refuse, without compiling them.

        Raises:
            CompileError: the step cannot be converted.
        """
        ...
