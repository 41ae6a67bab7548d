"""The page as a whole: its template, filled with the figures in order, the data and the script."""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from sktune.core.language import Language, Sentences
from sktune.core.printable import printable
from sktune.reports.figures import FIGURES
from sktune.reports.page.data import page_data
from sktune.reports.shown import Shown
from sktune.reports.texts import TEXTS
from sktune.study.result import SearchResult

if TYPE_CHECKING:
    from sktune.profiling.analysis import Profile


@cache
def file_text(name: str) -> str:
    """Return a file beside this module: the style sheet, the script or a template."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


_TEMPLATES = Environment(
    # Lines and indentation are the template's, not the page's.
    loader=FunctionLoader(lambda name: "".join(line.strip() for line in file_text(name).splitlines())),
    autoescape=True,
    finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
)


@cache
def _policy(connect: str) -> str:
    """Return the content security policy: only the page's own script and style, and no network but ``connect``."""
    allowed = base64.b64encode(hashlib.sha256(file_text("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def filled(template: str, say: Sentences, *, connect: str = "'none'", **values: Any) -> str:
    """Return a page: a template with a head, and its values, which are text unless they are markup.

    Args:
        template: name of a file beside this module.
        say: the words of the page's language.
        connect: what the page may connect to, as a content security policy says it.
        values: of the template.
    """
    style, policy = file_text("page.css"), _policy(connect)
    page = _TEMPLATES.get_template(template).render(say=say, style=style, policy=policy, **values)
    return f"<!DOCTYPE html>\n{page}\n"


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
    shown = Shown(result, say, profiles)
    return filled(
        "page.html", say, connect="'self'" if events else "'none'", title=f"{result.study} – sktune", result=result,
        figures={key: figure for key, make in FIGURES.items() if (figure := make(shown))},
        choices=_choices(shown), scopes=[len(record.judged_plan.scopes) for record in shown.records.values()],
        events=events, data=page_data(shown), script=file_text("page.js"),
    )  # fmt: skip


def _choices(shown: Shown) -> dict[str, dict[str, str]]:
    """Return the values that the filter of all figures offers, with their words."""
    records = shown.records.values()
    origins, workers = map(shown.origin, records), filter(None, map(shown.result.workers.name_of, records))
    outcomes = {str(record.outcome.reason or "complete"): shown.ended(record.outcome)
                for record in records if record.outcome}  # fmt: skip
    choices = {"origin": {name: name for name in origins}, "outcome": outcomes}
    names = {name: name for name in workers}
    return choices | {"worker": names} if len(names) > 1 else choices
