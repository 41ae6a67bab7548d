"""Usage: how plans for a target are applied, and what was timed."""

from dataclasses import dataclass
from enum import StrEnum


class Application(StrEnum):
    """How a plan is applied without an edit of the source."""

    IN_PYTHON = "in_python"
    """``sktune.apply``, before the decode step is compiled."""
    AT_START = "at_start"
    """``sktune.launch``, by environment variables in front of the program's command."""


class Extent(StrEnum):
    """The devices that took part in a timed decode step."""

    ONE_DEVICE = "one_device"
    ONE_HOST = "one_host"


@dataclass(frozen=True, slots=True)
class Usage:
    """How plans for a kind of target are applied, and what their figures are valid for.

    Attributes:
        application: how a plan is applied.
        extent: the devices that took part in a step.
        is_own_program: whether the user's program was timed, not a model that sktune built.
    """

    application: Application = Application.IN_PYTHON
    extent: Extent = Extent.ONE_DEVICE
    is_own_program: bool = False
