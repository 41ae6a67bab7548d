"""The backend protocol: what compiles a plan and runs a step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from sktune.core.delivery import Delivery
from sktune.core.outcome import Reason, ScopeTime
from sktune.core.plan import Plan
from sktune.core.verification import RegionCheck
from sktune.targets.base import Inputs

Observe = Callable[[Callable[[], Inputs]], tuple[ScopeTime, ...]]
"""Tells what each piece of a step takes. Its argument puts the state in place and returns the inputs of a step."""

Blame = Callable[[Iterable[Inputs]], tuple[str, ...]]
"""Takes the inputs of consecutive baseline steps, which put the state in place as they are drawn.

Returns the labels of the scopes that differ from the baseline's pieces on the same inputs, in execution order.
"""


@dataclass(frozen=True, slots=True)
class RegionBudget:
    """How far the regions of one plan are compared with their kernels.

    Attributes:
        elements: output elements of each region.
        seconds: for all of them.
    """

    elements: int = 100_000_000
    seconds: float = 20.0


REGION_STEPS = 8
"""Decode steps whose activations regions are compared on."""

CheckRegions = Callable[[Iterable[Inputs], RegionBudget], tuple[RegionCheck, ...]]
"""Takes the inputs of ``REGION_STEPS`` baseline steps, drawn as for ``Blame``; checks each distinct region."""

Deliver = Callable[[Path], Delivery]
"""Writes the compiled code into a folder, for another process to load; raises ``BackendError`` where that fails."""

OnScope = Callable[[str], None]
"""Called with the label of the scope that is compiled or run from now on; with ``""`` after the last."""


def _nothing() -> None:
    pass


def ignore(label: str) -> None:
    """Do nothing: nobody follows which scope it is."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step, ready to be run.

    Attributes:
        run: called with the step's inputs; returns what the model returns.
        prepare: called before ``run``, and never timed.
    """

    run: Callable[..., Any]
    prepare: Callable[[], None] = _nothing


class CompileError(Exception):
    """A plan that the compiler refuses. The message is one line; the cause holds the compiler's own error.

    ``blamed`` is the label of the scope that failed, where that is known.
    """

    def __init__(self, message: str, reason: Reason = Reason.COMPILE_FAILED, blamed: str = "") -> None:
        super().__init__(message)
        self.reason, self.blamed = reason, blamed


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled plan, or a reference, which has no regions.

    Attributes:
        step: runs one decode step.
        regions: distinct regions that the plan's scopes consist of.
        reused: how many of these were compiled before, in this process.
        code_digest: identity of the generated code; equal for equal code, in every process.
        fusion: what became of each scope, in lines for people, where the compiler tells.
        fusion_digest: equal for plans that became the same kernels; empty where the compiler does not tell.
        simulated_ms: the step's latency where it is computed and cannot be measured.
        observe: tells what each scope and each gap takes, beside the baseline; None where that cannot be told.
        blame: finds the scopes that change bits; None where that cannot be told.
        region_labels: of each distinct region, by its key: the first scope that has it.
        is_exact: whether every region consists of operators whose fused code equals their kernels by construction.
        check_regions: compares each distinct region with the kernels that it replaces; None where there are none.
        code: digest of the generated code of each scope, by label, where the compiler tells.
        deliver: writes the code into a folder; None where it cannot be had.
    """

    step: Step
    regions: int = 0
    reused: int = 0
    code_digest: str = ""
    fusion: tuple[str, ...] = ()
    fusion_digest: str = ""
    simulated_ms: float | None = None
    observe: Observe | None = None
    blame: Blame | None = None
    region_labels: Mapping[str, str] = field(default_factory=dict)
    is_exact: bool = False
    check_regions: CheckRegions | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    deliver: Deliver | None = None


class Backend(Protocol):
    """Compiles plans of one target.

    A worker makes one backend, asks for the baseline (the empty plan), then for one plan after another.
    Steps that were compiled stay valid until the process ends, and may be called in turn: they share the
    target's weights and its state.

    Attributes:
        notes: what a reader of the figures must know, in a few words; empty where they are measured as usual.
    """

    notes: str

    def compile(self, plan: Plan, on_scope: OnScope = ignore) -> Compiled:
        """Compile ``plan`` and run it once, so that nothing is left to do at the first timed step.

        Calls ``on_scope`` before it begins with a scope, for the case that it does not come back.

        Raises:
            CompileError: the compiler refuses the plan.
        """
        ...

    def written(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors that a step writes to in place and that outlive it, by name, as far as that is known.

        They are the same objects through the target's life; ``Target.state`` may name some of them, or none.
        """
        ...

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """Return what a user has without sktune, by name: functions that compile it, and may raise CompileError."""
        ...


class SimulatedBackend(Backend, Protocol):
    """A backend that computes latencies: ``Compiled.simulated_ms`` is never None."""

    def time_shares(self) -> Mapping[str, float]:
        """Return each unit's share of the baseline's latency, 0 to 1."""
        ...
