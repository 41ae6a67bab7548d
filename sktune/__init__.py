"""sktune: the fastest SuperKernel scopes for a model's decode step, with every output bit the same.

result = sktune.search("deepseek-v3", trials=40)
print(result)
sktune.apply(model, result.best_plan)
"""

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sktune.core.errors import PlanError, SktuneError, nearest
from sktune.core.scope_flavour import ScopeFlavour

if TYPE_CHECKING:
    from torch import nn

    from sktune.backends.info import BackendInfo
    from sktune.core.delivery import ExpectedCode
    from sktune.core.plan import Plan, Scope
    from sktune.core.plan_file import PlanFile, read_plan
    from sktune.study.result import SearchResult
    from sktune.targets.base import Target
    from sktune.targets.marks import MarkedModel
    from sktune.tuning.api import load, load_shapes, search, search_shapes

logger = logging.getLogger(__name__)

# Imported on first use: torch takes seconds, a worker does not search, and ``sktune.launch`` needs no package.
_LAZY = {
    "Plan": "sktune.core.plan",
    "Scope": "sktune.core.plan",
    "SearchResult": "sktune.study.result",
    "Target": "sktune.targets.base",
    "load": "sktune.tuning.api",
    "load_shapes": "sktune.tuning.api",
    "read_plan": "sktune.core.plan_file",
    "search": "sktune.tuning.api",
    "search_shapes": "sktune.tuning.api",
}

__all__ = [
    "Plan",
    "Scope",
    "SearchResult",
    "SktuneError",
    "Target",
    "apply",
    "load",
    "load_shapes",
    "read_plan",
    "search",
    "search_shapes",
]


def apply(
    module: "nn.Module",
    plan: "Plan | Path | str",
    backend: str | None = None,
    *,
    strict: bool = False,
    shape: str | None = None,
) -> "MarkedModel":
    """Put a plan's scopes on ``module``, before its decode step is compiled.

    Args:
        module: the model, or a part of it that contains the plan's units.
        plan: a plan, or the path of a plan file.
        backend: that will compile the step: ``inductor``, ``npu`` for TorchAir, or ``npugraph-ex``. None for the one
            that the file names, or ``inductor`` for a plan without a file.
        strict: refuse to run any code but that verified and delivered with the plan file: an error says which scope
            would run other code, at the latest when its first decode step runs. Without it, differences are logged as
            warnings, and what is not compiled runs as it is.
        shape: of a plan file with several shapes the one to use, such as ``batch=8 context=1024``. Without it, each
            step that is compiled with the backend ``sktune`` and ``dynamic=False`` gets the plan of its own shape; at a
            shape at which none was verified the single plan for all shapes with a warning, or with ``strict`` an error.

    Returns:
        the marks; ``detach()`` removes them.

    Raises:
        PlanError: the file is not a plan, the plan does not fit the module, or an artifact differs from the one that
            the plan lists; with ``strict``, also if the file's scopes are not those of its code, and, when the step is
            compiled or run, if its code differs, lacks a scope, or is not compiled by sktune.
    """
    from sktune.backends import all_backends
    from sktune.backends.this_machine import NOT_INSTALLED, package_version
    from sktune.core.plan import Plan
    from sktune.core.plan_file import read_plan_file
    from sktune.targets.by_shape import ShapedPlans
    from sktune.targets.marks import attach, scope_maker
    from sktune.targets.strict import StrictPlan

    path, file, found_with = Path(), None, ""
    if not isinstance(plan, Plan):
        path, file = Path(plan), read_plan_file(plan)
        file = file.at(file.entry_of(shape, str(path))) if shape is not None else file
        plan, backend = file.to_plan(), backend or file.backend
        found_with = file.found_with.get("torch_npu", "")
    elif shape is not None:
        raise PlanError("a shape is chosen from a plan file; leave shape out, or give the file")
    compiling = {info.name: info for info in all_backends() if not info.is_simulated}
    backend = backend or ScopeFlavour.REGION
    if backend not in compiling:
        raise PlanError(f"there is no compiling backend {backend!r}{nearest(backend, compiling)}")
    info = compiling[backend]
    codes = [_installed(info, path, alone, strict=strict) for _, alone in file.alone] if file else [{}]
    if strict and not any(codes):
        raise PlanError(
            "strict=True needs a plan that comes with compiled code, and this one does not; leave strict out"
        )
    for (_, alone), code in zip(file.alone, codes, strict=True) if strict and file else ():
        _check_strict(alone.to_plan(), code)
    if file and file.shapes:
        if info.scope_flavour is not ScopeFlavour.REGION:
            raise PlanError(
                f"{path} has plans for several shapes, and only steps that sktune compiles itself tell their shape; "
                f"give shape={file.shapes[0].name!r} or another one, or start the program with python -m sktune.launch"
            )
        return ShapedPlans(module, file, codes, strict=strict)
    [delivered] = codes
    artifacts = file.artifacts if file else None
    info.options.check_step(plan)
    installed = package_version("torch_npu")
    if info.runs_superkernels and found_with not in ("", NOT_INSTALLED, installed):
        logger.warning("%s was found with torch_npu %s, here it is %s; run sktune recheck", path, found_with, installed)
    marks = attach(module, plan, scope_maker(info.scope_flavour, delivered))
    if strict:
        assert artifacts is not None
        StrictPlan(marks, artifacts.calls)
    return marks


def _check_strict(plan: "Plan", code: "Mapping[str, ExpectedCode]") -> None:
    """Raise ``PlanError`` unless each scope of a plan has verified code."""
    if unverified := {scope.label for scope in plan.scopes} ^ code.keys():
        raise PlanError(
            f"scope {min(unverified)} is not in both the plan and its verified code; use the file as it was written"
        )


def _installed(info: "BackendInfo", path: Path, file: "PlanFile", *, strict: bool) -> "dict[str, ExpectedCode]":
    """Load the compiled code of a plan file, and return what its scopes should compile to, by label."""
    from sktune.core.delivery import ExpectedCode

    if not (file.artifacts and info.artifact_installer):
        return {}
    if problem := info.install(path.parent / file.artifacts.folder, file.artifacts.delivery(), strict=strict):
        logger.warning("%s; its scopes are compiled again", problem)
    return {label: ExpectedCode(digest, strict) for label, digest in file.artifacts.code.items()}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'sktune' has no attribute {name!r}")
