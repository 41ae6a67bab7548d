"""Predicted against measured: how well the model knows each plan from the other trials, and where it is wrong."""

from sktune.reports.drawing import WIDTH, Scale, picture, rows_grid, text
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element
from sktune.reports.shown import Shown

LEFT, RIGHT, TOP, HEIGHT = 90.0, WIDTH - 16.0, 12.0, 340.0
SURPRISING = 2.5
"""Standard deviations from which a plan is named as one that the model does not understand."""
MAX_SURPRISES = 12


def predicted(shown: Shown) -> Figure | None:
    """Return predictions, each made without the trial's own step latency."""
    why, say = shown.why, shown.say
    if why is None or len(why.predictions) < 3:
        return None
    by_plan = {record.plan: record for record in reversed(shown.result.trials) if not record.is_probe}
    known = [(each, by_plan[each.plan]) for each in why.predictions if each.plan in by_plan]
    across = Scale.around_most([100 * each.saving for each, _ in known], LEFT, RIGHT)
    up = Scale.around_most([100 * each.expected for each, _ in known], TOP + HEIGHT, TOP)
    bottom = TOP + HEIGHT
    drawn = rows_grid(up, LEFT, RIGHT, "%")
    drawn += [text(across(tick), bottom + 16, f"{label}%", "small", "middle") for tick, label in across.ticks(8)]
    low, high = max(across.low, up.low), min(across.high, up.high)
    if low < high:
        drawn.append(element("line", x1=across(low), x2=across(high), y1=up(low), y2=up(high), class_="neutral"))
    for each, record in known:
        look = "t mismatch" if abs(each.surprise) > SURPRISING else "t complete"
        x, y = across(100 * each.saving), up(100 * each.expected)
        drawn.append(element("circle", cx=x, cy=y, r=4, class_=look, data_t=record.number))
    drawn.append(text((LEFT + RIGHT) / 2, bottom + 34, say("predicted.measured"), "small", "middle"))
    drawn.append(element("text", say("predicted.expected"), class_="small", text_anchor="middle",
                         transform=f"translate(14 {TOP + HEIGHT / 2:.0f}) rotate(-90)"))  # fmt: skip
    surprises = sorted((each for each in known if abs(each[0].surprise) > SURPRISING),
                       key=lambda each: -abs(each[0].surprise))  # fmt: skip
    worst = max((abs(each.surprise) for each, _ in known), default=0.0)
    within = sum(abs(each.surprise) < 1.96 for each, _ in known)
    lead = say("predicted.lead", within=within, count=len(known), worst=f"{worst:.1f}")
    shown_rows = surprises or sorted(known, key=lambda each: -abs(each[0].surprise))
    rows = [
        (record.number, shown.name(record.judged_plan), shown.options(record.judged_plan) or "-",
         f"{each.saving:.3%}", f"{each.expected:.3%}", f"{each.surprise:+.1f}")
        for each, record in shown_rows[:MAX_SURPRISES]
    ]  # fmt: skip
    head = (say("trial"), say("plan"), say("options"), say("predicted.measured"), say("predicted.expected"),
            say("predicted.surprise"))  # fmt: skip
    table = Table(head, rows, [row[0] for row in rows], frozenset({0, 3, 4, 5}))
    described = say("predicted.described", count=len(known))
    drawing = picture("predicted-picture", say("predicted.title"), described, bottom + 46, *drawn)
    return Figure(say("predicted.title"), lead, drawing, table)
