"""Presets: the YAML files in ``search_spaces/``, one for each model family."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from sktune.core.documents import Document, read_document
from sktune.core.errors import SpaceError
from sktune.core.space import SpaceSpec

FULL = "full"


class ModelSpec(Document):
    """The ``model:`` part of a preset: a transformers architecture and its sizes."""

    model_type: str
    """The architecture's name in transformers, e.g. ``deepseek_v3``."""
    published: dict[str, Any]
    """The published configuration: scale ``full``."""
    scales: dict[str, dict[str, Any]] = {}
    """Changes of smaller scales to the published configuration."""
    batch: dict[str, int] = {}
    """Sequences decoded together, by scale."""
    context: dict[str, int] = {}
    """Tokens in the KV cache before the first step, by scale."""
    experts: Literal["batched_mm", "grouped_mm", "eager"] = "batched_mm"
    """How transformers runs routed experts; ``eager`` has a data-dependent loop and cannot be captured."""

    @property
    def scale_names(self) -> tuple[str, ...]:
        """All scales in the order of the file, smallest first, then ``full``."""
        return (*self.scales, FULL)

    def configuration(self, scale: str) -> dict[str, Any]:
        """Return the configuration's values at ``scale``."""
        return {**self.published, **self.scales.get(scale, {})}


class Preset(Document):
    """A file of ``search_spaces/``."""

    version: Literal[1]
    model: ModelSpec
    space: SpaceSpec = Field(default_factory=SpaceSpec)


class SpaceFile(Document):
    """A user's search space (``--space FILE``)."""

    version: Literal[1]
    space: SpaceSpec
    model: Mapping[str, Any] = {}
    """Ignored, so that a copy of a preset can be used as a space."""


def folder() -> Path:
    """Return where the presets are: inside the installed package, or beside it in a checkout."""
    installed = Path(__file__).parents[1] / "search_spaces"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "search_spaces"


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, for ``--model``."""
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))


def load_preset(name: str) -> Preset:
    """Return the preset ``name``, one of ``preset_names()``."""
    return read_document(folder() / f"{name}.yaml", Preset, SpaceError)


def load_space(path: Path) -> SpaceSpec:
    """Read a search space from a user's file.

    Raises:
        SpaceError: it is not valid; the message has file, line and the nearest key.
    """
    return read_document(path, SpaceFile, SpaceError).space
