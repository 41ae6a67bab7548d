"""``sktune apply``: turns a plan file into a change of a model folder's source and configuration."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import libcst as cst

from sktune.core import files
from sktune.core.errors import BadInputError, PlanError
from sktune.core.files import real_path
from sktune.core.plain_data import load_yaml
from sktune.core.plan import Plan
from sktune.core.plan_file import PlanFile
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source import edits
from sktune.source.captured_mode import draft_notes, option_notes
from sktune.source.carry import UNIT, Carried, carry, kept, kinds_of_text, own_kinds
from sktune.source.classes import classes_of, parsed
from sktune.source.codemod import Rewritten, rewrite
from sktune.source.edits import Change
from sktune.source.hand_scopes import HELPER
from sktune.source.own_configuration import OwnConfiguration, own_configuration
from sktune.source.placement import MissingUnitError, refuse_missing
from sktune.source.values import Known
from sktune.source.yaml_flag import (
    CAPTURED_MODE,
    NEEDED_MODE,
    PARENTS,
    check_mode,
    has_flag,
    mode_of,
    turn_on,
    turn_on_static_kernels,
)
from sktune.targets.recipe import FLAG

HELPER_HOMES = ("executor/utils/__init__.py", "executor/utils/common_utils.py")
"""Where cann-recipes-infer keeps ``superkernel_scope``, relative to its root."""

Read = Callable[[Path], str]


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What a plan changes in a folder.

    Attributes:
        folder: of the model.
        changes: the files that change; empty if the plan is already applied.
        record: all files changed by this plan or the previous one: their original text, and the new one.
        notes: remarks for the reader, one line each.
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
        """Change the files, so that ``edits.undo`` can put them back."""
        edits.write(self.record, self.folder)


def source_change(plan_file: PlanFile, folder: Path, yaml_file: Path | None = None) -> SourceChange:
    """Return what ``plan_file`` changes in the model folder ``folder``; nothing is written.

    A previously applied plan is replaced.

    Args:
        plan_file: must have scopes.
        folder: contains ``modeling_*.py`` and the YAML file, at any depth.
        yaml_file: the file below ``folder`` in which to enable scopes; None if only one has the flag.

    Raises:
        PlanError: the plan cannot be expressed in this source.
        BadInputError: a file is missing, was edited since, or cannot be read.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder} is not a folder; give the model's folder, with its modeling_*.py")
    plan, notes = _for_source(plan_file)
    before = edits.originals(folder)

    def original(path: Path) -> str:
        return before[path] if path in before else edits.read_text(path)

    switch = _below(folder, yaml_file) if yaml_file else only_yaml(folder, original)
    flavour = plan_file.backend
    if flavour is ScopeFlavour.REGION:  # as what it is written depends on the program alone
        is_captured = mode_of(original(switch), switch) == CAPTURED_MODE
        flavour = ScopeFlavour.CAPTURED if is_captured else ScopeFlavour.SUPERKERNEL
    is_captured = flavour is ScopeFlavour.CAPTURED
    check_mode(original(switch), switch, CAPTURED_MODE if is_captured else NEEDED_MODE)
    document = load_yaml(original(switch), str(switch), BadInputError)
    settings = document if isinstance(document, dict) else {}
    source, rewritten = _rewritten(folder, plan, plan_file, flavour, settings, original)
    for path in (source, switch):
        files.inside(folder, path, edits.OUTSIDE)
    enabled = turn_on(original(switch), switch, rewritten.readings)
    if is_captured:
        enabled = turn_on_static_kernels(enabled, switch)
        notes += (*option_notes(plan, *_compiling(folder)), *draft_notes(settings))
    new = {source: rewritten.text, switch: enabled}
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
    """Return the plan as scopes on an NPU, with notes on what is left out."""
    plan, notes = plan_file.to_plan(), []
    if verified := plan_file.evidence.get("verified"):
        notes.append(f"bits of the plan compared with its baseline: {verified}")
    if plan_file.shapes:
        knows_calls = all(shape.decode and shape.decode.signature for shape in plan_file.shapes)
        launch = ", and sktune.launch chooses by itself" if knows_calls else ""
        notes.append(
            f"the file has plans for {len(plan_file.shapes)} shapes, and a source does not know its shape before it "
            f"runs: this is the best single plan for all of them; --shape takes that of one{launch}"
        )
    if not plan.scopes:
        others = ", ".join(name for name, alone in plan_file.alone if name and alone.plan.scopes)
        fix = f"the plans for {others} have some: take one with --shape" if others else "give a plan with scopes"
        raise PlanError(f"the plan has no scopes, so there is nothing to apply; {fix}")
    if plan_file.layers is None:
        raise PlanError("the plan file does not say how many layers the model has; add `layers: N` to it")
    if plan_file.backend is ScopeFlavour.CAPTURED:
        return plan, notes
    if plan_file.backend is not ScopeFlavour.SUPERKERNEL:
        notes.append(
            f"the plan was made for the backend {plan_file.backend}: its options are left out; measure it on the NPU"
        )
        return Plan(tuple(replace(scope, options=()) for scope in plan.scopes)), notes
    if plan.options:
        options = ", ".join(f"{name}={value}" for name, value in plan.options)
        notes.append(f"set the options of the whole step in TorchAir's CompilerConfig: {options}")
    return plan, notes


