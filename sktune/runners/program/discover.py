"""Writes a recipe for a folder that it has never seen: what is found is filled in, what cannot be known is said."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import BadInputError
from sktune.source.yaml_flag import FLAG, MODE, NEEDED_MODE

SCRIPT = Path("executor/scripts/infer.sh")
"""How cann-recipes-infer starts a model, below the checkout's root."""
RANKS_PER_HOST = 16
"""Dies of one Atlas A3 server."""
MOST_NEW_TOKENS = 160
"""Enough decode steps to alternate between plan and baseline; more only make each run longer."""


@dataclass
class Scouted:
    """A recipe in the making, and what a reader has to know of it.

    Attributes:
        values: of the recipe's document.
        found, unknown: a line each.
    """

    values: dict[str, Any]
    found: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The recipe's file."""
        told = [f"# found: {line}" for line in self.found] + [f"# NOT KNOWN: {line}" for line in self.unknown]
        head = ["# Search with: sktune search --recipe THIS_FILE --trials 20   (see docs/reference/recipe.md)", *told]
        return "\n".join(head) + "\n" + yaml.safe_dump(self.values, sort_keys=False, allow_unicode=True, width=110)


def scout(folder: Path, yaml_file: Path | None = None, command: str | None = None) -> Scouted:
    """Look at a checkout of cann-recipes-infer, one of its models, or a folder with a program of its own.

    Args:
        folder: to look at.
        yaml_file: the program's YAML, where there are several.
        command: what starts the program, where no script is found.

    Raises:
        BadInputError: there is nothing to start, or several YAML files to choose from.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder} is no folder; give a checkout of recipes, or the folder of a model")
    folder = folder.resolve()
    root = next((each for each in (folder, *folder.parents) if (each / SCRIPT).is_file()), None)
    if command is None and root and not _own_script(folder, root):
        return _of_checkout(root, folder, yaml_file)
    return _of_program(folder, yaml_file, command)


def _of_checkout(root: Path, folder: Path, yaml_file: Path | None) -> Scouted:
    models = [folder] if folder.parent == root / "models" else sorted(path for path in (root / "models").glob("*/"))
    configs = [path for model in models for path in sorted((model / "config").rglob("*.yaml"))]
    file = _chosen(configs, yaml_file, folder)
    model = next((each for each in (root / "models").glob("*/") if file.is_relative_to(each)), None)
    if model is None:
        raise BadInputError(f"{file} lies in no model of {root}; name a YAML below models/")
    inside = file.relative_to(model / "config") if file.is_relative_to(model / "config") else Path(file.name)
    name = "{yaml_name}" if inside.parent == Path() else f"{inside.parent.as_posix()}/{{yaml_name}}"
    scouted = Scouted(
        {
            "version": 1,
            "name": f"{model.name}-{file.stem}",
            "command": shlex.join(["bash", SCRIPT.as_posix(), "--model", model.name, "--yaml"]) + f" {name}",
            "directory": str(root),
        }
    )
    scouted.found.append(f"{SCRIPT.as_posix()} starts {model.name} with {file.name}")
    _add_yaml(scouted, file, root)
    scouted.values["logs"] = f"models/{model.name}/res/*/*{file.stem}*/log_*.log"
    _add_backend(scouted, model)
    return scouted


def _of_program(folder: Path, yaml_file: Path | None, command: str | None) -> Scouted:
    words = _words(command) if command else _start(folder)
    scouted = Scouted({"version": 1, "name": folder.name, "command": shlex.join(words), "directory": str(folder)})
    scouted.found.append(f"the command is {command or shlex.join(words)}")
    if yaml_file:
        name = yaml_file.name
        if not any(name in word for word in words):
            raise BadInputError(
                f"the command does not name {name}, so no copy of it can be used; put it into --command"
            )
        scouted.values["command"] = " ".join(
            word.replace(name, "{yaml_name}") if name in word else shlex.quote(word) for word in words
        )
        _add_yaml(scouted, _existing(yaml_file, folder), folder)
    else:
        scouted.unknown.append("the YAML that the program reads, if any; with one, sktune switches its own scopes off")
        scouted.unknown.append("how many ranks it starts: `ranks` is 1")
    scouted.unknown.append(
        "the lines that tell the latency: `latency: steps` takes sktune's own times of the decode step"
    )
    scouted.values["latency"] = "steps"
    _add_backend(scouted, folder)
    return scouted


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as failure:
        raise BadInputError(f"--command cannot be split into words ({failure}); mend its quotes") from failure


def _start(folder: Path) -> list[str]:
    scripts = [path for path in (folder / "infer.sh", folder / "run.sh") if path.is_file()]
    if scripts:
        return ["bash", scripts[0].name]
    programs = [path for path in sorted(folder.glob("*.py")) if "__main__" in path.read_text(errors="replace")]
    if len(programs) == 1:
        return ["python3", programs[0].name]
    names = ", ".join(path.name for path in programs[:4]) or "none"
    raise BadInputError(
        f"{folder} has no infer.sh, and {len(programs)} Python programs ({names}); say what starts it with --command"
    )


def _own_script(folder: Path, root: Path) -> bool:
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
    raise BadInputError(f"there is no file {path}, nor is it in {folder}")


def _add_yaml(scouted: Scouted, file: Path, root: Path) -> None:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as failure:
        raise BadInputError(f"{file} is no YAML ({str(failure).partition(chr(10))[0]}); mend it") from failure
    values = dict(_leaves(data, ()))
    changes: dict[str, Any] = {}
    for path, value in values.items():
        key = path.rpartition(".")[2]
        if key == MODE and value != NEEDED_MODE:
            changes[path] = NEEDED_MODE
            scouted.found.append(f"{path} is {value!r}, where scopes do nothing: {NEEDED_MODE} in the copy")
        if key == "enable_cache_compile" and value:
            changes[path] = False
            scouted.found.append(f"{path} is on: off in the copy, as a plan compiles anew")
        if key == "max_new_tokens" and isinstance(value, int) and value > MOST_NEW_TOKENS:
            changes[path] = MOST_NEW_TOKENS
            scouted.found.append(f"{path} is {value}: {MOST_NEW_TOKENS} in the copy, so that runs are short")
        if key == FLAG and value:
            scouted.found.append(f"{path} is on: off in the copy, as the plans of sktune take its place")
        if key == "temperature" and value:
            changes[path] = 0.0
            scouted.found.append(f"{path} is {value}: 0.0 in the copy, as bits are compared")
        if key == "next_n" and value:
            scouted.found.append(
                f"{path} is {value}: a step's latency is that of the main and the draft model together"
            )
    scouted.values["yaml"] = {"file": str(file.relative_to(root)) if file.is_relative_to(root) else str(file)}
    if changes:
        scouted.values["yaml"]["set"] = changes
    _add_ranks(scouted, values)


def _add_ranks(scouted: Scouted, values: dict[str, Any]) -> None:
    world = next((value for path, value in values.items() if path.rpartition(".")[2] == "world_size"), None)
    if not isinstance(world, int):
        scouted.unknown.append("how many ranks it starts: the YAML has no world_size, `ranks` is 1")
        return
    scouted.values["ranks"] = min(world, RANKS_PER_HOST)
    scouted.found.append(f"world_size is {world}")
    if world > RANKS_PER_HOST:
        scouted.unknown.append(
            f"the other {-(-world // RANKS_PER_HOST) - 1} hosts: sktune starts and watches the ranks of this one only, "
            "so a run needs them started at the same time; tune with a YAML of one host, and apply the plan to this one"
        )


def _add_backend(scouted: Scouted, folder: Path) -> None:
    sources = list(folder.rglob("*.py"))
    uses_npu = any(re.search(r"torch_npu|torchair", path.read_text(errors="replace")) for path in sources)
    scouted.values["backend"] = "npu" if uses_npu else "inductor"
    scouted.found.append(f"its sources {'use' if uses_npu else 'do not use'} torch_npu")
    scouted.unknown.append("how long a run takes: `timeout_s` is 1800 (start, compile and all decode steps)")
    scouted.values["timeout_s"] = 1800


def _leaves(data: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, (*path, str(key)))
    elif path:
        yield ".".join(path), data
