"""What every runner gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sktune.core.layout import Layout


@dataclass(frozen=True, slots=True)
class Opened:
    """What a runner found when it opened the target.

    Attributes:
        layout: of the traced decode step.
        description: what is tuned, in one line.
        seconds: ``load`` (imports, model, prefill, trace) and ``baseline`` (import of the compiler, capture,
            compile, verify).
        facts: what else the study should remember.
        modules: digests of the files that the target's import brought in; see ``sktune.core.contents``.
    """

    layout: Layout
    description: str
    seconds: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
