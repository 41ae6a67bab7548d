"""What was learned from earlier studies, and how far it holds here."""

from sktune.reports.figure import Figure, Table
from sktune.reports.markup import EMPTY
from sktune.reports.shown import Shown


def earlier(shown: Shown) -> Figure | None:
    """Return how far each earlier study is believed; None for a search that began with nothing."""
    why, say = shown.why, shown.say
    if why is None or not why.earlier:
        return None
    rows = [
        (
            each.study,
            each.effects,
            f"{each.weight:.0%}",
            *("-" if ms is None else f"{ms:.3f}" for ms in (each.error_ms, each.spread_ms)),
        )
        for each in why.earlier
    ]
    head = (say("earlier.study"), say("earlier.effects"), say("earlier.weight"), say("earlier.error", unit=shown.ms),
            say("earlier.spread", unit=shown.ms))  # fmt: skip
    return Figure(say("earlier.title"), say("earlier.lead"), EMPTY, Table(head, rows, numeric=frozenset({1, 2, 3, 4})))
