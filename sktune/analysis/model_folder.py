"""Where a plan shall go: a model's folder with its YAML, what the YAML says, and the change that the plan would be."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import BadInputError, PlanError
from sktune.core.plan_file import read_plan_file
from sktune.source.apply import only_yaml, source_change
from sktune.source.edits import read_text
from sktune.source.yaml_flag import FLAG, MODE

SETTINGS = (MODE, FLAG, "batch_size", "next_n")
"""What of a recipe's YAML bears on scopes, wherever in the file it stands."""


@dataclass(frozen=True, slots=True)
class Place:
    """A model folder, its YAML where one is known, and the YAML's ``SETTINGS`` as far as it has them."""

    folder: Path
    yaml: Path | None
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What `sktune apply` would do: a diff and notes, or why it refuses."""

    diff: str = ""
    notes: tuple[str, ...] = ()
    refused: str = ""


def place_of(folder: Path | None, yaml_file: Path | None) -> Place | None:
    """Return the place that a user names; None without a folder.

    Raises:
        BadInputError: there is no such folder or file, or a YAML file without its folder.
    """
    if folder is None:
        if yaml_file:
            raise BadInputError(f"--yaml {yaml_file} belongs to a model's folder; name that with --dir")
        return None
    if not folder.is_dir():
        raise BadInputError(f"--dir {folder} is no folder; give the model's, with its modeling_*.py")
    if yaml_file is None:
        try:
            yaml_file = only_yaml(folder)
        except BadInputError:
            return Place(folder, None, {})  # the same line comes again where the plan's change is shown
    return Place(folder, yaml_file, settings_of(yaml_file))


RECIPE = "recipe.yaml"
"""As `sktune recipe init` calls it."""


def searched_on(model: str | None, recipe: Path | None, folder: Path | None) -> tuple[str, Path | None]:
    """Return the model or the recipe to search on: what is named, the folder's recipe, or the folder itself.

    Raises:
        BadInputError: neither names a model that can be loaded.
    """
    if model or recipe:
        return model or "", recipe
    if folder is None:
        raise BadInputError("name a model with --model, a model's folder with --dir, or a program with --recipe")
    if (folder / RECIPE).is_file():
        return "", folder / RECIPE
    if (folder / "config.json").is_file():
        return str(folder), None
    raise BadInputError(
        f"--dir {folder} has no config.json to build its model from and no {RECIPE}; name a model to search on with "
        "--model, or write a recipe with `sktune recipe init`"
    )


def settings_of(path: Path) -> dict[str, Any]:
    """Return the ``SETTINGS`` that the YAML file at ``path`` has.

    Raises:
        BadInputError: it cannot be read, or is no YAML.
    """
    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as failure:
        raise BadInputError(f"{path} is no YAML: {str(failure).partition(chr(10))[0]}; mend it first") from failure
    found: dict[str, Any] = {}
    for key, value in _pairs(document):
        if key in SETTINGS and isinstance(value, bool | int | float | str):
            found.setdefault(key, value)
    return found


def planned_change(place: Place, plan: Path) -> PlannedChange:
    """Return what the plan file ``plan`` changes in ``place``; nothing is written."""
    try:
        change = source_change(read_plan_file(plan), place.folder, place.yaml)
    except (PlanError, BadInputError) as refused:
        return PlannedChange(refused=str(refused))
    return PlannedChange(change.diff, change.notes)


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield key, value
            yield from _pairs(value)
