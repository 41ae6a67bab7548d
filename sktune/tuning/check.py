"""Checks: what the compiler will make of a plan's scopes, and what it will refuse, without compiling them."""

from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sktune.ascend.scope_check import CheckedScope, certainly_refused
from sktune.backends import all_backends, backend_info
from sktune.backends.base import CompileError
from sktune.backends.info import BackendInfo
from sktune.backends.this_machine import NO_NPU, device_name
from sktune.core.errors import BackendError, BadInputError, ExitCode, PlanError
from sktune.core.events.scopes import CheckedScopeShown, CutShown, PlanChecked
from sktune.core.plan import Plan
from sktune.core.plan_file import PlanFile, read_plan_file
from sktune.core.scope_flavour import ScopeFlavour
from sktune.core.space import SpaceSpec
from sktune.measure.devices import import_torch_npu
from sktune.targets import TargetSpec
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.recheck import RecheckRequest, target_of
from sktune.tuning.request import Request, space_spec

AT_BEST = "cuts and SuperKernels as if every operator could be fused"


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """What the compiler will make of a plan.

    Attributes:
        scopes: of the plan; if a simulated plan fails, the scope that fails alone.
        notes: what a reader must know, such as that it is simulated.
    """

    scopes: tuple[CheckedScope, ...]
    notes: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether the compiler is certain to refuse it."""
        return certainly_refused(self.scopes) is not None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command."""
        return ExitCode.REFUSED if self.is_refused else ExitCode.DONE

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if self.is_refused:
            return "the compiler would refuse this plan"
        doubtful = sum(bool(scope.refusal) for scope in self.scopes)
        if doubtful:
            return f"nothing is certain to be refused; {doubtful} of {len(self.scopes)} scopes may be"
        return "no refusal is foreseen; `sktune doctor` lists what is not modelled"

    def event(self, plan: Path) -> PlanChecked:
        """Return the event that tells it; ``plan`` is the file."""
        scopes = [
            CheckedScopeShown(
                scope.label, scope.operators, scope.superkernels,
                [CutShown(kind, rule, count) for (kind, rule), count in Counter(scope.cuts).items()],
                scope.refusal, scope.is_certain,
            )
            for scope in self.scopes
        ]  # fmt: skip
        return PlanChecked(plan=str(plan), refused=self.is_refused, exit_code=self.exit_code, scopes=scopes)


def check_plan(path: Path, model: Request | None = None, *, trust: bool = False, shape: str | None = None) -> PlanCheck:
    """Check the plan in a file. The step is converted, and runs once; nothing is compiled.

    Args:
        path: of the plan file.
        model: that the plan is for; None for the one that the file names.
        trust: whether to run the code in the folder of the model that the file names.
        shape: of a file with several shapes the one whose plan to check; None for the single plan.

    Raises:
        PlanError: the file is not a plan file, does not fit the model, or is not for SuperKernels; or its single plan
            has no scope, while those of shapes have some.
        BackendError: the step cannot be converted, or TorchAir is missing.
        SktuneError: the model cannot be loaded.
    """
    file = read_plan_file(path)
    if shape is not None:
        file = file.at(file.entry_of(shape, str(path)))
    elif not file.plan.scopes and (others := [name for name, alone in file.alone if name and alone.plan.scopes]):
        raise PlanError(f"{path}: its single plan has no scope; choose a plan with --shape: {', '.join(others)}")
    if file.backend is ScopeFlavour.REGION:
        raise PlanError(f"{path} is for {file.backend}; check is for plans of SuperKernel scopes")
    if model is None and file.target is None:
        raise PlanError(f"{path} does not say which model the plan is for; add --model")
    spec, space = _target(file, model) if model else target_of(file, RecheckRequest(path, trust=trust))
    info = backend_info(spec.backend)
    if info.scope_flavour is ScopeFlavour.REGION:
        raise BadInputError(f"{info.name} has no SuperKernel scopes; add --backend npu or --backend sim")
    if info.scope_flavour is not file.backend:
        fitting = [f"--backend {each.name}" for each in all_backends() if each.scope_flavour is file.backend]
        raise BadInputError(f"{path} is for {file.backend}, not for {info.name}; add {' or '.join(fitting)}")
    if spec.runner != "worker":
        raise BadInputError(
            f"{spec.name} is built by its own program, which check does not start; give it with --model"
        )
    return _checked(info, spec, space, file.to_plan())


def _target(file: PlanFile, model: Request) -> tuple[TargetSpec, SpaceSpec]:
    spec, preset = model.target()
    space = SpaceSpec(**file.target.units) if file.target else space_spec(model, spec, preset)
    return spec, space


def _checked(info: BackendInfo, spec: TargetSpec, space: SpaceSpec, plan: Plan) -> PlanCheck:
    if info.runs_superkernels:
        import_torch_npu()  # fails before a model is loaded
        if device_name(spec.device) == NO_NPU:
            spec = replace(spec, device="cpu")  # what is converted runs eagerly, once
    info.options.check_step(plan)
    with torch.no_grad():
        target = load(spec, takes_torchair=info.takes_torchair(spec.device))
        layout = trace_layout(target, space)
        layout.check(plan)
        backend = info.load()(target, layout, decode_inputs(target, 0, 1)[0], **info.settings_of(spec))
        with TemporaryDirectory(prefix="sktune-check-") as folder, chdir(folder):  # for TorchAir's dumps
            try:
                return PlanCheck(backend.check(plan), backend.notes or AT_BEST)
            except CompileError as failure:
                raise BackendError(
                    f"the step cannot be converted: {failure}; see `sktune doctor`, or add --backend sim"
                ) from failure


def lines(check: PlanCheck) -> Sequence[str]:
    """Return one line for each scope, alike scopes together, and the verdict."""
    alike: dict[str, list[str]] = {}
    for scope in check.scopes:
        alike.setdefault(str(scope), []).append(scope.label)
    found = [
        f"{labels[0]}{f' and {len(labels) - 1} like it' if len(labels) > 1 else ''}: {text}"
        for text, labels in alike.items()
    ]
    return [*found, f"{check.verdict}{f' ({check.notes})' if check.notes else ''}"]
