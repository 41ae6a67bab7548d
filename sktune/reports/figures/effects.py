"""What units, borders and options save, each with its interval."""

from collections.abc import Sequence

from sktune.core.events.studies import Effect
from sktune.core.plan import options_text
from sktune.reports.drawing import Interval, intervals, picture
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element, joined
from sktune.reports.plots import interval_plot
from sktune.reports.shown import Shown

MAX_ROWS = 24
"""Effects drawn of each sort, the largest ones; the table has all."""


def effects(shown: Shown) -> Figure | None:
    """Return the effects that the study has learned; of options that every plan has, nothing can be told."""
    why, say = shown.why, shown.say
    if why is None:
        return None
    common = {options_text((option,)) for option in shown.common_options}
    options = [effect for effect in why.options if effect.name not in common]
    sorts = {say(f"effects.{key}"): (key, by_size(found)) for key, found in
             (("units", why.units), ("borders", why.borders), ("options", options)) if found}  # fmt: skip
    drawn = {title: _largest(shown, found) for title, (_, found) in sorts.items()}
    label = say("effects.saves", unit=shown.ms)
    pictures = []
    for title, (key, found) in sorts.items():
        content, height = intervals(drawn[title], label, 3, 0.0)
        described = "; ".join(f"{row.name}: {row.value:.4f}" for row in drawn[title])
        pictures += [element("h3", title), picture(f"effects-{key}", title, described, height, content)]
        if left_out := len(found) - len(drawn[title]):
            pictures.append(element("p", say("effects.more", count=left_out), class_="note"))
    rows = [
        (title, effect.name, f"{effect.saving_ms:.4f}", "{:.4f} – {:.4f}".format(*effect.ci95), effect.trials)
        for title, (_, found) in sorts.items()
        for effect in found
    ]
    table = Table((say("effects.sort"), "", label, say("interval"), say("trials")), rows, numeric=frozenset({2, 4}))
    lead = say("effects.lead")
    if why.model_misfit > 5:
        lead += " " + say("effects.misfit", times=f"{why.model_misfit:.1f}")
    title = say("effects.title")
    return Figure(title, lead, joined(pictures), table, plot=lambda: interval_plot(shown, title, label, drawn))


def by_size(effects: Sequence[Effect]) -> list[Effect]:
    """Return effects by decreasing saving, by the printed digits: the last bits depend on the processor."""
    return sorted(effects, key=lambda effect: (-round(effect.saving_ms, 4), effect.name))


def _largest(shown: Shown, effects: Sequence[Effect]) -> list[Interval]:
    """Return a row for each of the largest effects, in their order."""
    largest = sorted(effects, key=lambda effect: -abs(effect.saving_ms))[:MAX_ROWS]
    return [
        Interval(shown.say("effects.tried", name=effect.name, trials=effect.trials), effect.saving_ms, *effect.ci95,
                 look="point" if effect.trials else "point untried")
        for effect in effects
        if effect in largest
    ]  # fmt: skip
