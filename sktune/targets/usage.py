"""Usage: how the plans for a target are put to use, and what was timed."""

from dataclasses import dataclass
from enum import StrEnum


class Application(StrEnum):
    """How a plan gets into what runs, without an edit of its source."""

    IN_PYTHON = "in_python"
    """``sktune.apply``, before the decode step is compiled."""
    AT_START = "at_start"
    """``sktune.launch``, by environment variables before the program's command."""


class Extent(StrEnum):
    """What took part in a decode step that was timed."""

    ONE_DEVICE = "one_device"
    ONE_HOST = "one_host"


@dataclass(frozen=True, slots=True)
class Usage:
    """How plans for a kind of target are used, and what their figures hold for.

    Attributes:
        application: how a plan gets in.
        extent: what took part in a step.
        is_own_program: whether what was timed is the program that the user runs, not a model built in its place.
    """

    application: Application = Application.IN_PYTHON
    extent: Extent = Extent.ONE_DEVICE
    is_own_program: bool = False
