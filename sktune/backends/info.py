"""Describes a backend before it is imported: one ``BackendInfo`` for each, defined in the backend's package."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sktune.backends.options import BackendOptions
from sktune.core.delivery import Delivery
from sktune.core.fused_scopes import SeenTypes
from sktune.core.layout import Layout
from sktune.core.outcome import Outcome
from sktune.core.plan import Option, Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.targets import TargetSpec

FINAL_PROCESSES = 3
"""Fresh processes of the final comparison."""
META_DEVICE = "meta"
"""The device type of a model that only has shapes, without values."""


Rescue = Callable[[Outcome, Plan], tuple[str, Option] | None]
"""Takes a failed outcome and its plan; returns an option that may help if all scopes have it, or None."""


if TYPE_CHECKING:
    from sktune.ascend.scope_check import CheckedScope

Foresee = Callable[[Plan, Layout, SeenTypes], "CheckedScope | None"]
"""Takes a plan, its layout with kernels, and what trials have shown; returns a scope that is certain to be refused."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend as seen by code outside of its package. Defining one does not import torch.

    Attributes:
        name: its name for ``--backend``.
        backend_class: address of its class, ``module:Class``; called with target, layout and the inputs of one step, it
            returns a ``sktune.backends.base.Backend``.
        devices: device types that it runs on, the default first; ``meta`` for models that only have shapes.
        options: the options that plans may have.
        scope_flavour: what its scopes become; for SuperKernels of both kinds its class is a
            ``sktune.backends.base.SuperKernelBackend``.
        is_simulated: whether latencies are simulated; its class is then a ``sktune.backends.base.SimulatedBackend``.
        plans_for: the backend that its plans are for, if another: space files use that one's name for options and
            starting points.
        runner: runs its plans for models that sktune builds, ``module:factory``, a
            ``sktune.worker.jobs.RunnerFactory``; empty for sktune's worker process.
        settings: fields of ``TargetSpec`` that its class takes as keywords.
        hot_type_options: options that take operator types; they are tried on the types that take the most time.
        compiles_programs: whether sktune compiles the decode step of a recipe's program, instead of the program.
        artifact_installer: function that loads delivered code into this process, ``module:function``; empty if no code
            is delivered. See ``install``.
        needs_fresh_process: whether each plan needs a separate process and working folder.
        worker_folders: environment variables that name folders below that working folder.
        worker_environment: takes a device type; returns environment variables for the worker process, on which figures
            depend unless they are simulated.
        takes_torchair: takes a device type; whether TorchAir has to convert the model's operators.
        fingerprint: takes the target's spec; returns what figures depend on besides versions, device, model and, unless
            they are simulated, the environment.
        examine: function that checks the backend's requirements on this machine, ``module:function``, and returns
            ``sktune.core.events.commands.Finding``s; empty if there are none.
        needs: backends whose requirements are also its own.
        examine_program: the same for what a recipe's program needs for this backend, called with the
            ``sktune.backends.program_python.ProgramPython`` that runs it.
        rescue: returns an option that may save a failed plan.
        options_of: takes the version of a program's torch_npu; returns the options that its plans may have. None if all
            releases have the same.
        foresee: returns a scope for which the compiler is certain to refuse a plan; such a plan is not compiled.
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
    compiles_programs: bool = False
    artifact_installer: str = ""
    needs_fresh_process: bool = False
    worker_folders: Mapping[str, str] = field(default_factory=dict)
    worker_environment: Callable[[str], Mapping[str, str]] = lambda device: {}
    takes_torchair: Callable[[str], bool] = lambda device: False
    fingerprint: Callable[[TargetSpec], Mapping[str, str]] = lambda spec: {}
    examine: str = ""
    needs: tuple[str, ...] = ()
    examine_program: str = ""
    rescue: Rescue = lambda outcome, plan: None
    foresee: Foresee = lambda plan, layout, seen: None
    options_of: Callable[[str], BackendOptions] | None = None

    @property
    def final_processes(self) -> int:
        """In how many fresh processes plans are compared at the end; simulated figures are the same in each."""
        return 1 if self.is_simulated else FINAL_PROCESSES

    @property
    def runs_superkernels(self) -> bool:
        """Whether real SuperKernels run, on an NPU."""
        return self.scope_flavour is not ScopeFlavour.REGION and not self.is_simulated

    def options_for(self, versions: Mapping[str, str]) -> BackendOptions:
        """Return the options that plans may have for a program with these versions of packages."""
        return self.options_of(versions["torch_npu"]) if self.options_of and "torch_npu" in versions else self.options

    def in_spaces(self, device: str) -> tuple[str, str]:
        """Return the backend and the device type under which a space file lists the settings for ``device``."""
        return (self.plans_for.name, self.plans_for.devices[0]) if self.plans_for else (self.name, device)

    def settings_of(self, spec: TargetSpec) -> dict[str, Any]:
        """Return the keyword arguments of the backend's class."""
        return {name: getattr(spec, name) for name in self.settings}

    def load(self) -> Any:
        """Import and return the backend's class."""
        return attribute_at(self.backend_class)

    def install(self, folder: Path, delivery: Delivery, *, strict: bool = False) -> str:
        """Load delivered code; return why that failed, empty if it succeeded.

        Raises:
            PlanError: with ``strict``, if it failed.
        """
        if not self.artifact_installer:
            return f"the backend {self.name} cannot load delivered code"
        problem: str = attribute_at(self.artifact_installer)(folder, delivery, strict=strict)
        return problem


def attribute_at(address: str) -> Any:
    """Import and return ``module:attribute``."""
    module, _, attribute = address.partition(":")
    return getattr(importlib.import_module(module), attribute)
