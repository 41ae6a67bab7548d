"""The winner as a strip over all units of the step, the runners-up beneath it, and what the scopes became."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from markupsafe import Markup

from sktune.core.layout import Layout
from sktune.core.plan import Options, options_text
from sktune.core.printable import shortened
from sktune.reports.drawing import WIDTH, Scale, legend, picture, text
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import EMPTY, element, joined, number
from sktune.reports.plan_names import kind_of
from sktune.reports.plan_picture import option_letters, plan_picture
from sktune.reports.shown import Shown
from sktune.study.records import TrialRecord

LEFT, RIGHT = 8.0, WIDTH - 8.0
LANE, ROW, BECAME = 14.0, 46.0, 14.0
MIN_MARK = 22.0
"""Width from which a scope has room for its mark, in pixels."""
MAX_NAME = 110


def plans(shown: Shown) -> Figure | None:
    """Return the strip of the best plans."""
    layout, say = shown.layout, shown.say
    if layout is None or not layout.units or not shown.best:
        return None
    marks = option_letters([record.judged_plan for record in shown.best])
    scale = Scale(0, len(layout.units), LEFT, RIGHT)
    units, y = _units(shown, layout, scale)
    rows = []
    for record in shown.best:
        rows.append(_row(shown, record, layout, scale, y, marks))
        y += ROW
        if record is shown.best[0] and (fused := _fused(record, layout, scale, y - 8)):
            rows.append(fused)
            y += BECAME
    keys, used = legend(_legend(shown, marks), LEFT, y + 10)
    described = "; ".join(map(shown.named, shown.best))
    drawn = picture("plans-picture", say("plans.title"), described, y + used + 6, units, *rows, keys)
    winner = shown.best[0]
    detail = element("figure", Markup(plan_picture(winner.judged_plan, layout, say)))  # noqa: S704 - it escapes
    fusion = _became(winner, shown)
    lead = say("plans.lead" if shown.result.winner else "plans.lead_so_far", plans=len(shown.best))
    body = joined((drawn, fusion, element("h3", say("plans.detail")), detail))
    return Figure(say("plans.title"), lead, body, _table(shown, winner, layout))


def _units(shown: Shown, layout: Layout, scale: Scale) -> tuple[Markup, float]:
    """Return the strip of units, one lane for each stream, with the layers' numbers, and where it ends."""
    places = list(dict.fromkeys(unit.place for unit in layout.units)) or [""]
    kinds = list(dict.fromkeys(kind_of(index, layout) for index in range(len(layout.units))))
    drawn = []
    for index, kind in enumerate(kinds):
        spans = [
            (first, last, places.index(place)) for first, last, (of_kind, place, _) in _runs(layout) if of_kind == kind
        ]
        path = "".join(_box(scale(first) + 0.4, scale(last + 1) - 0.4, 22 + LANE * lane, LANE - 2)
                       for first, last, lane in spans)  # fmt: skip
        look = "outside" if kind == "step" else f"s{index % 8 + 1}"
        drawn.append(element("path", element("title", kind), d=path, class_=look))
    below = 22 + LANE * len(places)
    drawn += _layer_numbers(layout, scale, below + 10)
    named = [(kind, "outside" if kind == "step" else f"s{index % 8 + 1}") for index, kind in enumerate(kinds)]
    entries = [
        (element("rect", x=-6, y=-6, width=12, height=12, class_=look),
         shown.say("plans.outside") if kind == "step" else shown.say("plans.kind", kind=shortened(kind, 40)))
        for kind, look in named
    ]  # fmt: skip
    if len(places) > 1:
        streams = (shortened(place or shown.say("plans.main_stream"), 40) for place in places)
        entries += [(EMPTY, shown.say("plans.lane", row=lane, stream=name)) for lane, name in enumerate(streams, 1)]
    keys, _ = legend(entries, LEFT, 8)
    return joined((keys, *drawn)), below + 22


def _runs(layout: Layout) -> Iterator[tuple[int, int, tuple[str, str, int | None]]]:
    """Yield first and last position of each layer's part on one stream, with kind, stream and layer."""
    looks = ((kind_of(index, layout), unit.place, unit.layer) for index, unit in enumerate(layout.units))
    at = 0
    for look, run in groupby(looks):
        length = sum(1 for _ in run)
        yield at, at + length - 1, look
        at += length


