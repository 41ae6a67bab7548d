"""The figures of a study, one module each.

A figure is a function of what is shown; it returns None if there is nothing to show yet. The page has all of them, and
those with a plot are also in the Optuna dashboard and in ``sktune.visualization``.
"""

from collections.abc import Callable, Mapping

from sktune.reports.figure import Figure
from sktune.reports.figures.compared import compared
from sktune.reports.figures.earlier import earlier
from sktune.reports.figures.effects import effects
from sktune.reports.figures.failures import failures
from sktune.reports.figures.final import final
from sktune.reports.figures.gantt import gantt
from sktune.reports.figures.history import history
from sktune.reports.figures.machine import machine
from sktune.reports.figures.plans import plans
from sktune.reports.figures.predicted import predicted
from sktune.reports.figures.segments import segments
from sktune.reports.figures.terms import terms
from sktune.reports.figures.trials import trials
from sktune.reports.figures.verdict import verdict
from sktune.reports.figures.waterfall import waterfall
from sktune.reports.figures.workers import workers
from sktune.reports.shown import Shown


def _steps(shown: Shown) -> Figure | None:
    if not shown.profiles:
        return None
    from sktune.profiling.steps_picture import steps  # only profiles need this wing

    return steps(shown)


FIGURES: Mapping[str, Callable[[Shown], Figure | None]] = {
    "verdict": verdict,
    "plans": plans,
    "waterfall": waterfall,
    "final": final,
    "history": history,
    "segments": segments,
    "effects": effects,
    "earlier": earlier,
    "failures": failures,
    "predicted": predicted,
    "machine": machine,
    "workers": workers,
    "time": gantt,
    "compare": compared,
    "steps": _steps,
    "trials": trials,
    "terms": terms,
}
"""By key, in the order of the page; the key is the anchor there, and part of the name in the dashboard."""
