"""What units, borders and options save, each with its interval."""

from collections.abc import Sequence

from markupsafe import Markup

from sktune.core.events.studies import Effect
from sktune.core.plan import options_text
from sktune.reports.page.intervals import Interval, intervals
from sktune.reports.page.markup import element, joined
from sktune.reports.page.section import Section, Table, picture
from sktune.reports.page.shown import Shown

MAX_ROWS = 24
"""Effects drawn of each sort, the largest ones; the table has all."""


def effects(shown: Shown) -> Section | None:
    """Return the effects that the study has learned."""
    why, say = shown.why, shown.say
    if why is None:
        return None
    found = (("units", why.units), ("borders", why.borders), ("options", _varied(shown, why.options)))
    sorts = [(key, by_size(each)) for key, each in found if each]
    drawn = [_of_sort(shown, key, each) for key, each in sorts]
    rows = [
        (say(f"effects.{key}"), effect.name, f"{effect.saving_ms:.4f}", "{:.4f} – {:.4f}".format(*effect.ci95),
         effect.trials)
        for key, each in sorts
        for effect in each
    ]  # fmt: skip
    head = (say("effects.sort"), "", say("effects.saves", unit=_unit(shown)), say("interval"), say("trials"))
    lead = say("effects.lead")
    if why.model_misfit > 5:
        lead += " " + say("effects.misfit", times=f"{why.model_misfit:.1f}")
    return Section("effects", say("effects.title"), lead, joined(drawn), Table(head, rows, numeric=frozenset({2, 4})))


def _varied(shown: Shown, options: Sequence[Effect]) -> list[Effect]:
    """Return the options that not every plan had: of the others, nothing can be told."""
    common = {options_text((option,)) for option in shown.common_options}
    return [effect for effect in options if effect.name not in common]


def by_size(effects: Sequence[Effect]) -> list[Effect]:
    """Return effects by decreasing saving, by the printed digits: the last bits depend on the processor."""
    return sorted(effects, key=lambda effect: (-round(effect.saving_ms, 4), effect.name))


def _of_sort(shown: Shown, key: str, sorted_effects: Sequence[Effect]) -> Markup:
    say = shown.say
    largest = sorted(sorted_effects, key=lambda effect: -abs(effect.saving_ms))[:MAX_ROWS]
    rows = [
        Interval(say("effects.tried", name=effect.name, trials=effect.trials), effect.saving_ms, *effect.ci95,
                 look="point" if effect.trials else "point untried")
        for effect in sorted_effects
        if effect in largest
    ]  # fmt: skip
    content, height = intervals(rows, say("effects.saves", unit=_unit(shown)), 3, 0.0)
    described = "; ".join(f"{row.name}: {row.value:.4f}" for row in rows)
    title = say(f"effects.{key}")
    drawn = picture(f"effects-{key}", title, described, height, content)
    left_out = len(sorted_effects) - len(rows)
    more = element("p", say("effects.more", count=left_out), class_="note") if left_out else None
    return joined((element("h3", title), drawn, more))


def _unit(shown: Shown) -> str:
    return shown.say("simulated_ms" if shown.result.is_simulated else "ms")