def _layer_numbers(layout: Layout, scale: Scale, y: float) -> list[Markup]:
    """Return the numbers of as many layers as have room."""
    firsts: dict[int, int] = {}
    for index, unit in enumerate(layout.units):
        if unit.layer is not None:
            firsts.setdefault(unit.layer, index)
    every = max(1, -(-len(firsts) * 34 // int(RIGHT - LEFT)))
    return [text(scale(first), y, layer, "small") for layer, first in firsts.items() if layer % every == 0]


def _row(
    shown: Shown, record: TrialRecord, layout: Layout, scale: Scale, y: float, marks: Mapping[Options, str]
) -> Markup:
    """Return one plan: its name, and a bar for each scope."""
    plan, position = record.judged_plan, {unit.name: index for index, unit in enumerate(layout.units)}
    speedup = shown.speedup_of(record)
    where = "" if shown.is_finalist(record) or not shown.result.final else shown.say("plans.in_its_trial")
    figure = f"{speedup.ratio:.3f}×{where} · " if speedup else ""
    drawn = [
        text(LEFT, y + 12, figure + shortened(shown.named(record), MAX_NAME)),
        element("line", x1=LEFT, x2=RIGHT, y1=y + 26, y2=y + 26, class_="axis"),
    ]
    of_mark: dict[str, list[str]] = {}
    for scope in plan.scopes:
        left, right = scale(position[scope.first]) + 0.5, scale(position[scope.last] + 1) - 0.5
        of_mark.setdefault(marks[scope.options], []).append(_box(left, right, y + 18, 16))
        if right - left >= MIN_MARK:
            drawn.append(text((left + right) / 2, y + 30, marks[scope.options], "mark", "middle"))
    bars = (
        element("path", d="".join(boxes), class_=f"bar b{list(marks.values()).index(mark) % 5 + 1}")
        for mark, boxes in of_mark.items()
    )
    return element("g", *drawn[:2], *bars, *drawn[2:], data_t=record.number)


def _box(left: float, right: float, top: float, height: float) -> str:
    return f"M{number(left)} {number(top)}H{number(max(right, left + 0.6))}v{number(height)}H{number(left)}z"


def _legend(shown: Shown, marks: Mapping[Options, str]) -> list[tuple[Markup, str]]:
    outcome = shown.best[0].outcome
    parts = [part for scope in (outcome.fused if outcome else ()) for part in scope.parts]
    looks = dict.fromkeys("superkernel" if part.superkernel else "alone" for part in parts)
    became = [(element("rect", x=-6, y=-4, width=14, height=9, class_=f"f {look}"), shown.say(f"plans.{look}"))
              for look in looks]  # fmt: skip
    return became + [
        (joined((element("rect", x=-6, y=-7, width=14, height=14, rx=3, class_=f"bar b{index % 5 + 1}"),
                 text(1, 4, mark, "mark", "middle"))), shortened(options_text(options), 120) or shown.say("no_options"))
        for index, (options, mark) in enumerate(marks.items())
    ]  # fmt: skip


def _fused(record: TrialRecord, layout: Layout, scale: Scale, y: float) -> Markup | None:
    """Return what the compiler made of each scope: SuperKernels, and between them kernels of their own."""
    position = {unit.name: index for index, unit in enumerate(layout.units)}
    places = {scope.label: (position[scope.first], position[scope.last] + 1) for scope in record.judged_plan.scopes}
    fused, alone = list[str](), list[str]()
    for scope in record.outcome.fused if record.outcome else ():
        whole = sum(part.operators for part in scope.parts)
        for first, end in (places[label] for label in scope.labels if label in places):
            reached = 0
            for part in scope.parts:
                inside = Scale(0, whole, scale(first) + 0.5, scale(end) - 0.5)
                box = _box(inside(reached) + 0.2, inside(reached + part.operators) - 0.2, y, 9)
                (fused if part.superkernel else alone).append(box)
                reached += part.operators
    if not fused and not alone:
        return None
    paths = (("f superkernel", fused), ("f alone", alone))
    return element("g", *(element("path", d="".join(boxes), class_=look) for look, boxes in paths if boxes))


def _became(record: TrialRecord, shown: Shown) -> Markup | None:
    """Return what became of the scopes, as far as the compiler reports it."""
    lines = record.outcome.fusion if record.outcome else ()
    if not lines:
        return None
    fused = record.outcome.fused if record.outcome else ()
    parts = [part for scope in fused for part in scope.parts * len(scope.labels)]
    alone = sum(part.operators for part in parts if not part.superkernel)
    counts = shown.say("plans.counts", operators=sum(part.operators for part in parts), alone=alone,
                       superkernels=sum(bool(part.superkernel) for part in parts))  # fmt: skip
    items = element("ul", *(element("li", line.strip()) for line in lines))
    title = element("summary", shown.say("plans.became", scopes=len(record.judged_plan.scopes)))
    details = element("details", title, items, class_="became", data_keep="became")
    return joined((element("p", counts, class_="note") if parts else None, details))


def _table(shown: Shown, record: TrialRecord, layout: Layout) -> Table:
    say = shown.say
    position = {unit.name: index for index, unit in enumerate(layout.units)}
    times = {(piece.first, piece.last): piece for piece in (record.outcome.scope_times if record.outcome else ())}
    rows = []
    for index, scope in enumerate(record.judged_plan.scopes, 1):
        piece = times.get((scope.first, scope.last))
        count = position[scope.last] - position[scope.first] + 1
        saved = f"{piece.baseline_ms - piece.latency_ms:.4f}" if piece else ""
        rows.append((index, scope.first, scope.last, count, options_text(scope.options) or "-", saved))
    head = ("#", say("first_unit"), say("last_unit"), say("units"), say("options"), say("plans.saved"))
    return Table(head, rows, numeric=frozenset({0, 3, 5}))
