"""Every trial with its interval, the incumbent as a step line, failures in lanes by reason, origins by shape."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from sktune.core.outcome import Reason
from sktune.reports.drawing import WIDTH, Interval, Scale, legend, picture, rows_grid, text, trials_axis
from sktune.reports.figure import Figure
from sktune.reports.markup import element, lines, number
from sktune.reports.plots import empty_plot, errors, plain
from sktune.reports.shown import Shown
from sktune.study.records import TrialRecord

LEFT, RIGHT, TOP, HEIGHT, LANE = 110.0, WIDTH - 16.0, 12.0, 280.0, 20.0
MANY = 200
"""Trials above which marks are smaller."""
OUTLIERS = 2.0
"""What lies beyond the baseline or the best by more than this many times the best gain is drawn at the edge."""


def history(shown: Shown) -> Figure | None:
    """Return the course of the search."""
    trials, say = shown.result.trials, shown.say
    if not trials:
        return None
    across = Scale(-0.5, max(record.number for record in trials) + 0.5, LEFT, RIGHT)
    up = _vertical(trials)
    failed = [reason for reason in Reason if reason is not Reason.SLOWER
              and any(record.outcome and record.outcome.reason == reason for record in trials)]  # fmt: skip
    bottom = TOP + HEIGHT + LANE * len(failed)
    drawn = [*_axes(shown, across, up, bottom), *_lanes(shown, failed)]
    size = 4.0 if len(trials) <= MANY else 3.0
    drawn += [_trial(shown, record, across, up, failed, size) for record in trials]
    incumbents = _incumbents(trials)
    if incumbents:
        steps = (f"H{number(across(trial))}V{number(up(ratio))}" for trial, ratio in incumbents)
        drawn.append(element("path", d=f"M{number(LEFT)} {number(up(1.0))}{''.join(steps)}", class_="incumbent"))
    settled = settled_after(shown)
    if settled is not None:
        x = across(settled)
        drawn += [
            element("line", x1=x, x2=x, y1=TOP, y2=TOP + HEIGHT, class_="settled"),
            text(x + 4, TOP + 10, say("history.settled", trial=settled), "small"),
        ]
    keys, used = legend(_legend(shown), LEFT, bottom + 46)
    lead = say("history.lead", trials=len(trials))
    if settled is not None:
        lead += " " + say("history.settled_lead", trial=settled)
    described = say("history.described", trials=len(trials), best=f"{incumbents[-1][1]:.3f}" if incumbents else "-")
    body = picture("history-picture", say("history.title"), described, bottom + 46 + used, *drawn, keys)
    return Figure(say("history.title"), lead, body, plot=lambda: _plot(shown))


def _plot(shown: Shown) -> Any:
    """Return the same with plotly: a series for each outcome, and the incumbent."""
    trials, say = shown.result.trials, shown.say
    plot = empty_plot(shown, say("history.title"), say("trial"), shown.speedup)
    series: dict[str, list[Interval]] = {}
    for record in trials:
        if record.outcome and (speedup := record.outcome.speedup):
            row = Interval(shown.named(record), speedup.ratio, *speedup.bounds, trial=record.number)
            series.setdefault(shown.ended(record.outcome), []).append(row)
    for name, rows in series.items():
        plot.add_scatter(
            x=[row.trial for row in rows], y=[row.value for row in rows], mode="markers", error_y=errors(rows),
            text=[plain(row.name) for row in rows], hovertemplate="%{text}<br>%{y:.3f}x", name=name,
        )  # fmt: skip
    steps = [(trials[0].number, 1.0), *(_incumbents(trials) or [(trials[-1].number, 1.0)])]
    x, y = zip(*steps, strict=True)
    return plot.add_scatter(x=x, y=y, mode="lines", line={"shape": "hv"}, name=say("history.incumbent"),
                            hoverinfo="skip")  # fmt: skip


def shape_of(shown: Shown, record: TrialRecord) -> str:
    """Return the shape of a trial's mark: what proposed it."""
    if record.is_probe:
        return "probe"
    return "sampler" if record.is_repeat or record.origin in shown.samplers or ":" in record.origin else "start"


