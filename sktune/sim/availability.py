"""What a simulation needs: nothing of this machine, and the compiler's rules, of which it does not know all."""

from collections.abc import Sequence

from sktune.ascend.not_modelled import NOT_MODELLED
from sktune.core.events.commands import Finding, State


def examine() -> Sequence[Finding]:
    """Return which of the compiler's rules the simulation does not know."""
    known = f"GE's and graph-autofusion's, but for {len(NOT_MODELLED)} parts that are not modelled"
    return [Finding("sim", "compiler rules", State.OK, known)]
