"""The words that the page uses, explained."""

from sktune.reports.figure import Figure
from sktune.reports.markup import element, joined
from sktune.reports.shown import Shown

TERMS = ("unit", "scope", "plan", "baseline", "speedup", "interval", "floor", "bits", "trial", "final", "tie", "origin",
         "probe", "superkernel")  # fmt: skip


def terms(shown: Shown) -> Figure | None:
    """Return the glossary."""
    if not shown.result.trials:
        return None
    say = shown.say
    entries = (joined((element("dt", say(f"term.{key}")), element("dd", say(f"term.{key}.means")))) for key in TERMS)
    return Figure(say("terms.title"), "", element("dl", *entries, class_="facts"))