def _rewritten(
    folder: Path, plan: Plan, plan_file: PlanFile, flavour: ScopeFlavour, settings: dict[str, Any], original: Read
) -> tuple[Path, Rewritten]:
    """Return the file whose classes run the plan's units, and its new text."""
    sources = sorted(path for path in folder.rglob("modeling_*.py") if not _is_hidden(path, folder))
    if not sources:
        raise BadInputError(f"{folder} has no modeling_*.py; give the model's folder")
    home = _helper_home(folder)
    helper = ".".join(home.with_suffix("").parts[-3:]).removesuffix(".__init__") if home else "executor.utils"
    failures: list[BadInputError] = []
    found: dict[Path, Rewritten] = {}
    for path in sources:
        try:
            own = own_configuration(folder, original(path), settings, original)
            carried = _carried(plan, plan_file, original(path), own)
            known = Known(settings, own.certain)
            if own.is_default:
                _refuse_by_default(carried, original(path), Known(settings, own.values), own.source)
            users = _users_of(path, folder, original)
            rewritten = rewrite(original(path), carried.plan, carried.n_layers, helper, known, flavour, users)
            found[path] = replace(rewritten, notes=(*filter(None, (carried.note,)), *rewritten.notes))
        except PlanError as failure:
            failures.append(PlanError(f"{path}: {failure}"))
        except BadInputError as failure:
            failures.append(failure)
        except cst.ParserSyntaxError as failure:
            failures.append(PlanError(f"{path}:{failure.raw_line}: {failure.message}; fix the file first"))
        except RecursionError:
            failures.append(PlanError(f"{path}: an expression is nested too deeply; fix the file first"))
    if len(found) > 1:
        names = " and ".join(path.relative_to(folder).as_posix() for path in found)
        raise PlanError(
            f"the plan fits {names}; rename all but the one that the program runs, so that their names do not begin "
            "with modeling_"
        )
    if not found:
        raise failures[-1]
    return next(iter(found.items()))


def _users_of(source: Path, folder: Path, original: Read) -> dict[str, list[str]]:
    """Return the classes of a file that other files of the folder import, each with the names of these files."""
    users: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        if path == source or _is_hidden(path, folder):
            continue
        try:
            nodes = list(ast.walk(ast.parse(original(path))))
        except (SyntaxError, ValueError, RecursionError, MemoryError, BadInputError):  # nothing imports from it either
            continue
        names: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and _last_part(node.module) == source.stem:
                names |= {name.name for name in node.names}
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {"*" for name in node.names if _last_part(name.name) == source.stem}
        if "*" in names:  # any of them, by its name or as an attribute of the module
            names |= {node.id for node in nodes if isinstance(node, ast.Name)}
            names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        for name in names:
            users.setdefault(name, []).append(path.relative_to(folder).as_posix())
    return users


def _last_part(name: str | None) -> str:
    return (name or "").rpartition(".")[2]


