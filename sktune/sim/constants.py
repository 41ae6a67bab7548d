"""The constants of the cost model, each with its unit and origin."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import model_validator

from sktune.core.documents import Document, read_document
from sktune.core.errors import SimulationError, nearest

ATLAS_A3 = Path(__file__).with_name("atlas_a3.yaml")
"""The constants that ship with sktune."""


class Provenance(Document):
    """The origin of a value: it has a source, was fitted, or is assumed for a reason."""

    source: str = ""
    assumed: bool = False
    fitted: bool = False
    reason: str = ""

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (bool(self.source) + self.assumed + self.fitted) != 1 or (not self.source and not self.reason):
            raise ValueError("give a source, or `assumed: true` or `fitted: true` with a reason")
        return self


class Constant(Provenance):
    """A number with its unit; ``standard_error``, if it was fitted, is in the same unit."""

    value: float
    unit: str
    standard_error: float | None = None


class OperatorTypes(Provenance):
    """Operator types with a common property."""

    value: tuple[str, ...]


class Behaviour(Provenance):
    """Whether the simulated compiler does something that other versions do not."""

    value: bool


class Deployment(Document):
    """Parameters of a deployment."""

    expert_dies: Constant


class Constants(Document):
    """The content of ``atlas_a3.yaml``, or of a file that ``calibrate`` wrote."""

    version: Literal[1]
    device: str
    constants: Mapping[str, Constant]
    unfusable_types: OperatorTypes
    fusable_collectives: OperatorTypes
    sync_all_types: OperatorTypes
    early_start_types: OperatorTypes
    aicpu_types: OperatorTypes
    splits_at_sync_all: Behaviour
    deployment: Deployment

    def __getitem__(self, name: str) -> float:
        """Return the value of one constant."""
        return self.constants[name].value

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the constants that are neither published nor measured."""
        return tuple(name for name, constant in self.constants.items() if constant.assumed)

    @property
    def digest(self) -> str:
        """Identity of all values: a study must not mix figures from different constants."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def with_constants(self, changed: Mapping[str, Constant]) -> "Constants":
        """Return a copy with some constants replaced."""
        return self.model_copy(update={"constants": {**self.constants, **changed}})

    def to_yaml(self) -> str:
        """Return the text of a file that ``load_constants`` accepts."""
        data: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return yaml.safe_dump(data, sort_keys=False, width=120)


def load_constants(path: Path = ATLAS_A3) -> Constants:
    """Read constants from a YAML file.

    Raises:
        SimulationError: the file is invalid; the message has file, line and the nearest key.
    """
    constants = read_document(path, Constants, SimulationError)
    if path != ATLAS_A3:
        _check_names(constants, path)
    return constants


def _check_names(constants: Constants, path: Path) -> None:
    known = load_constants().constants.keys()
    if unknown := set(constants.constants) - known:
        name = min(unknown)
        raise SimulationError(f"{path}: the cost model has no constant {name!r}{nearest(name, known)}")
    if missing := known - set(constants.constants):
        raise SimulationError(f"{path}: constant {min(missing)!r} is missing; copy it from {ATLAS_A3.name}")
    for name, constant in constants.constants.items():
        # Times may be zero; rates, sizes and core counts are divisors.
        lowest = 0.0 if constant.unit == "us" else 1e-9
        if not lowest <= constant.value < float("inf"):
            raise SimulationError(f"{path}: constant {name!r} must be finite and above zero, got {constant.value}")
