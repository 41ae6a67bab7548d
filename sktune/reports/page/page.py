"""The page as a whole: its head, the sections in order, the data and the script."""

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from sktune.core.language import Language, Sentences
from sktune.reports.page.data import page_data
from sktune.reports.page.markup import element, joined
from sktune.reports.page.pictures.compared import compared
from sktune.reports.page.pictures.effects import effects
from sktune.reports.page.pictures.failures import failures
from sktune.reports.page.pictures.forest import forest
from sktune.reports.page.pictures.gantt import gantt
from sktune.reports.page.pictures.history import history
from sktune.reports.page.pictures.machine import machine
from sktune.reports.page.pictures.plans import plans
from sktune.reports.page.pictures.predicted import predicted
from sktune.reports.page.pictures.segments import segments
from sktune.reports.page.pictures.verdict import verdict
from sktune.reports.page.pictures.waterfall import waterfall
from sktune.reports.page.section import Section
from sktune.reports.page.shown import Shown
from sktune.reports.page.terms import terms
from sktune.reports.page.trials import trials
from sktune.reports.page.workers import workers
from sktune.reports.plan_names import counted
from sktune.reports.texts import TEXTS
from sktune.reports.why import learned_from
from sktune.study.result import SearchResult

if TYPE_CHECKING:
    from sktune.profiling.analysis import Profile


def _steps(shown: Shown) -> Section | None:
    """Return the profiled steps; only they need ``profiling``."""
    if not shown.profiles:
        return None
    from sktune.profiling.steps_picture import steps

    return steps(shown)


SECTIONS: tuple[Callable[[Shown], Section | None], ...] = (
    verdict, plans, waterfall, forest, history, segments, effects, failures, predicted, machine, workers, gantt,
    compared, _steps, trials, terms,
)  # fmt: skip
"""In the order of the page."""
_FOLDER = Path(__file__).parent


@cache
def style() -> str:
    """Return the style sheet."""
    return (_FOLDER / "page.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the script."""
    return (_FOLDER / "page.js").read_text(encoding="utf-8")


@cache
def policy(connect: str = "'none'") -> str:
    """Return the content security policy: only the page's own script and style, and no network but ``connect``."""
    allowed = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def page_html(result: SearchResult, language: Language = "en", profiles: "tuple[Profile, ...]" = (), *,
              events: str | None = None) -> str:  # fmt: skip
    """Return the page of a study.

    Args:
        result: of the study.
        language: of the page.
        profiles: of the baseline's step and of the winner's, as far as they are known.
        events: address of server-sent events that say when the study has changed; None for a page that stays as it is.
    """
    say = Sentences(TEXTS, language)
    shown = Shown(result, learned_from(result), say, profiles)
    sections = [section for make in SECTIONS if (section := make(shown))]
    title = f"{result.study} – sktune"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=policy("'self'" if events else "'none'")),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(style())),  # noqa: S704 - a file of this package
    )
    main = element("main", *(_section(shown, section) for section in sections), id="main")
    body = element(
        "body",
        element("header", element("h1", result.study), element("p", result.facts.description, class_="model"),
                _navigation(shown, sections), _filters(shown)),
        main,
        element("footer", say("page.footer", version=result.facts.fingerprint.get("sktune", ""))),
        element("div", id="tip", role="status", hidden=True),
        element("script", Markup(page_data(shown)), type="application/json", id="data"),  # noqa: S704 - "<" is escaped
        element("script", Markup(script())),  # noqa: S704
        data_events=events,
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{element('html', head, body, lang=language)}\n"


def _navigation(shown: Shown, sections: list[Section]) -> Markup:
    links = (element("a", section.title, href=f"#{section.key}") for section in sections)
    return element("nav", *links, aria_label=shown.say("page.contents"))


def _filters(shown: Shown) -> Markup | None:
    """Return the filter of all pictures; the script shows it."""
    records, say = shown.records.values(), shown.say
    if not records:
        return None
    counts = [len(record.judged_plan.scopes) for record in records]
    names = list(dict.fromkeys(filter(None, map(shown.result.workers.name_of, records))))
    outcomes = [record.outcome for record in records if record.outcome]
    chosen: list[tuple[str, dict[str, str]]] = [
        ("origin", {shown.origin(record): shown.origin(record) for record in records}),
        ("outcome", {str(outcome.reason or "complete"): shown.ended(outcome) for outcome in outcomes}),
        *([("worker", {name: name for name in names})] if len(names) > 1 else []),
    ]
    selects = [
        element("label", say(f"filter.{key}"), " ",
                element("select", element("option", say("filter.all"), value=""),
                        *(element("option", word, value=value) for value, word in values.items()), id=f"filter-{key}"))
        for key, values in chosen
    ]  # fmt: skip
    limits = [
        element("label", say(f"filter.{key}"), " ",
                element("input", type="number", id=f"filter-{key}", min=min(counts), max=max(counts), value=value))
        for key, value in (("least", min(counts)), ("most", max(counts)))
    ]  # fmt: skip
    reset = element("button", say("filter.reset"), type="button", id="filter-reset")
    return element("form", *selects, *limits, reset, element("output", id="filter-shown"), id="filters", hidden=True)


def _section(shown: Shown, section: Section) -> Markup:
    heading = element("h2", section.title, " ", element("a", "#", href=f"#{section.key}", aria_label=section.title))
    table = None
    if section.table and section.table.rows:
        table = element(
            "details",
            element("summary", shown.say("table.show", rows=counted(len(section.table.rows), "row", shown.say))),
            element("div", section.table.markup(section.key), class_="scroll", tabindex="0", role="region",
                    aria_label=section.title),
            open=section.is_open, data_keep=f"table-{section.key}",
        )  # fmt: skip
    notes = (element("p", note, class_="note") for note in section.notes)
    lead = element("p", section.lead, class_="lead") if section.lead else None
    return element("section", joined((heading, lead, section.body, *notes, table)), id=section.key)
