"""The page in a real browser, where there is one: its script runs, and the policy allows nothing else."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sktune.reports.page.page import page_html
from tests.reports.page_studies import HOSTILE, study_in
from tests.reports.test_page import data_of

CHROMIUM = shutil.which("chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-quic")  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")]


def seen_by_chromium(page: str, folder: Path) -> str:
    """Return the page as it is after its script has run."""
    assert CHROMIUM
    file = folder / "report.html"
    file.write_text(page, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "Refused to" not in done.stderr
    return done.stdout


def test_the_script_shows_filter_and_choice(tmp_path: Path) -> None:
    """Both need it; hostile text stays text."""
    page = page_html(study_in(tmp_path / "runs", trials=20, text=HOSTILE, description=HOSTILE))
    seen = seen_by_chromium(page, tmp_path)
    filters = seen.partition('<form id="filters"')[2].partition(">")[0]
    assert "hidden" not in filters
    assert "20 of 20 trials" in seen
    sides = seen.partition('id="compared"')[2].partition("</table>")[0]
    assert sides.count("<option") == 2 * len(data_of(page)["trials"])
    assert seen.count("<script") == 2
    assert "Copy as CSV" in seen
