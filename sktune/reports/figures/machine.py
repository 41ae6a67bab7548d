"""The machine while it measured: drift of the baseline, looks at the noise floor, disturbed trials."""

from sktune.measure.noise_floor import drift
from sktune.reports.drawing import WIDTH, Scale, legend, picture, rows_grid, text, trials_axis
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element
from sktune.reports.shown import Shown

LEFT, RIGHT, TOP, HEIGHT, FLOOR = 110.0, WIDTH - 16.0, 28.0, 170.0, 110.0


def machine(shown: Shown) -> Figure | None:
    """Return the baseline's latency in every trial, and how far two copies of it differed."""
    result, say = shown.result, shown.say
    measured = [record for record in result.trials if record.outcome and record.outcome.speedup]
    if result.is_simulated or not measured:
        return None
    looks = result.facts.floor_looks
    numbers = [record.number for record in measured] + [look.before_trial for look in looks]
    across = Scale(-0.5, max(numbers) + 0.5, LEFT, RIGHT)
    latencies = [record.outcome.speedup.baseline_ms for record in measured if record.outcome and record.outcome.speedup]
    up = Scale.around_most(latencies, TOP + HEIGHT, TOP)
    drawn = rows_grid(up, LEFT, RIGHT, wanted=4)
    for record, latency_ms in zip(measured, latencies, strict=True):
        assert record.outcome is not None
        state = "t crashed" if record.outcome.noise else "t complete"
        mark = element("circle", cx=across(record.number), cy=up(latency_ms), r=3, class_=state)
        drawn.append(element("g", mark, data_t=record.number))
    drawn.append(text(LEFT, TOP - 12, say("machine.baseline"), "small"))
    top = TOP + HEIGHT + 26
    bottom = TOP + HEIGHT
    if looks:
        bounds = [100 * (bound - 1) for look in looks for bound in look.speedup.bounds]
        floor = Scale.around([*bounds, 0.0], top + FLOOR, top)
        drawn += rows_grid(floor, LEFT, RIGHT, "%", wanted=4)
        drawn.append(text(LEFT, top - 4, say("machine.copies"), "small"))
        for look in looks:
            x, (low, high) = across(look.before_trial - 0.5), look.speedup.bounds
            drawn += [
                element("line", x1=x, x2=x, y1=floor(100 * (low - 1)), y2=floor(100 * (high - 1)), class_="whisker"),
                element("circle", cx=x, cy=floor(100 * (look.speedup.ratio - 1)), r=4, class_="point ref"),
            ]
        bottom = top + FLOOR
    drawn += trials_axis(across, bottom, say("trial"))
    entries = [(element("circle", r=4, class_="t complete"), say("machine.quiet")),
               (element("circle", r=4, class_="t crashed"), say("machine.disturbed"))]  # fmt: skip
    keys, used = legend(entries, LEFT, bottom + 48)
    disturbed = sum(bool(record.outcome and record.outcome.noise) for record in measured)
    lead = say("machine.lead", floor=f"{result.facts.noise_floor:.2%}", looks=len(looks), disturbed=disturbed,
               trials=len(measured))  # fmt: skip
    if len(looks) > 1:
        lead += " " + say("machine.drift", drift=f"{drift(looks):+.1%}")
    rows = [
        (look.before_trial, f"{look.speedup.baseline_ms:.3f}", f"{look.speedup.ratio:.4f}",
         "{:.4f} – {:.4f}".format(*look.speedup.bounds), look.noise)
        for look in looks
    ]  # fmt: skip
    head = (say("machine.before"), say("ms_per_step"), say("machine.ratio"), say("interval"), say("machine.noise"))
    described = say("machine.described", trials=len(measured), looks=len(looks))
    drawing = picture("machine-picture", say("machine.title"), described, bottom + 48 + used, *drawn, keys)
    return Figure(say("machine.title"), lead, drawing, Table(head, rows, numeric=frozenset({0, 1, 2})))
