"""Recipe files: how to start a program, what to change in its YAML, and where to read its latency.

A run has a copy of the program's YAML, the command, and one report and one log for each rank. See
docs/reference/recipe.md.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from sktune.core.documents import Document, read_document
from sktune.core.errors import TargetError
from sktune.core.files import WRITTEN, real_path

MAX_RANKS, MAX_HOSTS = 1024, 1024
FLAG = "enable_superkernel"
"""The flag that turns scopes on, in the YAML of recipes and in their models' code."""
COPY_SUFFIX = "_sktune"
"""Suffix of the YAML's copy, which is in the same folder, where launch scripts look for it."""
OTHER_INFERENCE = r"python.*[ /](infer|server)\.py"
"""Processes beside which cann-recipes-infer refuses to start (executor/scripts/function.sh, check_launch)."""
_SOURCES = ("*.py", "*.sh")
_PLACE = re.compile(r"\{(yaml|yaml_name|hosts|host_rank|rank_offset|master)\}")
"""Placeholders for the YAML's copy and for what is known of the hosts; all other braces belong to the program."""
_NO_PLACES: Mapping[str, str] = MappingProxyType({})


class YamlFile(Document):
    """The program's YAML. It is never changed: the command gets a copy."""

    file: Path
    """Path of the YAML, relative to the recipe's ``directory``."""
    set: dict[str, Any] = {}
    """Values in the copy, by dotted path: ``scheduler_config.max_new_tokens: 160``."""


class LatencyLines(Document):
    """Lines in the program's log with the latency of a decode step."""

    pattern: str
    """A regular expression whose first group is a number of milliseconds."""

    @field_validator("pattern")
    @classmethod
    def _has_group(cls, pattern: str) -> str:
        if _expression(pattern).groups < 1:
            raise ValueError("the pattern needs a group around the milliseconds, such as ([0-9.]+)")
        return pattern


class Recipe(Document):
    """A recipe file, version 1."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1)]
    """Name of the target, after which studies are named."""
    command: Annotated[list[str], Field(min_length=1)]
    """Started without a shell, on each host. ``{yaml}`` becomes the path of the YAML's copy, ``{yaml_name}`` its file
    name; with several ``hosts``, see also ``places``."""
    directory: Path = Path()
    """Working folder of the command, relative to the recipe's file."""
    environment: dict[str, str] = {}
    """Variables, whose values may have the placeholders of ``places``."""
    yaml: YamlFile | None = None
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)] = 1
    """Processes on each host that run the model."""
    hosts: Annotated[int, Field(ge=1, le=MAX_HOSTS)] = 1
    """Hosts that one run needs."""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1800.0
    """Time limit for one run, including start and compilation."""
    backend: Literal["npu", "npugraph-ex", "inductor"] = "npu"
    device: Literal["npu", "cuda", "cpu"] | None = None
    latency: Literal["log", "steps"] | LatencyLines = "log"
    """``log``: the log lines of cann-recipes-infer; ``steps``: sktune times the compiled decode step in each rank."""
    logs: str | None = None
    """Pattern of the files with these lines, one file for each rank, relative to ``directory``
    (``models/x/res/*/*/log_*.log``); None for the command's output."""
    model: str | None = None
    """Class of the module tree whose submodules are units; None for the tree that the compiled function belongs to."""
    stateless: bool = False
    """Whether no tensor outlives a decode step; if false, a program in which sktune finds none is refused."""
    space: Path | None = None
    """A file with a search space, relative to the recipe's file."""
    other_inference: str = OTHER_INFERENCE
    """Regular expression for command lines of other programs that would disturb measurements."""
    wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0
    """How long to wait for these to end before giving up."""

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, command: Any) -> Any:
        import shlex

        try:
            return shlex.split(command) if isinstance(command, str) else command
        except ValueError as failure:
            raise ValueError(f"the command cannot be split into arguments ({failure}); fix its quotes") from failure

    @field_validator("logs")
    @classmethod
    def _is_pattern(cls, logs: str | None) -> str | None:
        if logs is not None:
            try:
                list(Path(os.devnull).glob(logs))  # not a folder, so only the pattern can fail
            except (ValueError, NotImplementedError) as failure:
                raise ValueError(f"not a pattern for files below directory, such as log_*.log ({failure})") from failure
        return logs

    @field_validator("other_inference")
    @classmethod
    def _is_selective(cls, pattern: str) -> str:
        if _expression(pattern).search(""):
            raise ValueError("the pattern matches every process; name those to wait for, or use (?!) for none")
        return pattern

    @property
    def all_ranks(self) -> int:
        """Processes on all hosts that run the model."""
        return self.hosts * self.ranks

    def places(self, addresses: Sequence[str], host: int) -> dict[str, str]:
        """Return what replaces the placeholders on one of several hosts: ``{hosts}``, ``{master}`` and others."""
        offset = str(host * self.ranks)
        return {
            "hosts": ",".join(addresses), "host_rank": str(host), "rank_offset": offset, "master": addresses[0],
        }  # fmt: skip

    def argv(self, copy: Path | None = None, places: Mapping[str, str] = _NO_PLACES) -> list[str]:
        """Return the command's arguments with ``copy`` as its YAML; None for the YAML itself."""
        file = copy or (self.yaml.file if self.yaml else None)
        yaml = {"yaml": str(file), "yaml_name": file.name} if file else {}
        return [_filled(argument, {**places, **yaml}) for argument in self.command]

    def variables(self, places: Mapping[str, str]) -> dict[str, str]:
        """Return the environment's variables with their placeholders replaced."""
        return {name: _filled(value, places) for name, value in self.environment.items()}


