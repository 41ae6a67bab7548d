"""The files that a search writes into its folder, each an entry of ``OUTPUTS``."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sktune.core.errors import StudyError
from sktune.core.files import write_text
from sktune.core.language import Language
from sktune.core.plan_file import ARTIFACTS
from sktune.reports.plan_output import plan_yaml
from sktune.reports.study import report_markdown
from sktune.study.result import BEST_PLAN, SearchResult

if TYPE_CHECKING:
    from sktune.profiling.analysis import Profile

PAGE, TRACE = "report.html", "trace.json"


def _page(result: SearchResult, language: Language = "en", profiles: "tuple[Profile, ...]" = ()) -> str:
    from sktune.reports.page.page import page_html  # with the figures; who only shows a study does not wait for it

    return page_html(result, language, profiles)


def _trials(result: SearchResult) -> str:
    from sktune.reports.trials_table import trials_csv  # with pandas

    return trials_csv(result)


OUTPUTS: Mapping[str, Callable[[SearchResult], str | None]] = {
    PAGE: _page,
    "report.md": report_markdown,
    "trials.csv": _trials,
    BEST_PLAN: lambda result: plan_yaml(result) if result.winner else None,
}
"""By file name, the function that returns its text, or None if there must be no such file."""


def write(
    result: SearchResult,
    folder: Path,
    language: Language = "en",
    profiles: "tuple[Profile, ...]" = (),
    *,
    trace: bool = False,
) -> list[Path]:
    """Write the files into ``folder`` and return their paths.

    A plan file is written only if a plan won; otherwise that of an earlier verdict is removed.

    Args:
        result: of the study.
        folder: for the files.
        language: of the page.
        profiles: of the baseline's step and of the winner's, for the page.
        trace: whether to write a trace of where the time went, for Perfetto.

    Raises:
        StudyError: the folder cannot be written.
    """
    texts = {name: text_of(result) for name, text_of in OUTPUTS.items() if name != PAGE}
    texts[PAGE] = _page(result, language, profiles)
    if trace:
        from sktune.reports.time_spent import trace_json

        texts[TRACE] = trace_json(result)
    try:
        if not result.delivery:
            shutil.rmtree(folder / ARTIFACTS, ignore_errors=True)
        for name, text in texts.items():
            if text is None:
                (folder / name).unlink(missing_ok=True)
            else:
                write_text(folder / name, text)
    except OSError as failure:
        raise StudyError(
            f"{folder} cannot be written ({failure.strerror}); fix that and run `sktune report`"
        ) from failure
    return [folder / name for name in (*OUTPUTS, TRACE) if texts.get(name) is not None]
