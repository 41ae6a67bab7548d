"""The step's timeline before and after, where profiles are known: every kernel by stream, gaps and SuperKernels."""

import pandas as pd
from markupsafe import Markup

from sktune.core.printable import shortened
from sktune.profiling.analysis import Profile
from sktune.profiling.structure import main_stream
from sktune.profiling.tables import headline
from sktune.reports.drawing import WIDTH, Scale, legend, picture, text
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element, joined, number
from sktune.reports.shown import Shown

LEFT, RIGHT, LANE, STEP_GAP = 120.0, WIDTH - 12.0, 22.0, 44.0
MAX_STREAMS = 8


def steps(shown: Shown) -> Figure:
    """Return the profiled steps, one below the other on the same time axis."""
    say = shown.say
    kernels = [_kernels(profile) for profile in shown.profiles]
    longest = max(float((rows["start_us"] + rows["duration_us"]).max()) for rows in kernels)
    scale = Scale(0.0, longest / 1e3, LEFT, RIGHT)
    drawn: list[Markup] = []
    y = 20.0
    for index, rows in enumerate(kernels):
        name = say("steps.before" if index == 0 else "steps.after")
        drawn.append(text(LEFT, y - 6, f"{name}: {shortened(headline(shown.profiles[index]), 120)}"))
        part, used = _step(rows, scale, y)
        drawn.append(part)
        y += used + STEP_GAP
    y -= STEP_GAP - 6
    drawn += [text(scale(tick), y + 12, f"{label} ms", "small", "middle") for tick, label in scale.ticks(8)]
    looks = ("superkernel", "communication", "kernel", "gap")
    entries = [(element("rect", x=-6, y=-6, width=12, height=12, class_=f"k {look}"), say(f"steps.{look}"))
               for look in looks]  # fmt: skip
    keys, used = legend(entries, LEFT, y + 34)
    described = "; ".join(headline(profile) for profile in shown.profiles)
    drawing = picture("steps-picture", say("steps.title"), described, y + 34 + used, *drawn, keys)
    return Figure(say("steps.title"), say("steps.lead"), drawing, _table(shown))


def _kernels(profile: Profile) -> pd.DataFrame:
    rows = profile.kernels[profile.kernels["step"] == profile.shown_step]
    return rows.assign(start_us=rows["start_us"] - rows["start_us"].iloc[0])


def _step(rows: pd.DataFrame, scale: Scale, y: float) -> tuple[Markup, float]:
    """Return one step's lanes: kernels of a look are one path, to keep the page small."""
    first = main_stream(rows)
    streams = sorted(rows["stream"].unique(), key=lambda stream: (stream != first, stream))[:MAX_STREAMS]
    boxes: dict[str, list[str]] = {"gap": [], "kernel": [], "communication": [], "superkernel": []}
    labels = []
    for index, stream in enumerate(streams):
        top = y + LANE * index
        labels.append(text(LEFT - 8, top + 14, f"stream {stream}", "small", "end"))
        of_stream = rows[rows["stream"] == stream]
        table = zip(of_stream["start_us"], of_stream["duration_us"], of_stream["idle_us"], of_stream["is_superkernel"],
                    of_stream["is_communication"], strict=True)  # fmt: skip
        for start, duration, idle, is_superkernel, is_communication in table:
            look = "superkernel" if is_superkernel else "communication" if is_communication else "kernel"
            boxes[look].append(_box(scale, start, duration, top))
            if idle > 0 and index == 0:
                boxes["gap"].append(_box(scale, start - idle, idle, top))
    paths = (element("path", d="".join(each), class_=f"k {look}") for look, each in boxes.items() if each)
    return joined((*labels, *paths)), LANE * len(streams)


def _box(scale: Scale, start_us: float, duration_us: float, top: float) -> str:
    left, right = scale(start_us / 1e3), scale((start_us + duration_us) / 1e3)
    return (
        f"M{number(left)} {number(top + 3)}h{max(0.2, right - left - 0.1):.1f}v16h-{max(0.2, right - left - 0.1):.1f}z"
    )


def _table(shown: Shown) -> Table:
    say = shown.say
    names = ("step_ms", "compute_ms", "exposed_ms", "gap_ms", "kernels", "superkernels")
    figures = [next(each for each in profile.steps if each.number == profile.shown_step) for profile in shown.profiles]
    rows = []
    for name in names:
        values = [getattr(each, name) for each in figures]
        rows.append(
            (say(f"steps.{name}"), *(f"{value:.3f}" if isinstance(value, float) else value for value in values))
        )
    head = ("", *(say("steps.before" if index == 0 else "steps.after") for index in range(len(figures))))
    return Table(head, rows, numeric=frozenset(range(1, 1 + len(figures))))
