"""What is known of a backend before it is imported: one value for each, which the backend's own package defines."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sktune.backends.environment import numerics_environment
from sktune.backends.options import BackendOptions
from sktune.core.delivery import Delivery
from sktune.core.outcome import Outcome
from sktune.core.plan import Option, Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.targets import TargetSpec

FINAL_PROCESSES = 3
"""Fresh processes of the final comparison."""
SHAPES_ALONE = "meta"
"""The device type of a model of shapes without values."""


class State(StrEnum):
    """Whether a thing is there."""

    OK = "ok"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: what was looked for, for which backend, what is there, and how to get it where it is not."""

    backend: str
    what: str
    state: State
    found: str
    fix: str = ""


Rescue = Callable[[Outcome, Plan], tuple[str, Option] | None]
"""Takes a failed outcome and its plan; returns an option that may help if every scope has it, None for no such hope."""


def _no_variables(device: str) -> Mapping[str, str]:  # noqa: ARG001
    return {}


def _environment_of(spec: TargetSpec) -> Mapping[str, str]:
    return numerics_environment(spec.device)


def _lacks_nothing() -> Sequence[Finding]:
    return ()


def _hopeless(outcome: Outcome, plan: Plan) -> None:  # noqa: ARG001
    return None


def _never(device: str) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend, as everything but its own package knows it. Defining one imports no torch.

    Attributes:
        name: what ``--backend`` calls it.
        backend_class: where its class is, ``module:Class``; called with target, layout and the inputs of one step, it
            gives a ``sktune.backends.base.Backend``.
        devices: device types that it runs on, the default first; ``meta`` for models of shapes alone.
        options: what plans may carry.
        scope_flavour: what its scopes become.
        is_simulated: whether latencies are computed; its class is then a ``sktune.backends.base.SimulatedBackend``.
        plans_for: the backend that its plans are for, where that is another one: space files name that one's options
            and starting points.
        runner: what runs its plans for models that sktune builds, ``module:factory``, a
            ``sktune.runners.base.RunnerFactory``; empty for sktune's worker process.
        settings: fields of ``TargetSpec`` that its class takes as keywords.
        hot_type_options: options that take operator types, and are worth a trial on those that take the most time.
        program_compiler: what a recipe's program compiles its decode step with, ``module:function``, a Dynamo backend;
            empty where that is the program's own.
        artifact_installer: what loads delivered code into this process, ``module:function``; empty where none is
            delivered. See ``install``.
        needs_fresh_process: whether each plan needs a process and a working folder of its own.
        worker_folders: environment variables that name folders below that working folder.
        worker_environment: takes a device type; returns the environment variables of the process that measures, with
            which figures change.
        takes_torchair: takes a device type; whether TorchAir has to convert the model's operators.
        fingerprint: takes what is tuned; returns what figures depend on, beside versions, device and model.
        examine: looks at what this machine has of what the backend needs.
        rescue: may save a plan that failed.
    """

    name: str
    backend_class: str
    devices: tuple[str, ...]
    options: BackendOptions
    scope_flavour: ScopeFlavour = ScopeFlavour.REGION
    is_simulated: bool = False
    plans_for: "BackendInfo | None" = None
    runner: str = ""
    settings: tuple[str, ...] = ()
    hot_type_options: tuple[str, ...] = ()
    program_compiler: str = ""
    artifact_installer: str = ""
    needs_fresh_process: bool = False
    worker_folders: Mapping[str, str] = field(default_factory=dict)
    worker_environment: Callable[[str], Mapping[str, str]] = _no_variables
    takes_torchair: Callable[[str], bool] = _never
    fingerprint: Callable[[TargetSpec], Mapping[str, str]] = _environment_of
    examine: Callable[[], Sequence[Finding]] = _lacks_nothing
    rescue: Rescue = _hopeless

    @property
    def final_processes(self) -> int:
        """In how many fresh processes plans are compared at the end: what is computed is the same in each."""
        return 1 if self.is_simulated else FINAL_PROCESSES

    @property
    def runs_superkernels(self) -> bool:
        """Whether SuperKernels are what is measured, on an NPU."""
        return self.scope_flavour is ScopeFlavour.SUPERKERNEL and not self.is_simulated

    def in_spaces(self, device: str) -> tuple[str, str]:
        """Return the backend and the device type under which a space file lists what holds on ``device``."""
        return (self.plans_for.name, self.plans_for.devices[0]) if self.plans_for else (self.name, device)

    def settings_of(self, spec: TargetSpec) -> dict[str, Any]:
        """Return the keywords that the backend's class is called with."""
        return {name: getattr(spec, name) for name in self.settings}

    def load(self) -> Any:
        """Import and return the backend's class."""
        return attribute_at(self.backend_class)

    def install(self, folder: Path, delivery: Delivery, *, strict: bool = False) -> str:
        """Load delivered code; return why that was not possible, empty where it was.

        Raises:
            PlanError: with ``strict``, where it was not possible.
        """
        if not self.artifact_installer:
            return f"the backend {self.name} loads no delivered code"
        problem: str = attribute_at(self.artifact_installer)(folder, delivery, strict=strict)
        return problem


def attribute_at(address: str) -> Any:
    """Return what lies at ``module:attribute``."""
    module, _, attribute = address.partition(":")
    return getattr(importlib.import_module(module), attribute)
