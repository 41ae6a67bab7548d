"""Terminal output of findings: what a search needs, and whether it is there."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from sktune.core.events.commands import Finding, State


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return a row for each finding, and in yellow what is not good."""
    table = Table("backend", "what", "state")
    for name in ("found", "how to get it"):
        table.add_column(name, overflow="fold")  # a path that is cut is of no use
    for finding in findings:
        style = None if finding.state is State.OK else "yellow"
        table.add_row(
            *map(escape, (finding.backend, finding.what, finding.state, finding.found, finding.fix)), style=style
        )
    return table
