"""Terminal output of findings: what a search needs, and whether it is there."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from sktune.backends.info import Finding, State


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return a row for each finding, and in yellow what is not good."""
    table = Table("backend", "what", "state", "found", "how to get it")
    for finding in findings:
        style = None if finding.state is State.OK else "yellow"
        table.add_row(
            *map(escape, (finding.backend, finding.what, finding.state, finding.found, finding.fix)), style=style
        )
    return table
