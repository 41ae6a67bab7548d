"""Two plans side by side: scopes, options, times. Without scripts the best two; with them any two of the study."""

from markupsafe import Markup

from sktune.reports.figure import Figure
from sktune.reports.markup import element
from sktune.reports.shown import Shown
from sktune.study.records import TrialRecord


def compared(shown: Shown) -> Figure | None:
    """Return the winner beside the runner-up, and what the script needs to show others."""
    say = shown.say
    if shown.layout is None or len(shown.best) < 2:
        return None
    left, right = shown.best[:2]
    rows = [(say(f"compared.{key}"), _value(shown, left, key), _value(shown, right, key)) for key in KEYS]
    body = element(
        "table", element("thead", element("tr", element("th", ""), *(element("th", shown.named(record), scope="col")
                                                                      for record in (left, right)))),
        element("tbody", *(element("tr", element("th", name, scope="row"), element("td", one), element("td", other))
                           for name, one, other in rows)),
        class_="sides", data_left=left.number, data_right=right.number,
    )  # fmt: skip
    return Figure(say("compared.title"), say("compared.lead"), element("div", body, id="compared"))


KEYS = ("speedup", "interval", "latency", "outcome", "origin", "scopes", "options", "only")


def _value(shown: Shown, record: TrialRecord, key: str) -> object:
    speedup, plan = shown.speedup_of(record), record.judged_plan
    if key == "speedup":
        return f"{speedup.ratio:.3f}×" if speedup else "-"
    if key == "interval":
        return shown.interval(speedup) or "-"
    if key == "latency":
        return f"{speedup.baseline_ms:.3f} → {speedup.latency_ms:.3f}" if speedup else "-"
    if key == "outcome":
        return shown.ended(record.outcome) if record.outcome else "-"
    if key == "origin":
        return shown.origin(record)
    if key == "scopes":
        return len(plan.scopes)
    if key == "options":
        return shown.options(plan) or "-"
    return _only(shown, record)


def _only(shown: Shown, record: TrialRecord) -> Markup:
    """Return the scopes that the other plan does not have, the first few."""
    left, right = shown.best[:2]
    other = right if record is left else left
    theirs = {(scope.first, scope.last, scope.options) for scope in other.judged_plan.scopes}
    mine = [s for s in record.judged_plan.scopes if (s.first, s.last, s.options) not in theirs]
    listed = [element("li", scope.label) for scope in mine[:6]]
    if len(mine) > 6:
        listed.append(element("li", shown.say("compared.more", count=len(mine) - 6)))
    return element("ul", *listed) if listed else Markup("-")