def mark(shape: str, x: float, y: float, look: str, size: float = 4.0) -> Markup:
    """Return a trial's mark: a dot for a sampler, a diamond for a starting point, a square for a probe."""
    if shape == "sampler":
        return element("circle", cx=x, cy=y, r=size, class_=look)
    if shape == "probe":
        return element("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_=look)
    points = ((x, y - 1.4 * size), (x + 1.4 * size, y), (x, y + 1.4 * size), (x - 1.4 * size, y))
    return element("path", d=lines(points) + "z", class_=look)


def settled_after(shown: Shown) -> int | None:
    """Return the first incumbent that no later trial was significantly better than; None without a gain."""
    incumbents = _incumbents(shown.result.trials)
    if not incumbents:
        return None
    floor = shown.result.facts.noise_floor if shown.result.facts.floor_looks else 0.0
    outcomes = {number: shown.records[number].outcome for number, _ in incumbents}
    bounds = {number: outcome.speedup.bounds if outcome and outcome.speedup else (1.0, 1.0)
              for number, outcome in outcomes.items()}  # fmt: skip
    best = max(incumbents[:-1], key=lambda incumbent: incumbent[1])[0]
    return next(number for number, _ in incumbents if bounds[number][1] * (1 + floor) >= bounds[best][0])


def _incumbents(trials: Sequence[TrialRecord]) -> list[tuple[int, float]]:
    """Return each trial that became the incumbent, with its speedup, and the last trial."""
    best, found = 1.0, []
    for record in trials:
        outcome = record.outcome
        if record.may_win and outcome and outcome.speedup and outcome.speedup.ratio > best:
            best = outcome.speedup.ratio
            found.append((record.number, best))
    return [*found, (trials[-1].number, best)] if found else []


def _vertical(trials: Sequence[TrialRecord]) -> Scale:
    speedups = [record.outcome.speedup for record in trials if record.outcome and record.outcome.speedup]
    best = max([1.0, *(speedup.ratio for speedup in speedups)])
    room = OUTLIERS * max(best - 1.0, 0.01)
    bounds = (bound for speedup in speedups for bound in (*speedup.bounds, speedup.ratio))
    shown = [bound for bound in bounds if 1.0 - room <= bound <= best + room]
    return Scale.around([1.0, *shown], TOP + HEIGHT, TOP)


def _axes(shown: Shown, across: Scale, up: Scale, bottom: float) -> list[Markup]:
    drawn = rows_grid(up, LEFT, RIGHT, "×")
    drawn.append(element("line", x1=LEFT, x2=RIGHT, y1=up(1.0), y2=up(1.0), class_="neutral"))
    if floor := shown.result.facts.noise_floor if shown.result.facts.floor_looks else 0.0:
        top, low = up(1 + floor), up(1 - floor)
        drawn.append(element("rect", x=LEFT, y=top, width=RIGHT - LEFT, height=low - top, class_="band"))
    return [*drawn, *trials_axis(across, bottom, shown.say("trial"))]


def _lanes(shown: Shown, failed: Sequence[Reason]) -> list[Markup]:
    drawn = []
    for index, reason in enumerate(failed):
        y = TOP + HEIGHT + LANE * (index + 0.5)
        drawn += [
            element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"),
            text(LEFT - 8, y + 4, shown.say(f"outcome.{reason}"), "small", "end"),
        ]
    return drawn


def _trial(
    shown: Shown, record: TrialRecord, across: Scale, up: Scale, failed: Sequence[Reason], size: float
) -> Markup:
    outcome, x = record.outcome, across(record.number)
    assert outcome is not None
    look, shape = f"t {outcome.reason or 'complete'}", shape_of(shown, record)
    if outcome.reason in failed:
        y = TOP + HEIGHT + LANE * (failed.index(outcome.reason) + 0.5)
        return element("g", mark(shape, x, y, look, size), data_t=record.number)
    if outcome.speedup is None:
        return element("g", mark(shape, x, TOP + HEIGHT, look), data_t=record.number)
    low, high = outcome.speedup.bounds
    y = up(outcome.speedup.ratio)
    whisker = element("path", d=f"M{number(x)} {number(up(low))}V{number(up(high))}") if low < high else None
    return element("g", whisker, mark(shape, x, y, look, size), data_t=record.number)


def _legend(shown: Shown) -> list[tuple[Markup, str]]:
    say = shown.say
    shapes = dict.fromkeys(shape_of(shown, record) for record in shown.result.trials)
    entries = [(mark(shape, 0, 0, "t complete"), say(f"history.{shape}")) for shape in shapes]
    entries.append((element("path", d="M-6 3H0V-3H6", class_="incumbent"), say("history.incumbent")))
    if any(record.outcome and record.outcome.reason is Reason.SLOWER for record in shown.result.trials):
        entries.append((mark("sampler", 0, 0, "t slower"), say("history.slower")))
    return entries
