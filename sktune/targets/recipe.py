"""Recipe files: how to start a program, what varies between two starts, and where its latency can be read.

The path of a run: a copy of the program's YAML, the command, one report and one log for each rank. See
docs/reference/recipe.md.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from sktune.core.documents import Document, read_document
from sktune.core.errors import TargetError

COPY_SUFFIX = "_sktune"
"""Of the YAML's copy, which is put beside it: launch scripts look for it there."""
OTHER_INFERENCE = r"python.*[ /](infer|server)\.py"
"""Processes beside which cann-recipes-infer refuses to start (executor/scripts/function.sh, check_launch)."""
_SOURCES = ("*.py", "*.sh")
_PLACE = re.compile(r"\{yaml(?:_name)?\}")
"""Of the YAML's copy in a command; all other braces are the program's."""


class YamlFile(Document):
    """The program's YAML: it stays as it is, and the command gets a copy."""

    file: Path
    """Below the recipe's ``directory``."""
    set: dict[str, Any] = {}
    """Values in the copy, by dotted path: ``scheduler_config.max_new_tokens: 160``."""


class LatencyLines(Document):
    """Lines of the program's own log that say how long a decode step took."""

    pattern: str
    """A regular expression whose first group is a number of milliseconds."""

    @field_validator("pattern")
    @classmethod
    def _has_group(cls, pattern: str) -> str:
        if _expression(pattern).groups < 1:
            raise ValueError("the pattern needs a group around the milliseconds, such as ([0-9.]+)")
        return pattern


class Recipe(Document):
    """A recipe of version 1."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1)]
    """Of what is tuned; studies are named after it."""
    command: Annotated[list[str], Field(min_length=1)]
    """Started without a shell. ``{yaml}`` becomes the path of the YAML's copy, ``{yaml_name}`` its file name."""
    directory: Path = Path()
    """Where the command starts; relative to the recipe's file."""
    environment: dict[str, str] = {}
    yaml: YamlFile | None = None
    ranks: Annotated[int, Field(ge=1)] = 1
    """Processes on this host that run the model."""
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Most time for one run, start and compile included."""
    backend: Literal["npu", "inductor"] = "npu"
    device: Literal["npu", "cuda", "cpu"] | None = None
    latency: Literal["log", "steps"] | LatencyLines = "log"
    """``log``: the lines of cann-recipes-infer; ``steps``: as sktune times the compiled decode step in each rank."""
    logs: str | None = None
    """Files that hold the lines, one for each rank, below ``directory`` (``models/x/res/*/*/log_*.log``); what the
    command prints, where there are none."""
    model: str | None = None
    """Class of the module tree whose submodules are units; None: the one that the compiled function belongs to."""
    stateless: bool = False
    """No tensor outlives a decode step; otherwise a program in which sktune finds none is refused."""
    space: Path | None = None
    """A file with a search space, relative to the recipe's."""
    other_inference: str = OTHER_INFERENCE
    """Command lines of other programs beside which nothing can be measured."""
    wait_s: Annotated[float, Field(ge=0)] = 600.0
    """How long to wait for those to end, before giving up."""

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, command: Any) -> Any:
        import shlex

        try:
            return shlex.split(command) if isinstance(command, str) else command
        except ValueError as failure:
            raise ValueError(f"the command cannot be split into words ({failure})") from failure

    @field_validator("logs")
    @classmethod
    def _is_pattern(cls, logs: str | None) -> str | None:
        if logs is not None:
            try:
                list(Path(os.devnull).glob(logs))  # no folder, so that only the pattern can fail
            except (ValueError, NotImplementedError) as failure:
                raise ValueError(f"no pattern of files below directory, such as log_*.log ({failure})") from failure
        return logs

    @field_validator("other_inference")
    @classmethod
    def _spares_some(cls, pattern: str) -> str:
        if _expression(pattern).search(""):
            raise ValueError("the pattern matches every process; name those to wait for, or none with (?!)")
        return pattern

    def words(self, copy: Path | None = None) -> list[str]:
        """Return the command's words with ``copy`` as its YAML; with the YAML itself where None is given."""
        file = copy or (self.yaml.file if self.yaml else None)
        if file is None:
            return list(self.command)
        values = {"{yaml}": str(file), "{yaml_name}": file.name}
        return [_PLACE.sub(lambda place: values[place[0]], word) for word in self.command]


def _expression(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as failure:
        raise ValueError(f"no regular expression ({failure})") from failure


def read_recipe(path: Path) -> Recipe:
    """Read ``path``; the paths in what is returned are absolute.

    Raises:
        TargetError: no recipe, or a file that it names is missing; one line with what to do.
    """
    recipe = read_document(path, Recipe, TargetError)
    home = path.resolve().parent
    directory = (home / recipe.directory).resolve()
    if not directory.is_dir():
        raise TargetError(f"{path}: directory {recipe.directory} is no folder; it is relative to the recipe's file")
    changes: dict[str, Any] = {"directory": directory}
    if recipe.yaml:
        file = (directory / recipe.yaml.file).resolve()
        if not file.is_file():
            raise TargetError(f"{path}: there is no file {recipe.yaml.file} in {recipe.directory}; fix yaml.file")
        if not any(map(_PLACE.search, recipe.command)):
            raise TargetError(f"{path}: the command names no {{yaml}} or {{yaml_name}}, so the YAML's copy is not used")
        changes["yaml"] = recipe.yaml.model_copy(update={"file": file})
    if recipe.space:
        changes["space"] = home / recipe.space
    return recipe.model_copy(update=changes)


def digest(recipe: Recipe, path: Path) -> str:
    """Identity of a recipe and of the program's sources: once they change, figures no longer hold."""
    found = hashlib.sha256(path.read_bytes())
    files = {file for pattern in _SOURCES for file in recipe.directory.rglob(pattern)}
    for file in sorted(files) + ([recipe.yaml.file] if recipe.yaml else []):
        inside = file.relative_to(recipe.directory) if file.is_relative_to(recipe.directory) else Path(file.name)
        if any(part.startswith(".") or part == "__pycache__" for part in inside.parts):
            continue
        found.update(str(inside).encode() + file.read_bytes())
    return found.hexdigest()
