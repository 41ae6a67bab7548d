"""optuna-dashboard on a study as it is: asked as a browser asks it, over its own server."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import sktune
from sktune.reports import dashboard
from sktune.reports.plan_names import plan_name
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import succeeded
from tests.reports.page_studies import HOSTILE, study_in

PLOTS = {"sktune-history", "sktune-final", "sktune-effects", "sktune-segments"}
pytestmark = pytest.mark.skipif(not dashboard.is_installed(), reason="optuna-dashboard is not installed")


class Dashboard:
    """A running server of optuna-dashboard."""

    def __init__(self, url: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        serve = "import sys, optuna_dashboard; optuna_dashboard.run_server(sys.argv[1], port=int(sys.argv[2]))"
        self._process = subprocess.Popen([sys.executable, "-c", serve, url, str(self._port)], stderr=subprocess.DEVNULL)

    def get(self, path: str) -> Any:
        """Return the answer of its interface, waiting until it has started."""
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/{path}", timeout=60) as answer:
                    return json.loads(answer.read())
            except urllib.error.URLError:
                time.sleep(0.2)
        raise TimeoutError("optuna-dashboard does not answer")

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> sktune.SearchResult:
    """A simulated search."""
    runs = tmp_path_factory.mktemp("dashboard")
    return sktune.search("deepseek-v3", trials=8, backend="sim", study="dash", runs=runs)


@pytest.fixture(scope="module")
def served(searched: sktune.SearchResult) -> Iterator[Dashboard]:
    """The dashboard on its study."""
    running = Dashboard(sqlite_url(searched.folder))
    yield running
    running.stop()


@pytest.mark.slow
def test_the_study_is_shown_with_its_verdict_and_our_pictures(searched: sktune.SearchResult, served: Dashboard) -> None:
    """The objective has its name, the note the verdict and how to apply the plan."""
    study = served.get("studies/1?after=0")
    assert study["objective_names"] == [dashboard.OBJECTIVE]
    assert str(searched) in study["note"]["body"]
    assert "sktune.apply(model" in study["note"]["body"]
    assert {each["id"] for each in study["plotly_graph_objects"]} == PLOTS
    assert served.get("studies/1/param_importances")["param_importances"][0]


@pytest.mark.slow
def test_trials_have_the_names_of_their_plans(searched: sktune.SearchResult, served: Dashboard) -> None:
    """As a column, and in a note with figures."""
    trials = served.get("studies/1?after=0")["trials"]
    assert len(trials) == len(searched.trials)
    for record, trial in zip(searched.trials, trials, strict=True):
        attributes = {each["key"]: each["value"] for each in trial["user_attrs"]}
        name = plan_name(record.plan, searched.facts.layout)
        assert attributes["plan"].startswith(name)
        if record.outcome and record.outcome.is_complete and not record.is_probe:
            assert name in trial["note"]["body"]


@pytest.mark.slow
def test_a_report_replaces_pictures_and_a_search_continues(searched: sktune.SearchResult) -> None:
    """What is stored for the dashboard is not in the way of anything."""
    runs = searched.folder.parent
    succeeded("report", "dash", "--runs", str(runs))
    study = optuna.load_study(study_name="dash", storage=sqlite_url(searched.folder))
    stored = study._storage.get_study_system_attrs(study._study_id)
    pictures = {key.rsplit(":", 1)[0] for key in stored if "plot" in key}
    assert len(pictures) == len(PLOTS)
    more = sktune.search("deepseek-v3", trials=10, backend="sim", study="dash", runs=runs)
    assert [record.number for record in more.trials] == list(range(10))
    assert [record.plan for record in more.trials[:8]] == [record.plan for record in searched.trials]


def test_a_failure_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another version of the dashboard may store things otherwise: that is logged, and the study stays as it is."""
    result = study_in(tmp_path, HOSTILE, trials=8, text=HOSTILE, description=HOSTILE)
    study = TuningStudy.open(HOSTILE, sqlite_url(result.folder), create=False)
    dashboard.publish(study.optuna_study, result)
    assert not caplog.records
    monkeypatch.setattr("optuna_dashboard.save_note", lambda *_: 1 / 0)
    dashboard.publish(study.optuna_study, result)
    assert "not prepared for optuna-dashboard" in caplog.text


def test_what_people_have_written_stays(tmp_path: Path) -> None:
    """Below sktune's own part of a note, which is replaced."""
    from optuna_dashboard import get_note, save_note

    result = study_in(tmp_path, trials=8)
    study = TuningStudy.open("study", sqlite_url(result.folder), create=False).optuna_study
    save_note(study, "mine")
    for _ in range(2):
        dashboard.publish(study, result)
    assert get_note(study).endswith("\n\nmine")
    assert get_note(study).count(dashboard.MARK) == 1
    save_note(study, get_note(study) + " and more")
    dashboard.publish(study, result)
    assert get_note(study).endswith("\n\nmine and more")


def test_the_searchs_sampler_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Opening a trial for its note tells a sampler that it begins, and some then store something in it."""

    class Told(optuna.samplers.RandomSampler):
        """Fails if a trial begins."""

        def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            raise AssertionError("told")

    result = study_in(tmp_path, trials=8)
    study = TuningStudy.open("study", sqlite_url(result.folder), create=False).optuna_study
    study.sampler = Told()
    dashboard.publish(study, result)
    assert not caplog.records
