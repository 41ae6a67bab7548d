"""The files that a search writes into its folder, each an entry of ``OUTPUTS``."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sktune.core.errors import StudyError
from sktune.core.plan_file import ARTIFACTS
from sktune.reports.plan_output import plan_yaml
from sktune.reports.study import report_markdown
from sktune.reports.trials_table import trials_csv
from sktune.study.result import BEST_PLAN, SearchResult

OUTPUTS: Mapping[str, Callable[[SearchResult], str | None]] = {
    "report.md": report_markdown,
    "trials.csv": trials_csv,
    BEST_PLAN: lambda result: plan_yaml(result) if result.winner else None,
}
"""By file name, the function that returns its text, or None if there must be no such file."""


def write(result: SearchResult, folder: Path) -> list[Path]:
    """Write the files into ``folder`` and return their paths.

    A plan file is written only if a plan won; otherwise that of an earlier verdict is removed.

    Raises:
        StudyError: the folder cannot be written.
    """
    texts = {name: text_of(result) for name, text_of in OUTPUTS.items()}
    try:
        if not result.delivery:
            shutil.rmtree(folder / ARTIFACTS, ignore_errors=True)
        for name, text in texts.items():
            if text is None:
                (folder / name).unlink(missing_ok=True)
            else:
                _replace(folder / name, text)
    except OSError as failure:
        raise StudyError(
            f"{folder} cannot be written ({failure.strerror}); fix that and run `sktune report`"
        ) from failure
    return [folder / name for name, text in texts.items() if text is not None]


def _replace(file: Path, text: str) -> None:
    """Write a file as a whole or not at all: on a full disk, the earlier one stays."""
    new = file.with_name(f"{file.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
