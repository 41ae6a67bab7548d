"""The table of workers on the page and in ``sktune show``: who runs what, and why a die is not used any more."""

from pathlib import Path

from sktune.core.language import LANGUAGES
from sktune.reports.figures.workers import workers
from sktune.reports.page.page import page_html
from sktune.reports.study import report_markdown
from sktune.server.shelf import Shelf
from sktune.study.leases import Leases
from sktune.study.result import result_of
from tests.builders import checked, sktune_command
from tests.reports.page_studies import HOSTILE, on_three_dies, shown, study_in


def rows(runs: Path, name: str = "shared") -> list[tuple[object, ...]]:
    """Return the rows of the table of a study that runs on three dies."""
    with on_three_dies(runs, name) as study:
        section = workers(shown(result_of(study, runs)))
    assert section
    assert section.table
    return [tuple(row) for row in section.table.rows]


def test_the_table_says_what_each_die_does_and_has_done(tmp_path: Path) -> None:
    """Trials, leases, and what was lost or quarantined."""
    first, second, third = rows(tmp_path)
    assert first[:2] == ("npu 0", "npu")
    assert "running" in str(first[2])
    assert first[3] == "3, attempt 2"
    assert ":" in str(first[4])
    assert first[6:] == (1, "10.000", "")
    assert "free" in str(second[2])
    assert second[3] == ""
    assert "quarantined" in str(third[2])
    assert str(third[-1]).endswith("quarantined: slow")


def test_the_page_has_the_length_of_the_queue_while_it_runs(tmp_path: Path) -> None:
    """Afterwards leases are gone, and quarantines are still told, in both languages."""
    with on_three_dies(tmp_path) as study:
        assert "Running now: 1; waiting to be run again: 1." in page_html(result_of(study, tmp_path))
    for language in LANGUAGES:
        page = page_html(result_of(study, tmp_path), language)
        assert 'id="workers"' in page
        assert "Running now" not in page
        assert "slow</td>" in page


def test_the_live_page_follows_the_leases(tmp_path: Path) -> None:
    """It is made again when one is granted, before any trial ends."""
    shelf = Shelf(tmp_path)
    with on_three_dies(tmp_path) as study:
        before = shelf.page("shared", "/events")
        assert "<td>3, attempt 2</td>" in before
        Leases(study.storage.engine, "shared", study.records()[0].claim).grant(4, 2, "npu 1")
        assert "<td>4, attempt 2</td>" in shelf.page("shared", "/events")


def test_one_worker_is_not_shown(tmp_path: Path) -> None:
    """There is nothing to tell apart."""
    assert 'id="workers"' not in page_html(study_in(tmp_path, trials=3))


def test_the_report_says_which_die_ran_how_much(tmp_path: Path) -> None:
    """And which was quarantined; names of other machines are text. A single worker has no table."""
    with on_three_dies(tmp_path, prefix="a|b", why="slow") as study:
        text = report_markdown(result_of(study, tmp_path))
    _, _, table = text.partition("## Workers\n")
    first, *_, third = [line for line in table.partition("##")[0].splitlines() if line.startswith("| a")]
    assert first == "| a\\|b 0 | a\\|b | 1 | 10.000 |  |"
    assert third.endswith("quarantined: slow |")
    assert "## Workers" not in report_markdown(study_in(tmp_path, trials=3))


def test_labels_are_text(tmp_path: Path) -> None:
    """Hosts, dies and reasons come from other machines."""
    with on_three_dies(tmp_path, prefix=HOSTILE, why=HOSTILE) as study:
        page = page_html(result_of(study, tmp_path))
    section = page.partition('<section id="workers"')[2].partition("</section>")[0]
    assert "&lt;/script&gt;" in section
    assert "<script" not in section
    assert "<img" not in page
    assert "x" * 300 not in section


def test_show_has_a_line_for_each_die(tmp_path: Path) -> None:
    """And an event with the same."""
    with on_three_dies(tmp_path):
        lines = sktune_command("show", "shared", "--runs", str(tmp_path)).stdout.splitlines()
    assert any(line.startswith("npu 0: 1 trial, baseline 10.000 ms, runs trial 3 since ") for line in lines)
    assert any(line.startswith("npu 2: 1 trial, baseline 10.000 ms, quarantined ") for line in lines)
    assert lines[-1] == "1 trial runs now, 1 to be run again"
    (event,) = checked(sktune_command("show", "shared", "--runs", str(tmp_path), "--json").stdout)
    assert [worker["state"] for worker in event["workers"]] == ["ended", "ended", "quarantined"]
    study_in(tmp_path, trials=3)
    (event,) = checked(sktune_command("show", "study", "--runs", str(tmp_path), "--json").stdout)
    assert not event.get("workers")
