"""``sktune apply``: a plan file becomes a change of a model folder's source and configuration."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import libcst as cst

from sktune.core.errors import BadInputError, PlanError
from sktune.core.plan import Plan
from sktune.core.plan_file import PlanFile
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source import edits
from sktune.source.codemod import HELPER, Rewritten, rewrite
from sktune.source.edits import Change
from sktune.source.yaml_flag import has_flag, turn_on

HELPER_HOMES = ("executor/utils/__init__.py", "executor/utils/common_utils.py")
"""Where cann-recipes-infer keeps ``superkernel_scope``, below the recipes' root."""

Read = Callable[[Path], str]


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What a plan changes in a folder.

    Attributes:
        folder: the model's.
        changes: the files that differ afterwards; none where the plan is there already.
        record: all files that carry the plan or did the one before, as they were before any, and as they become.
        notes: what a reader should know, a line each.
    """

    folder: Path
    changes: tuple[Change, ...]
    record: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The change as a patch."""
        return edits.unified_diff(self.changes, self.folder)

    def write(self) -> None:
        """Change the files, so that ``changes.undo`` can put them back."""
        edits.write(self.record, self.folder)


def source_change(plan_file: PlanFile, folder: Path, yaml_file: Path | None = None) -> SourceChange:
    """Return what ``plan_file`` changes in the model folder ``folder``; nothing is written.

    A plan that was applied before is replaced.

    Args:
        plan_file: its plan has scopes.
        folder: holds ``modeling_*.py`` and the YAML, at any depth.
        yaml_file: the one below ``folder`` to switch scopes on in; None where only one knows the switch.

    Raises:
        PlanError: the plan cannot be said in this source.
        BadInputError: a file is missing, edited since, or cannot be read.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder} is no folder; give the model's, with its modeling_*.py")
    plan, notes = _for_source(plan_file)
    before = edits.originals(folder)

    def original(path: Path) -> str:
        return before[path] if path in before else edits.read_text(path)

    source, rewritten = _rewritten(folder, plan, plan_file.layers, original)
    switch = _below(folder, yaml_file) if yaml_file else only_yaml(folder, original)
    new = {source: rewritten.text, switch: turn_on(original(switch), switch)}
    new |= {path: text for path, text in before.items() if path not in new}
    changed = [Change(path, edits.read_text(path), text) for path, text in sorted(new.items())]
    record = [
        Change(path, original(path), text)
        for path, text in sorted(new.items())
        if path in before or original(path) != text
    ]
    return SourceChange(
        folder,
        tuple(change for change in changed if change.before != change.after),
        tuple(record),
        (*notes, *rewritten.notes),
    )


def _for_source(plan_file: PlanFile) -> tuple[Plan, list[str]]:
    """Return the plan as SuperKernel scopes, and what that leaves out."""
    plan, notes = plan_file.to_plan(), []
    if verified := plan_file.evidence.get("verified"):
        notes.append(f"bits of the plan, against its baseline: {verified}")
    if not plan.scopes:
        raise PlanError("the plan has no scope, so there is nothing to apply; the baseline is the model as it is")
    if plan_file.layers is None:
        raise PlanError("the plan file does not say how many layers the model has; add `layers: N` to it")
    if plan_file.backend is not ScopeFlavour.SUPERKERNEL:
        notes.append(f"the plan is of the backend {plan_file.backend}: measure it on the NPU; its options are left out")
        return Plan(tuple(replace(scope, options=()) for scope in plan.scopes)), notes
    if plan.options:
        options = ", ".join(f"{name}={value}" for name, value in plan.options)
        notes.append(f"options of the whole step belong into TorchAir's CompilerConfig: {options}")
    return plan, notes


def _rewritten(folder: Path, plan: Plan, n_layers: int | None, original: Read) -> tuple[Path, Rewritten]:
    """Return the file whose classes run the plan's units, with the plan in it."""
    assert n_layers is not None
    sources = sorted(path for path in folder.rglob("modeling_*.py") if not _is_hidden(path, folder))
    if not sources:
        raise BadInputError(f"{folder} holds no modeling_*.py; give the folder of the model")
    failures: list[PlanError] = []
    for path in sources:
        try:
            return path, rewrite(original(path), plan, n_layers, _helper_module(folder))
        except PlanError as failure:
            failures.append(PlanError(f"{path}: {failure}"))
        except cst.ParserSyntaxError as failure:
            failures.append(PlanError(f"{path}:{failure.raw_line}: {failure.message}; mend the file first"))
    raise failures[-1]


def only_yaml(folder: Path, original: Read = edits.read_text) -> Path:
    """Return the YAML file below ``folder`` that can switch scopes on.

    Raises:
        BadInputError: there is none, or several; the line names them.
    """
    found = sorted((*folder.rglob("*.yaml"), *folder.rglob("*.yml")))
    known = [path for path in found if not _is_hidden(path, folder) and has_flag(original(path))]
    if len(known) != 1:
        names = ", ".join(path.relative_to(folder).as_posix() for path in known[:4]) or "none"
        raise BadInputError(
            f"one YAML file has to switch scopes on, and {folder} holds {len(known)} that can ({names}); "
            "name it with --yaml"
        )
    return known[0]


def _helper_module(folder: Path) -> str:
    """Return the module that has the recipes' helper, found from the folder upwards."""
    for root in (folder.resolve(), *folder.resolve().parents):
        for home in HELPER_HOMES:
            path = root / home
            if path.is_file() and HELPER in edits.read_text(path):
                return home.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "executor.utils"


def _below(folder: Path, path: Path) -> Path:
    """Return ``path`` as it is called from ``folder`` on, whatever way leads to either."""
    if path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts:
        return path
    real, root = path.parent.resolve() / path.name, folder.resolve()
    if not real.is_relative_to(root):
        raise BadInputError(f"{path} lies outside of {folder}; give --to a folder that holds both source and YAML")
    return folder / real.relative_to(root)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
