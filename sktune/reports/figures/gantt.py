"""Where the time went: every stage of every trial, by worker."""

from itertools import groupby

from markupsafe import Markup

from sktune.reports.drawing import WIDTH, Scale, legend, picture, text
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element, number
from sktune.reports.shown import Shown
from sktune.reports.time_spent import FINAL_STAGES, OTHER, STAGES, Stretch, stretches, totals

LEFT, RIGHT, TOP, LANE = 150.0, WIDTH - 16.0, 8.0, 30.0
MIN_WIDTH = 0.4
"""Of a stage, in pixels; shorter ones are drawn as part of the trial's longest."""
MAX_NAME = 20


def gantt(shown: Shown) -> Figure | None:
    """Return the stages of all trials on one time axis."""
    found, say = stretches(shown.result), shown.say
    if not found:
        return None
    workers = list(dict.fromkeys(each.worker for each in found))
    scale = Scale(0.0, max(each.end_s for each in found) or 1.0, LEFT, RIGHT)
    unit_s, unit = next(
        (s, name) for s, name in ((3600.0, "h"), (60.0, "min"), (1.0, "s")) if scale.high >= 3 * s or s == 1
    )
    in_units = Scale(0.0, scale.high / unit_s, LEFT, RIGHT)
    bottom = TOP + LANE * len(workers)
    drawn: list[Markup] = []
    for tick, label in in_units.ticks(8):
        x = in_units(tick)
        drawn += [
            element("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="grid"),
            text(x, bottom + 16, f"{label} {unit}", "small", "middle"),
        ]
    for index, worker in enumerate(workers):
        name = worker or say("gantt.worker")  # the number of its die is at the end
        name = name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}"
        drawn.append(text(LEFT - 8, TOP + LANE * index + 18, name, "small", "end"))
    for trial, run in groupby(found, key=lambda each: each.trial):
        parts = list(run)
        y = TOP + LANE * workers.index(parts[0].worker) + 4
        drawn.append(element("g", *_bars(parts, scale, y), data_t=trial))
    stages = [stage for stage in (*STAGES, OTHER, *FINAL_STAGES) if any(each.stage == stage for each in found)]
    entries = [(element("rect", x=-6, y=-6, width=12, height=12, class_=f"st {stage}"), say(f"stage.{stage}"))
               for stage in stages]  # fmt: skip
    keys, used = legend(entries, LEFT, bottom + 38)
    spent = totals(shown.result)
    whole = sum(spent.values()) or 1.0
    parts_text = ", ".join(f"{say(f'stage.{stage}')} {spent[stage] / whole:.0%}" for stage in stages)
    rows = [(say(f"stage.{stage}"), f"{spent[stage]:,.1f}", f"{spent[stage] / whole:.1%}") for stage in stages]
    table = Table((say("gantt.stage"), say("gantt.seconds"), say("gantt.share")), rows, numeric=frozenset({1, 2}))
    lead = say("gantt.lead", parts=parts_text, seconds=f"{whole:,.0f}")
    drawing = picture("time-picture", say("gantt.title"), parts_text, bottom + 38 + used, *drawn, keys)
    return Figure(say("gantt.title"), lead, drawing, table)


def _bars(parts: list[Stretch], scale: Scale, y: float) -> list[Markup]:
    wide = [each for each in parts if scale(each.end_s) - scale(each.begin_s) >= MIN_WIDTH]
    if len(wide) < len(parts):
        longest = max(parts, key=lambda each: each.end_s - each.begin_s)
        if longest not in wide or scale(parts[-1].end_s) - scale(parts[0].begin_s) < 3 * MIN_WIDTH:
            return [_bar(longest.stage, scale(parts[0].begin_s), scale(parts[-1].end_s), y)]
    return [_bar(each.stage, scale(each.begin_s), scale(each.end_s), y) for each in wide]


def _bar(stage: str, left: float, right: float, y: float) -> Markup:
    width = max(MIN_WIDTH, right - left)
    return element(
        "path", d=f"M{number(left)} {number(y)}h{width:.2f}v{LANE - 8:.0f}h-{width:.2f}z", class_=f"st {stage}"
    )
