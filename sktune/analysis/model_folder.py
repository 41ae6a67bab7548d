"""Where a plan is to be applied: a model's folder and its YAML, the YAML's settings, and the change to make."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sktune.core.errors import BadInputError, PlanError
from sktune.core.plan_file import read_plan_file
from sktune.recipes.recipe_draft import by_key, data_parallel_groups, read_settings
from sktune.source.apply import named_in, only_yaml, source_change
from sktune.source.yaml_flag import MODE
from sktune.targets.recipe import FLAG

SETTINGS = (MODE, FLAG, "batch_size", "next_n")
"""Keys of a recipe's YAML that affect scopes, at any depth of the file."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder, and its YAML if known.

    Attributes:
        settings: those of ``SETTINGS`` that the YAML has.
        batch: sequences on each die, as ``batch_size`` is that of all; 0 if the YAML does not say it.
    """

    folder: Path
    yaml: Path | None
    settings: Mapping[str, Any]
    batch: int = 0


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What `sktune apply` would do: a diff and notes, or the reason why it refuses."""

    diff: str = ""
    notes: tuple[str, ...] = ()
    refused: str = ""


def place_of(folder: Path | None, yaml_file: Path | None) -> ModelFolder | None:
    """Return the place that a user names; None without a folder.

    Raises:
        BadInputError: the folder or the file does not exist, or a YAML file is given without its folder.
    """
    if folder is None:
        if yaml_file:
            raise BadInputError(f"--yaml {yaml_file} needs the model's folder; name it with --dir")
        return None
    if not folder.is_dir():
        raise BadInputError(f"--dir {folder} is not a folder; give the model's folder, with its modeling_*.py")
    if yaml_file is None:
        try:
            yaml_file = only_yaml(folder)
        except BadInputError:
            return ModelFolder(folder, None, {})  # planned_change reports it
    yaml_file = named_in(folder, yaml_file)
    settings = by_key(read_settings(yaml_file))
    used = {name: settings[name] for name in SETTINGS if isinstance(settings.get(name), bool | int | float | str)}
    batch, world = settings.get("batch_size"), settings.get("world_size", 1)
    groups = data_parallel_groups(settings) or int(world == 1)
    return ModelFolder(folder, yaml_file, used, batch // groups if isinstance(batch, int) and groups else 0)


RECIPE = "recipe.yaml"
"""The name that `sktune recipe init` gives it."""


def model_or_recipe(model: str | None, recipe: Path | None, folder: Path | None) -> tuple[str, Path | None]:
    """Return the model or the recipe to search on: the one that is named, the folder's recipe, or the folder itself.

    Raises:
        BadInputError: none of them can be loaded.
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


def planned_change(place: ModelFolder, plan: Path) -> PlannedChange:
    """Return the change that the plan file ``plan`` makes in ``place``; nothing is written."""
    try:
        change = source_change(read_plan_file(plan), place.folder, place.yaml)
    except (PlanError, BadInputError) as refused:
        return PlannedChange(refused=str(refused))
    return PlannedChange(change.diff, change.notes)
