"""Drafts a recipe for an unknown folder: it fills in what it finds, and lists what the user has to fill in."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import BadInputError
from sktune.core.files import read_text
from sktune.core.plain_data import load_yaml
from sktune.source.yaml_flag import FLAG, MODE, NEEDED_MODE

SCRIPT = Path("executor/scripts/infer.sh")
"""The script that starts a model of cann-recipes-infer, relative to the checkout's root."""
RANKS_PER_HOST = 16
"""Dies of one Atlas A3 server."""
MAX_NEW_TOKENS = 160
"""Enough decode steps to alternate between plan and baseline; more would only make runs longer."""


@dataclass
class RecipeDraft:
    """A draft of a recipe, with notes for the user.

    Attributes:
        values: content of the recipe's file.
        found, unknown: notes on what was found and what was not, one line each.
    """

    values: dict[str, Any]
    found: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text of the recipe's file."""
        notes = [f"# found: {line}" for line in self.found] + [f"# NOT KNOWN: {line}" for line in self.unknown]
        head = ["# Search with: sktune search --recipe THIS_FILE --trials 20   (see docs/reference/recipe.md)", *notes]
        return "\n".join(head) + "\n" + yaml.safe_dump(self.values, sort_keys=False, allow_unicode=True, width=110)


def draft_recipe(folder: Path, yaml_file: Path | None = None, command: str | None = None) -> RecipeDraft:
    """Draft a recipe for a checkout of cann-recipes-infer, one of its models, or a folder with any other program.

    Args:
        folder: the folder.
        yaml_file: the program's YAML; needed if there are several.
        command: the command that starts the program; needed if no script is found.

    Raises:
        BadInputError: there is nothing to start, or there are several YAML files to choose from.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder} is not a folder; give a checkout of recipes, or the folder of a model")
    folder = folder.resolve()
    root = next((each for each in (folder, *folder.parents) if (each / SCRIPT).is_file()), None)
    if command is None and root and not _has_own_script(folder, root):
        return _from_checkout(root, folder, yaml_file)
    return _from_program(folder, yaml_file, command)


def _from_checkout(root: Path, folder: Path, yaml_file: Path | None) -> RecipeDraft:
    models = [folder] if folder.parent == root / "models" else sorted(path for path in (root / "models").glob("*/"))
    configs = [path for model in models for path in sorted((model / "config").rglob("*.yaml"))]
    file = _chosen(configs, yaml_file, folder)
    model = next((each for each in (root / "models").glob("*/") if file.is_relative_to(each)), None)
    if model is None:
        raise BadInputError(f"{file} does not belong to a model of {root}; name a YAML below models/")
    inside = file.relative_to(model / "config") if file.is_relative_to(model / "config") else Path(file.name)
    name = "{yaml_name}" if inside.parent == Path() else f"{inside.parent.as_posix()}/{{yaml_name}}"
    draft = RecipeDraft(
        {
            "version": 1,
            "name": f"{model.name}-{file.stem}",
            "command": shlex.join(["bash", SCRIPT.as_posix(), "--model", model.name, "--yaml"]) + f" {name}",
            "directory": str(root),
        }
    )
    draft.found.append(f"{SCRIPT.as_posix()} starts {model.name} with {file.name}")
    _add_yaml(draft, file, root)
    draft.values["logs"] = f"models/{model.name}/res/*/*{file.stem}*/log_*.log"
    _add_backend(draft, model)
    return draft


def _from_program(folder: Path, yaml_file: Path | None, command: str | None) -> RecipeDraft:
    argv = _split(command) if command else _start_command(folder)
    draft = RecipeDraft({"version": 1, "name": folder.name, "command": shlex.join(argv), "directory": str(folder)})
    draft.found.append(f"the command is {command or shlex.join(argv)}")
    if yaml_file:
        name = yaml_file.name
        if not any(name in argument for argument in argv):
            raise BadInputError(f"the command does not name {name}, so it cannot be given a copy; name it in --command")
        draft.values["command"] = " ".join(
            argument.replace(name, "{yaml_name}") if name in argument else shlex.quote(argument) for argument in argv
        )
        _add_yaml(draft, _existing(yaml_file, folder), folder)
    else:
        draft.unknown.append(
            "the YAML that the program reads, if any; with one, sktune turns the program's own scopes off"
        )
        draft.unknown.append("how many ranks it starts: `ranks` is 1")
    draft.unknown.append("the log lines with the latency: `latency: steps` uses sktune's own times of the decode step")
    draft.values["latency"] = "steps"
    _add_backend(draft, folder)
    return draft


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as failure:
        raise BadInputError(f"--command cannot be split into arguments ({failure}); fix its quotes") from failure


def _start_command(folder: Path) -> list[str]:
    scripts = [path for path in (folder / "infer.sh", folder / "run.sh") if path.is_file()]
    if scripts:
        return ["bash", scripts[0].name]
    programs = [path for path in sorted(folder.glob("*.py")) if "__main__" in path.read_text(errors="replace")]
    if len(programs) == 1:
        return ["python3", programs[0].name]
    names = ", ".join(path.name for path in programs[:4]) or "none"
    raise BadInputError(
        f"{folder} has no infer.sh, and {len(programs)} Python programs ({names}); give the command with --command"
    )


def _has_own_script(folder: Path, root: Path) -> bool:
    return folder != root and (folder / "infer.sh").is_file()


def _chosen(configs: list[Path], yaml_file: Path | None, folder: Path) -> Path:
    if yaml_file:
        by_name = [path for path in configs if path.name == yaml_file.name]
        return by_name[0] if len(by_name) == 1 else _existing(yaml_file, folder)
    if len(configs) != 1:
        names = ", ".join(path.name for path in configs[:6]) or "none"
        raise BadInputError(
            f"{folder} has {len(configs)} YAML files to start a model with ({names}); name one with --yaml"
        )
    return configs[0]


def _existing(path: Path, folder: Path) -> Path:
    for each in (path, folder / path):
        if each.is_file():
            return each.resolve()
    raise BadInputError(f"there is no file {path}, neither here nor in {folder}; fix --yaml")


def _add_yaml(draft: RecipeDraft, file: Path, root: Path) -> None:
    data = load_yaml(read_text(file, BadInputError, "name the program's YAML"), str(file), BadInputError) or {}
    values = dict(_leaves(data, ()))
    changes: dict[str, Any] = {}
    for path, value in values.items():
        key = path.rpartition(".")[2]
        if key == MODE and value != NEEDED_MODE:
            changes[path] = NEEDED_MODE
            draft.found.append(f"{path} is {value!r}, where scopes have no effect: {NEEDED_MODE} in the copy")
        if key == "enable_cache_compile" and value:
            changes[path] = False
            draft.found.append(f"{path} is on: off in the copy, as every plan must be compiled")
        if key == "max_new_tokens" and isinstance(value, int) and value > MAX_NEW_TOKENS:
            changes[path] = MAX_NEW_TOKENS
            draft.found.append(f"{path} is {value}: {MAX_NEW_TOKENS} in the copy, so that runs are short")
        if key == FLAG and value:
            draft.found.append(f"{path} is on: off in the copy, as sktune's plans replace it")
        if key == "temperature" and value:
            changes[path] = 0.0
            draft.found.append(f"{path} is {value}: 0.0 in the copy, as outputs are compared bit by bit")
        if key == "next_n" and value:
            draft.found.append(f"{path} is {value}: a step's latency includes the main and the draft model")
    draft.values["yaml"] = {"file": str(file.relative_to(root)) if file.is_relative_to(root) else str(file)}
    if changes:
        draft.values["yaml"]["set"] = changes
    _add_ranks(draft, values)


def _add_ranks(draft: RecipeDraft, values: dict[str, Any]) -> None:
    world = next((value for path, value in values.items() if path.rpartition(".")[2] == "world_size"), None)
    if not isinstance(world, int):
        draft.unknown.append("how many ranks it starts: the YAML has no world_size, `ranks` is 1")
        return
    draft.values["ranks"] = min(world, RANKS_PER_HOST)
    draft.found.append(f"world_size is {world}")
    if world > RANKS_PER_HOST:
        draft.unknown.append(
            f"the other {-(-world // RANKS_PER_HOST) - 1} hosts: sktune starts and watches the ranks of this one only, "
            "so a run needs the others started at the same time; tune with a YAML for one host, and use the plan with "
            "this YAML"
        )


def _add_backend(draft: RecipeDraft, folder: Path) -> None:
    sources = list(folder.rglob("*.py"))
    uses_npu = any(re.search(r"torch_npu|torchair", path.read_text(errors="replace")) for path in sources)
    draft.values["backend"] = "npu" if uses_npu else "inductor"
    draft.found.append(f"its sources {'use' if uses_npu else 'do not use'} torch_npu")
    draft.unknown.append("how long a run takes: `timeout_s` is 1800 (start, compilation and all decode steps)")
    draft.values["timeout_s"] = 1800


def _leaves(data: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, (*path, str(key)))
    elif path:
        yield ".".join(path), data
