"""All trials as a table."""

from sktune.core.printable import shortened
from sktune.reports.figure import Figure, Table
from sktune.reports.shown import Shown

MAX_DETAIL = 120


def trials(shown: Shown) -> Figure | None:
    """Return the table of all trials."""
    say = shown.say
    if not shown.result.trials:
        return None
    rows = []
    for record in shown.result.trials:
        outcome = record.outcome
        assert outcome is not None
        speedup = outcome.speedup
        rows.append(
            (record.number, shown.name(record.judged_plan), shown.options(record.judged_plan), shown.origin(record),
             shown.ended(outcome), f"{speedup.ratio:.3f}" if speedup else "", shown.interval(speedup),
             f"{speedup.latency_ms:.3f}" if speedup else "", shortened(outcome.detail, MAX_DETAIL))
        )  # fmt: skip
    head = (say("trial"), say("plan"), say("options"), say("origin"), say("outcome"), say("speedup"), say("interval"),
            say("ms_per_step"), say("detail"))  # fmt: skip
    table = Table(head, rows, list(shown.records), frozenset({0, 5, 7}))
    return Figure(say("trials.title"), say("trials.lead" if shown.result.final else "trials.lead_only"), table=table)
