"""What becomes known while a job is done: signs of life, scopes, scores and samples."""

from collections.abc import Sequence

from sktune.core.outcome import Outcome
from sktune.measure.latency import Measurement


class Progress:
    """What becomes known while a job is done. Nobody listens, unless a subclass does."""

    def heartbeat(self) -> None:
        """Go on: called from time to time during measurements."""

    def scope(self, label: str) -> None:
        """Take the label of a scope as it is compiled or first run."""

    def scored(self, outcome: Outcome) -> None:
        """Take an outcome before its scopes are timed, which adds only ``scope_times`` and ``seconds``."""

    def measured(self, names: Sequence[str], measurement: Measurement) -> None:
        """Take the names of the contenders of a measurement, and all their samples."""
