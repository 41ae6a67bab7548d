"""Results that show themselves: what ``sktune.search`` and ``sktune.load`` return."""

from dataclasses import fields
from pathlib import Path

import pandas as pd

from sktune.core.language import Language
from sktune.core.outcome import bracketed
from sktune.reports import outputs, shapes
from sktune.reports.figure import Table
from sktune.reports.markup import element
from sktune.reports.plan_names import distinct_names
from sktune.reports.plan_output import verified_line
from sktune.reports.study import verdict_line
from sktune.reports.trials_table import trials_frame
from sktune.study.records import incumbent_first
from sktune.study.result import SearchResult
from sktune.study.shapes import ShapesResult

BEST = 5
"""Plans in the table of a notebook."""


class Result(SearchResult):
    """A study's result; ``print`` shows the verdict, and a notebook a card with the best plans."""

    @classmethod
    def of(cls, result: SearchResult) -> "Result":
        """Return ``result`` as one that shows itself."""
        return cls(**{field.name: getattr(result, field.name) for field in fields(result)})

    @property
    def bits(self) -> str:
        """How far the winner's bits were compared with the baseline's; empty without a winner."""
        return verified_line(self) if self.winner else ""

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each trial: plan, outcome, figures, parameters."""
        return trials_frame(self)

    def report(self, language: Language = "en") -> Path:
        """Write the report's files into the study's folder, and return the path of the page.

        Raises:
            StudyError: the folder cannot be written.
        """
        outputs.write(self, self.folder, language)
        return self.folder / outputs.PAGE

    def __str__(self) -> str:
        """Return the verdict in one line."""
        return verdict_line(self)

    def _repr_html_(self) -> str:
        best = incumbent_first(self.trials)[:BEST]
        names = distinct_names([record.judged_plan for record in best], self.facts.layout)
        rows = []
        for record, name in zip(best, names, strict=True):
            assert record.outcome and record.outcome.speedup
            speedup = record.outcome.speedup
            interval = bracketed(speedup.ratio, speedup.ci95)
            rows.append((record.number, name, f"{speedup.latency_ms:.3f}", f"{speedup.ratio:.3f}", interval))
        table = Table(("trial", "plan", "ms per step", "speedup", "95% interval"), rows)
        return element("div", element("p", element("b", self)), table.html() if rows else None)


class ShapesAnswer(ShapesResult):
    """The result of a search for several shapes; ``print`` shows the answer, and a notebook the table of shapes."""

    @classmethod
    def of(cls, result: ShapesResult) -> "ShapesAnswer":
        """Return ``result`` as one that shows itself."""
        return cls(result.study, result.folder, result.record, [Result.of(each) for each in result.results])

    def report(self, language: Language = "en") -> Path:
        """Write the report's files and the plan file again, and return the path of the page.

        Raises:
            StudyError: the folder cannot be written, or a shape's compiled code is missing.
        """
        return shapes.write(self, language)[0]

    def __str__(self) -> str:
        """Return the answer in sentences."""
        return "\n".join(shapes.answer_lines(self))

    def _repr_html_(self) -> str:
        table = shapes.shapes_table(self).html() if self.is_finished else None
        return element("div", *(element("p", line) for line in shapes.answer_lines(self)), table)
