"""The final comparison as a forest plot: finalists and references, the noise floor as a band, processes as dots."""

from math import expm1
from typing import Any

from sktune.core.outcome import BASELINE, FinalRow
from sktune.reports.drawing import Interval, intervals, picture
from sktune.reports.figure import Figure, Table
from sktune.reports.plan_names import REFERENCES
from sktune.reports.plots import interval_plot
from sktune.reports.shown import Shown

MIN_BIAS = 0.0005
"""Log ratio from which the correction of the winner's figure can be seen."""


def final(shown: Shown) -> Figure | None:
    """Return the final comparison."""
    result, say = shown.result, shown.say
    comparison = result.comparison
    if comparison is None:
        return None
    rows = [interval for row in result.final if (interval := _interval(shown, row))]
    floor = 0.0 if result.is_simulated else comparison.noise_floor
    content, height = intervals(rows, shown.speedup, 3, 1.0, floor, "×")
    described = "; ".join(f"{row.name}: {row.value:.3f}" for row in rows)
    drawn = picture("final-picture", say("final.title"), described, height, content)
    if result.is_simulated:
        lead = say("final.lead_simulated")
    else:
        lead = say("final.lead", processes=result.processes, floor=f"{floor:.2%}")
        if comparison.dies:
            lead += " " + say("final.dies", dies=", ".join(comparison.dies))
        if result.winner and result.verdict and result.verdict.selection_bias > MIN_BIAS:
            lead += " " + say("final.bias", bias=f"{expm1(result.verdict.selection_bias):.1%}")

    def plot() -> Any:
        plotted = interval_plot(shown, say("final.title"), shown.speedup, {"": rows}).update_traces(showlegend=False)
        return plotted.add_vrect(1 - floor, 1 + floor, fillcolor="gray", opacity=0.25, line_width=0)

    return Figure(say("final.title"), lead, drawn, _table(shown), plot=plot)


def _name(shown: Shown, row: FinalRow) -> str:
    if row.name.isdigit() and int(row.name) in shown.records:
        return shown.named(shown.records[int(row.name)])
    return shown.say(REFERENCES[row.name]) if row.name in REFERENCES else row.name


def _interval(shown: Shown, row: FinalRow) -> Interval | None:
    speedup = shown.result.final_speedup(row)
    if speedup is None:
        return None
    assert shown.result.comparison is not None
    low, high = speedup.ci95 if speedup.ci95 and row.name != BASELINE else (None, None)
    processes = shown.result.comparison.speedups.get(row.name, ())
    dots = tuple(each.ratio for each in processes) if len(processes) > 1 and row.name != BASELINE else ()
    number = int(row.name) if row.name.isdigit() else None
    winner = shown.result.winner
    look = "point winner" if winner and number == winner.number else "point" if row.name.isdigit() else "point ref"
    return Interval(_name(shown, row), speedup.ratio, low, high, dots, number, look)


def _table(shown: Shown) -> Table:
    result, say = shown.result, shown.say
    comparison = result.comparison
    assert comparison is not None
    rows, trials = [], []
    for row in result.final:
        speedup = result.final_speedup(row)
        processes = comparison.speedups.get(row.name, ())
        each = ", ".join(f"{one.ratio:.3f}" for one in processes) if len(processes) > 1 else ""
        figures = (f"{speedup.latency_ms:.3f}", f"{speedup.ratio:.3f}") if speedup else ("-", "-")
        rows.append((_name(shown, row), *figures, shown.interval(speedup), each, row.verdict))
        trials.append(int(row.name) if row.name.isdigit() else None)
    head = ("", say("ms_per_step"), say("speedup"), say("interval"), say("final.by_process"), say("bits"))
    return Table(head, rows, trials, frozenset({1, 2}))
