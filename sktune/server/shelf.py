"""The studies that are served, and their pages: each is made again when its study has changed."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sktune.core.errors import SktuneError
from sktune.core.language import Language, Sentences
from sktune.core.printable import shortened
from sktune.reports.figure import Table
from sktune.reports.markup import element
from sktune.reports.page.page import filled, page_html
from sktune.reports.plan_names import plan_name
from sktune.reports.shapes import page_html as shapes_page_html
from sktune.reports.texts import TEXTS
from sktune.study.facts import StudyFacts
from sktune.study.result import SearchResult
from sktune.study.shapes import ShapesRecord, ShapesResult, names_of_shapes, read_record, stored_shapes
from sktune.study.snapshot import names_in, snapshot, state_of
from sktune.study.storage import DATABASE
from sktune.study.study import folder_name, sqlite_url

T = TypeVar("T")
MAX_MODEL = 100
"""Characters of a model's description in the index."""
REFRESH_S = 10
"""Pages of several studies are loaded again after so many seconds; that of one follows its events."""


class Shelf:
    """Studies in a folder of runs, or in one storage.

    Args:
        runs: folder that holds the studies.
        storage: URL of a storage; None for the databases in the studies' folders.
        language: of the pages.
    """

    def __init__(self, runs: Path, storage: str | None = None, language: Language = "en") -> None:
        self._runs, self._storage, self._language = runs.resolve(), storage, language
        self._say = Sentences(TEXTS, language)
        self._made: dict[str, tuple[object, Any]] = {}

    def names(self) -> list[str]:
        """Return the names of all studies that can be read: those of several shapes, then the last changed first."""
        names = names_in(self._runs, self._storage)
        of_shapes = [name for name in names_of_shapes(self._runs) if name not in names and self._is_here(name, names)]
        return [*of_shapes, *names]

    def _is_here(self, name: str, names: Sequence[str]) -> bool:
        """Whether a study of several shapes is in the storage; one that has just begun is in the folder of runs."""
        try:
            record = self._record(name)
        except SktuneError:
            return True  # its row has the error
        return not self._storage or not record or any(each.study in names for each in record.studies)

    def state(self, name: str) -> object:
        """Return a value that changes with the study."""
        try:
            record = self._record(name)
        except SktuneError as failure:
            return str(failure)
        if record:
            return record, [state_of(self._url(each.study)) for each in record.studies]
        return state_of(self._url(name))

    def page(self, name: str, events: str, address: Callable[[str], str]) -> str:
        """Return a study's page; ``events`` is where its browser asks for changes, ``address`` as in ``index``.

        That of several shapes, and ``index``, are loaded again every ``REFRESH_S`` seconds.

        Raises:
            StudyError: there is no such study, or it cannot be read.
        """

        def made() -> str:
            if answer := self.answer(name):
                return shapes_page_html(
                    answer, self._language, lambda result: address(result.study), refresh_s=REFRESH_S
                )
            return page_html(self.result(name), self._language, events=events)

        return self._cached(f"page {name}", name, made)

    def index(self, address: Callable[[str], str]) -> str:
        """Return a page with all studies; ``address`` gives the link to one."""
        say = self._say
        columns = [say(key) for key in ("serve.study", "verdict.model", "trials", "speedup", "plan", "verdict.when")]
        rows = [self._cached(f"row {name}", name, partial(self._row, name, address(name))) for name in self.names()]
        studies = Table(columns, rows).html() if rows else element("p", say("serve.none"))
        return filled("index.html", say, title=say("serve.title"), studies=studies, refresh_s=REFRESH_S)

    def _row(self, name: str, address: str) -> tuple[object, ...]:
        try:
            if answer := self.answer(name):
                shapes = shortened(", ".join(shape.name for shape in answer.shapes), MAX_MODEL)
                trials = sum(len(result.trials) for result in answer.results)
                return element("a", name, href=address), shapes, trials, "", "", ""
            result = self.result(name)
        except SktuneError as failure:
            return name, str(failure), "", "", "", ""
        incumbent = result.incumbent()
        ratio = result.speedup or (incumbent.speedup if incumbent else None)
        best = plan_name(result.best_plan, result.facts.layout, self._say) if result.verdict else None
        ended = max((record.ended for record in result.trials if record.ended), default=None)
        return (
            element("a", name, href=address), shortened(result.facts.description, MAX_MODEL), len(result.trials),
            f"{ratio:.3f}x" if ratio else "", best or self._say("verdict.running"),
            f"{ended:%Y-%m-%d %H:%M}" if ended else "",
        )  # fmt: skip

    def _record(self, name: str) -> ShapesRecord | None:
        return read_record(self._runs / folder_name(name))

    def answer(self, name: str) -> ShapesResult | None:
        """Return the answer of a study of several shapes; None if it has a single one.

        Raises:
            StudyError: it cannot be read.
        """
        return stored_shapes(name, self._runs, self._storage, self.result)

    def _url(self, name: str) -> str:
        return self._storage or sqlite_url(self._runs / folder_name(name))

    def result(self, name: str) -> SearchResult:
        """Return what a study has found, without writing to it.

        Raises:
            StudyError: it cannot be read.
        """
        folder = self._runs / folder_name(name)
        if not self._storage and not (folder / DATABASE).exists():
            return SearchResult(name, folder, (), None, None, StudyFacts())  # its search has just begun
        return snapshot(name, self._url(name), folder)

    def _cached(self, key: str, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returned for the present state of the study."""
        state = self.state(name)
        if key not in self._made or self._made[key][0] != state:
            self._made[key] = state, make()
        value: T = self._made[key][1]
        return value
