"""Searches that learn from earlier studies: what is taken, how far it is believed, and what is never carried over."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import sktune
from sktune.core.earlier import EarlierStudy
from sktune.core.errors import BadInputError, StudyError
from sktune.samplers.partition import BY_EARLIER
from sktune.tuning.earlier import check_names
from sktune.tuning.loop import opened_study
from sktune.tuning.request import Request
from tests.builders import refusal, succeeded
from tests.projects import long_gaps


def searched(runs: Path, model: str = "llama", **options: Any) -> sktune.SearchResult:
    """Search on the simulated device."""
    return sktune.search(model, **{"backend": "sim", "trials": 4, "runs": runs, **options})


@pytest.mark.slow
def test_the_best_plan_of_an_earlier_study_is_tried_first(tmp_path: Path) -> None:
    """And is judged like any other: its own figures, bits and code."""
    constants = long_gaps(tmp_path)
    searched(tmp_path, study="before", trials=6, constants=constants)
    later = searched(tmp_path, study="after", batch=8, constants=constants, learn_from=["before"])
    first = later.trials[0]
    assert first.origin == BY_EARLIER
    assert first.outcome is not None
    assert [study.name for study in later.facts.earlier] == ["before"]
    assert searched(tmp_path, study="alone", batch=8, constants=constants, trials=1).trials[0].origin != BY_EARLIER


@pytest.mark.slow
def test_what_was_learned_is_part_of_the_study(tmp_path: Path) -> None:
    """A search that is continued proposes what it would have proposed, whatever became of the earlier study."""
    constants = long_gaps(tmp_path)
    searched(tmp_path, study="before", constants=constants)
    options: dict[str, Any] = {"batch": 8, "constants": constants, "learn_from": "before"}
    whole = searched(tmp_path, study="whole", **options)
    searched(tmp_path, study="halves", trials=2, **options)
    searched(tmp_path, study="before", trials=6, constants=constants)
    halves = searched(tmp_path, study="halves", **options)
    assert [record.plan for record in halves.trials] == [record.plan for record in whole.trials]


@pytest.mark.slow
def test_names_are_checked_for_a_study_that_exists(tmp_path: Path) -> None:
    """Before anything is loaded, also where all trials are done; one that cannot be read is not called missing."""
    searched(tmp_path, study="before", trials=1)
    searched(tmp_path, study="other", trials=1)
    searched(tmp_path, study="after", trials=1)
    for name in ("nope", "after"):
        with pytest.raises(BadInputError, match=f"there is no other study '{name}'"):
            searched(tmp_path, study="after", trials=1, learn_from=(name,))
    assert searched(tmp_path, study="after", trials=2, learn_from=("before",)).facts.earlier
    with pytest.raises(BadInputError, match="'after' learns from before, and from nothing else"):
        searched(tmp_path, study="after", trials=2, learn_from=("other",))
    shutil.rmtree(tmp_path / "before")
    searched(tmp_path, study="after", trials=2, learn_from=("before",))
    (tmp_path / "other/study.db").write_bytes(b"x" * 4096)
    with pytest.raises(StudyError, match=r"other/study\.db"):
        searched(tmp_path, study="new", trials=1, learn_from=("other",))


@pytest.mark.slow
def test_no_study_counts_twice(tmp_path: Path) -> None:
    """Neither one that is named twice, nor a study's own findings, back by way of one that has learned from it."""
    searched(tmp_path, study="first", trials=1)
    searched(tmp_path, study="second", trials=1, learn_from=("first", "first"))
    assert [study.name for study in sktune.load("second", tmp_path).facts.earlier] == ["first"]
    with pytest.raises(BadInputError, match="--learn-from second: it has itself learned from 'first'"):
        searched(tmp_path, study="first", trials=2, learn_from=("second",))
    assert not searched(tmp_path, study="first", trials=3, learn_from=("auto",)).facts.earlier
    gone = Request("llama", runs=tmp_path, learn_from=("gone",))  # a study of several shapes
    check_names(gone, "own", (EarlierStudy("gone.batch-1", 1, 1),))
    with pytest.raises(BadInputError, match=r"learns from first\.2, and from nothing else"):  # no shape of 'first'
        check_names(Request("llama", runs=tmp_path, learn_from=("first",)), "own", (EarlierStudy("first.2", 1, 1),))


def test_a_study_without_a_figure_is_not_called_unrelated(tmp_path: Path) -> None:
    """It was stopped before its model was open; the search that would learn from it leaves nothing behind."""
    request = Request("llama", runs=tmp_path)
    (tmp_path / "before").mkdir()
    opened_study(request, "before", tmp_path / "before")
    with pytest.raises(BadInputError, match="before: it has measured nothing yet"):
        searched(tmp_path, study="after", learn_from=("before",))
    assert not (tmp_path / "after").exists()


def test_a_study_elsewhere_is_missing_in_the_storage(tmp_path: Path) -> None:
    """The message does not say to start one, as if the storage were the trouble."""
    searched(tmp_path, study="before", trials=1)
    storage = f"sqlite:///{tmp_path / 'new.db'}"
    with pytest.raises(BadInputError, match=r"there is no other study 'before' in sqlite:.*new\.db"):
        searched(tmp_path, study="after", storage=storage, learn_from=("before",))


@pytest.mark.slow
def test_show_says_how_far_each_study_holds(tmp_path: Path) -> None:
    """On the console, in JSON, on the page and in the report."""
    searched(tmp_path, study="before")
    searched(tmp_path, study="after", batch=8, learn_from=("before",))
    text = succeeded("show", "after", "--why", "--runs", str(tmp_path)).stdout
    assert "learned from earlier studies" in text
    assert "Learned from study before" in (tmp_path / "after/report.md").read_text()
    assert "Learned from earlier studies" in (tmp_path / "after/report.html").read_text()


@pytest.mark.slow
def test_auto_takes_the_studies_that_share_units(tmp_path: Path) -> None:
    """Not the study itself, not one that has measured nothing, and none of another model."""
    searched(tmp_path, study="related")
    searched(tmp_path, "qwen3-moe", study="other")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/study.db").write_text("no database")
    shutil.copytree(tmp_path / "related", tmp_path / "plugin")
    with sqlite3.connect(tmp_path / "plugin/study.db") as database:  # of a package that is not installed here
        database.execute("update study_user_attributes set value_json = replace(value_json, '\"sim\"', '\"gone\"')")
        database.execute("update studies set study_name = 'plugin'")
    found = searched(tmp_path, study="after", batch=8, learn_from="auto").facts.earlier
    assert [study.name for study in found] == ["related"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learn-from", "befor"], "there is no other study 'befor'"),
        (["--learn-from", "after"], "there is no other study 'after'"),
        (["--learn-from", "before", "--strategy", "tpe"], "--learn-from is for the strategy partition"),
    ],
)
def test_studies_that_cannot_be_learned_from_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    """Before anything is loaded, in one line."""
    searched(tmp_path, study="before", trials=2)
    command = ("search", "--model", "llama", "--backend", "sim", "--study", "after", "--runs", str(tmp_path))
    assert message in refusal(*command, *options)


def test_a_study_of_another_model_is_refused(tmp_path: Path) -> None:
    """Its layers are of other kinds."""
    searched(tmp_path, "qwen3-moe", study="before", trials=2)
    with pytest.raises(BadInputError, match="it shares no unit of a layer with this model"):
        searched(tmp_path, study="after", learn_from="before")
