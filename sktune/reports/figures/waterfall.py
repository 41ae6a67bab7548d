"""From the baseline to the winner: what each group of scopes and each option saves, and what is not explained."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sktune.core.printable import shortened
from sktune.learning.contributions import OTHERS
from sktune.reports.drawing import MAX_NAME, NAMES, ROW, WIDTH, Scale, columns_grid, picture, text
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element
from sktune.reports.shown import Shown
from sktune.study.records import TrialRecord

MAX_GROUPS = 8


@dataclass(frozen=True, slots=True)
class _Step:
    """A bar from ``start_ms`` to ``end_ms``; a total begins at the scale's low end."""

    name: str
    start_ms: float
    end_ms: float
    sd_ms: float = 0.0
    is_total: bool = False


def waterfall(shown: Shown) -> Figure | None:
    """Return the steps from the baseline's latency to the best plan's."""
    why, say = shown.why, shown.say
    record = shown.best[0] if shown.best else None
    speedup = shown.speedup_of(record) if record else None
    if why is None or record is None or speedup is None or not why.parts:
        return None
    baseline_ms = speedup.baseline_ms
    steps = _steps(shown, record, baseline_ms, baseline_ms / speedup.ratio)
    drawn = _picture(shown, steps)
    explained = sum(part.saving for part in why.parts) * baseline_ms
    saved = baseline_ms - baseline_ms / speedup.ratio
    lead = say("waterfall.lead", saved=f"{saved:.3f}", explained=f"{explained:.3f}", unit=shown.ms)
    rows = [
        (step.name, f"{step.end_ms - step.start_ms:+.4f}" if not step.is_total else "", f"{step.end_ms:.4f}",
         f"± {1.96 * step.sd_ms:.4f}" if step.sd_ms else "")
        for step in steps
    ]  # fmt: skip
    head = ("", say("waterfall.change", unit=shown.ms), say("waterfall.reached", unit=shown.ms), "95%")
    return Figure(say("waterfall.title"), lead, drawn, Table(head, rows, numeric=frozenset({1, 2, 3})))


def _steps(shown: Shown, record: TrialRecord, baseline_ms: float, latency_ms: float) -> list[_Step]:
    """Return the bars: the largest groups of scopes, the other groups as one, options, and the unexplained rest."""
    why, say = shown.why, shown.say
    assert why is not None
    groups = sorted((part for part in why.parts if part.scopes), key=lambda part: -abs(part.saving))
    named = [
        (say("waterfall.group", name=part.name, scopes=part.scopes), part.saving, part.sd)
        for part in groups[:MAX_GROUPS]
    ]
    if rest := groups[MAX_GROUPS:]:
        name = say("waterfall.other_groups", groups=len(rest), scopes=sum(part.scopes for part in rest))
        # Their errors are correlated: the sum is an upper bound.
        named.append((name, sum(part.saving for part in rest), sum(part.sd for part in rest)))
    named += [
        (say("waterfall.borders") if part.name == OTHERS else part.name, part.saving, part.sd)
        for part in why.parts
        if not part.scopes
    ]
    reached = baseline_ms
    steps = [_Step(say("waterfall.baseline"), 0.0, baseline_ms, is_total=True)]
    for name, saving, sd in named:
        steps.append(_Step(name, reached, reached - saving * baseline_ms, sd * baseline_ms))
        reached = steps[-1].end_ms
    steps.append(_Step(say("waterfall.unexplained"), reached, latency_ms))
    return [*steps, _Step(shown.named(record), 0.0, latency_ms, is_total=True)]


def _picture(shown: Shown, steps: Sequence[_Step]) -> Markup:
    moving = [value for step in steps for value in ((step.end_ms,) if step.is_total else (step.start_ms, step.end_ms))]
    scale = Scale.around(moving, NAMES, WIDTH - 90.0, 0.1)
    bottom = ROW * len(steps) + 4
    drawn = columns_grid(scale, bottom)
    for index, step in enumerate(steps):
        y = 4 + ROW * index
        left, right = sorted((scale(scale.low if step.is_total else step.start_ms), scale(step.end_ms)))
        gained = step.end_ms < step.start_ms
        look = "total" if step.is_total else "gain" if gained else "loss"
        change = f"{step.end_ms:.3f}" if step.is_total else f"{step.end_ms - step.start_ms:+.3f}"
        drawn += [
            text(NAMES - 14, y + 14, shortened(step.name, MAX_NAME), None, "end"),
            element("rect", x=left, y=y + 3, width=max(1.0, right - left), height=ROW - 8, class_=f"fall {look}"),
            text(WIDTH - 84, y + 14, change),
        ]
        if step.sd_ms:
            low, high = scale(step.end_ms - 1.96 * step.sd_ms), scale(step.end_ms + 1.96 * step.sd_ms)
            drawn.append(element("line", x1=low, x2=high, y1=y + 11, y2=y + 11, class_="whisker"))
    axis = shown.say("waterfall.axis", unit=shown.ms, low=scale.label(scale.low))
    drawn.append(text((NAMES + WIDTH - 90) / 2, bottom + 32, axis, "small", "middle"))
    described = "; ".join(f"{step.name}: {step.end_ms:.3f}" for step in steps)
    return picture("waterfall-picture", shown.say("waterfall.title"), described, bottom + 40, *drawn)