def _refuse_by_default(carried: Carried, source: str, known: Known, said_by: str) -> None:
    """Refuse a plan with a unit that only other layers have by defaults: they may be wrong, and so may the plan."""
    try:
        refuse_missing(classes_of(parsed(source)), carried.plan, carried.n_layers, known)
    except MissingUnitError as failure:
        raise PlanError(f"by {said_by}, {failure}, or put the config.json of the weights into the folder") from failure


def _carried(plan: Plan, plan_file: PlanFile, source: str, own: OwnConfiguration) -> Carried:
    """Return the plan for the model's own layers, as far as its configuration names them."""
    assert plan_file.layers is not None
    if not any(UNIT.match(unit) for scope in plan.scopes for unit in (scope.first, scope.last)):
        return Carried(plan, plan_file.layers)
    if own.n_layers is None:
        note = (
            f"the plan is for {plan_file.layers} layers, and the model's own number is not known here: neither its "
            "YAML's model_path nor the folder has a config.json, and the folder's code gives no default"
        )
        return Carried(plan, plan_file.layers, note)
    kinds = kinds_of_text(plan_file.kinds) if plan_file.kinds else None
    if kinds and len(kinds) != plan_file.layers:
        raise PlanError(f"the plan file has layers: {plan_file.layers}, but kinds of {len(kinds)}; correct one of them")
    classes = classes_of(parsed(source))
    of_own = own_kinds(classes, plan, Known({}, own.values), own.n_layers)
    if own.is_default:
        return kept(plan, kinds or ["any"] * plan_file.layers, of_own, own.n_layers, own.source)
    return carry(
        plan,
        kinds or ["any"] * plan_file.layers,
        of_own or ["any"] * own.n_layers,
        own.source,
        known_kinds=kinds is not None,
        own_kinds=of_own is not None,
    )


def only_yaml(folder: Path, original: Read = edits.read_text) -> Path:
    """Return the YAML file below ``folder`` that can enable scopes.

    Raises:
        BadInputError: there is none, or several; the message names them.
    """
    paths = sorted((*folder.rglob("*.yaml"), *folder.rglob("*.yml")))
    candidates = [path for path in paths if not _is_hidden(path, folder) and has_flag(original(path))]
    if not paths:
        raise BadInputError(
            f"{folder} has no YAML file, in which `{FLAG}: True` would turn scopes on; give --to the folder that has "
            "both the source and its YAML, or apply the plan in Python: sktune.apply(model, plan)"
        )
    if len(candidates) != 1:
        several = f"{len(candidates)} in {folder} have" if candidates else f"none of the {len(paths)} in {folder} has"
        names = ", ".join(path.relative_to(folder).as_posix() for path in (candidates or paths)[:4])
        raise BadInputError(
            f"one YAML file must turn scopes on, and {several} {FLAG} or {' or '.join(PARENTS)} ({names}); "
            "name the one that the program reads with --yaml"
        )
    return candidates[0]


def _helper_home(folder: Path) -> Path | None:
    """Return the file that has the recipes' helper, searched from the folder upwards."""
    roots = (real_path(folder), *real_path(folder).parents)
    paths = (root / home for root in roots for home in HELPER_HOMES)
    return next((path for path in paths if path.is_file() and HELPER in edits.read_text(path)), None)


def _compiling(folder: Path) -> tuple[list[Path], Path]:
    """Return the files in which a program may compile its step, its own and the repository's, and their common root."""
    own = sorted(path for path in folder.rglob("*.py") if not _is_hidden(path, folder))
    home = _helper_home(folder)
    if home is None:
        return own, folder
    executor = home.parents[1]
    return [*map(real_path, own), *sorted(executor.rglob("*.py"))], executor.parent


def named_in(folder: Path, path: Path) -> Path:
    """Return the file that a user names: ``path``, or, if only that exists, ``path`` relative to ``folder``."""
    return folder / path if not path.exists() and (folder / path).is_file() else path


def _below(folder: Path, path: Path) -> Path:
    """Return ``path`` as a path that starts with ``folder``, however either is written; it may be relative to it."""
    path = named_in(folder, path)
    if path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts:
        return path
    real, root = real_path(path.parent) / path.name, real_path(folder)
    if not real.is_relative_to(root):
        raise BadInputError(f"{path} is outside of {folder}; give --to a folder that has both the source and the YAML")
    return folder / real.relative_to(root)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
