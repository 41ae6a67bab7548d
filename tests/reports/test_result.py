"""What ``sktune.search`` and ``sktune.load`` return: figures as attributes, and a verdict to print."""

from pathlib import Path

import pytest

import sktune
from sktune import visualization
from sktune.core.errors import StudyError
from sktune.reports.result import Result
from tests.reports.page_studies import HOSTILE, study_in


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A stored study with a winner."""
    runs = tmp_path_factory.mktemp("runs")
    study_in(runs, trials=20)
    return sktune.load("study", runs)


def test_figures_are_attributes(result: Result) -> None:
    """They are the winner's."""
    assert result.winner
    assert result.speedup == result.winner.speedup.ratio
    assert result.ci95 == result.winner.speedup.ci95
    assert result.latency_ms == result.winner.speedup.latency_ms
    assert result.baseline_ms == 10.0
    assert result.bits.startswith("identical on 2,048 steps")
    assert f"{result.speedup:.3f} times as fast" in str(result)
    assert "\n" not in str(result)


def test_before_a_verdict_there_are_no_figures(tmp_path: Path) -> None:
    """And no error."""
    study_in(tmp_path, trials=3, final=False)
    unfinished = sktune.load("study", tmp_path)
    assert (unfinished.speedup, unfinished.ci95, unfinished.latency_ms, unfinished.bits) == (None, None, None, "")
    assert "has not reached" in str(unfinished)


def test_a_missing_study_is_an_error(tmp_path: Path) -> None:
    """With the command that makes one."""
    with pytest.raises(StudyError, match="sktune search"):
        sktune.load("nothing", tmp_path)


def test_trials_are_a_frame_and_the_report_a_page(result: Result) -> None:
    """The frame has a row for each trial, named by its shape."""
    frame = result.to_frame()
    assert list(frame["trial"]) == [record.number for record in result.trials]
    assert frame["shape"].str.contains("scope").all()
    assert result.report("zh").read_text(encoding="utf-8").startswith('<!DOCTYPE html>\n<html lang="zh">')


def test_a_notebook_shows_a_card_in_which_names_are_text(tmp_path: Path) -> None:
    """Without a script, and short."""
    study_in(tmp_path, HOSTILE, trials=20, description=HOSTILE, text=HOSTILE)
    card = sktune.load(HOSTILE, tmp_path)._repr_html_()
    assert "<script" not in card
    assert card.count("<tr>") == 6
    assert len(card) < 5_000


def test_figures_for_notebooks_have_the_studys_values(result: Result) -> None:
    """Points and intervals; a study can be named instead."""
    history = visualization.plot_history(result)
    points = {number: ratio for trace in history.data[:-1] for number, ratio in zip(trace.x, trace.y, strict=True)}
    assert points == {
        record.number: record.outcome.speedup.ratio
        for record in result.trials
        if record.outcome and record.outcome.speedup
    }
    final = visualization.plot_final_comparison("study", result.folder.parent)
    expected = [speedup.ratio for row in result.final if (speedup := result.final_speedup(row))]
    assert list(final.data[0].x) == expected
    effects = visualization.plot_effects(result)
    assert {trace.name for trace in effects.data} == {"Units", "Borders", "Options"}
    assert visualization.plot_segments(result, "moe").data[0].z.shape == (4, 4)


def test_a_figure_that_has_nothing_to_show_yet_is_an_empty_plot(tmp_path: Path) -> None:
    """It says of which study and what it will be."""
    plot = visualization.plot_final_comparison(study_in(tmp_path, trials=3, final=False))
    assert not plot.data
    assert plot.layout.title.text == "study: Final comparison"