def _filled(text: str, places: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: places.get(place[1], place[0]), text)


def _expression(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as failure:
        raise ValueError(f"not a regular expression ({failure})") from failure


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; the paths in the result are absolute.

    Raises:
        TargetError: it is not a recipe, or a file that it names is missing; the message is one line with the fix.
    """
    recipe = read_document(path, Recipe, TargetError)
    home = real_path(path).parent
    directory = real_path(home / recipe.directory)
    if not directory.is_dir():
        raise TargetError(f"{path}: directory {recipe.directory} is not a folder; it is relative to the recipe's file")
    changes: dict[str, Any] = {"directory": directory}
    if recipe.yaml:
        file = real_path(directory / recipe.yaml.file)
        if not file.is_file():
            raise TargetError(f"{path}: there is no file {recipe.yaml.file} in {recipe.directory}; fix yaml.file")
        if not any("{yaml}" in argument or "{yaml_name}" in argument for argument in recipe.command):
            raise TargetError(
                f"{path}: the command does not use the YAML's copy; put {{yaml}} or {{yaml_name}} into it"
            )
        changes["yaml"] = recipe.yaml.model_copy(update={"file": file})
    elif recipe.logs and recipe.hosts > 1:
        raise TargetError(
            f"{path}: on several hosts, logs are those with the name of the YAML's copy in their path, and there is no "
            "yaml; leave logs out, or add yaml"
        )
    if recipe.space:
        changes["space"] = home / recipe.space
    return recipe.model_copy(update=changes)


def needs_cluster(name: str, hosts: int) -> str:
    """Return the message for a program that cannot run on this host alone."""
    return (
        f"one run of {name} needs {hosts} hosts; search with --engine ray on a cluster, or set `hosts: 1` in the recipe"
    )


def digest(recipe: Recipe, path: Path) -> str:
    """Return a digest of a recipe and the program's sources: when it changes, figures are no longer valid.

    What sktune itself writes into the program's folder, such as generated code in ``runs/cache``, is no source.
    """
    digest = hashlib.sha256(path.read_bytes())
    files = {file for pattern in _SOURCES for file in recipe.directory.rglob(pattern)}
    written = {mark.parent for mark in recipe.directory.rglob(WRITTEN)}
    for file in sorted(files) + ([recipe.yaml.file] if recipe.yaml else []):
        inside = file.relative_to(recipe.directory) if file.is_relative_to(recipe.directory) else Path(file.name)
        if any(part.startswith(".") or part == "__pycache__" for part in inside.parts):
            continue
        if written.intersection(file.parents):
            continue
        digest.update(os.fsencode(inside) + _content(file))
    return digest.hexdigest()


def _content(file: Path) -> bytes:
    """Return a file's content; where there is none, a dangling link or a folder, what is there."""
    if file.is_file():
        try:
            return file.read_bytes()
        except OSError as failure:
            raise TargetError(
                f"{file} cannot be read ({failure.strerror}), so changes to it would go unnoticed; fix its permissions"
            ) from failure
    return os.fsencode(file.readlink()) if file.is_symlink() else b""
