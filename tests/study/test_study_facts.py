"""Facts about a study are typed and have a format, and studies of sktune 0.2.0 can be read."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

from sktune.cli import app
from sktune.core.earlier import EarlierStudy, FailedScope
from sktune.core.errors import StudyError
from sktune.core.outcome import Outcome, Reason
from sktune.measure.final_comparison import FinalComparison
from sktune.samplers import find_strategy
from sktune.study.facts import FORMAT, DeliveryRecord, StudyFacts
from sktune.study.result import stored_result
from sktune.study.snapshot import snapshot
from sktune.study.study import TuningStudy, sqlite_url
from sktune.study.worker_log import Fate
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from tests.builders import TESTS, decoder_layout, one_line_error

STUDY = TESTS / "data" / "studies" / "0.2.0.db"
"""A simulated search of the preset llama, 6 trials, from before there was a codec."""


def copied(runs: Path) -> Path:
    """Copy the old study into ``runs`` under its original name; return its folder."""
    folder = runs / "old"
    folder.mkdir()
    shutil.copy(STUDY, folder / "study.db")
    return folder


def stored(url: str, name: str, value: Any) -> None:
    """Set an attribute of the study ``old``, in its stored form."""
    optuna.load_study(study_name="old", storage=url).set_user_attr(f"sktune:{name}", value)


def test_a_study_of_0_2_0_is_shown(tmp_path: Path) -> None:
    """Its winner, its trials and its report."""
    folder = copied(tmp_path)
    result = stored_result("old", tmp_path)
    assert result.facts.format == FORMAT
    assert result.facts.layout and len(result.facts.layout.layers) == 4
    assert result.is_simulated and result.is_compared
    assert len(result.trials) == result.facts.final_trials == 6
    assert result.facts.layout.units[1].kernels and result.trials[0].outcome and result.trials[0].outcome.scope_times
    assert result.verdict and result.winner is None
    for command in (["show", "old"], ["report", "old"]):
        done = CliRunner().invoke(app, [*command, "--runs", str(tmp_path)])
        assert done.exit_code == 0, done.output
    assert "No scope" in (folder / "report.md").read_text()


def test_a_study_of_0_2_0_is_continued(tmp_path: Path) -> None:
    """With the same fingerprint; its trials are learned from."""
    url = sqlite_url(copied(tmp_path))
    study = TuningStudy.open("old", url, create=False)
    known = {record.plan for record in study.records()}
    with study.claimed(study.facts.fingerprint):
        for _ in range(2):
            proposal = study.ask(study.space(), find_strategy("partition"), seed=0)
            assert proposal.plan not in known
            known.add(proposal.plan)
            study.tell(proposal, Outcome(Reason.CRASHED, "no"), None)
    assert study.finished() == 8


def test_a_search_of_today_continues_a_study_of_0_2_0_or_refuses_it_in_one_line(tmp_path: Path) -> None:
    """Depending on the installed versions: figures of different versions are not mixed."""
    copied(tmp_path)
    try:
        result = run(Request("llama", backend="sim", study="old", trials=7, runs=tmp_path))
    except StudyError as refused:
        assert "study 'old' was made " in str(refused)
        assert "--study" in str(refused)
        assert "\n" not in str(refused)
    else:
        assert len(result.trials) == 7


def test_a_study_states_the_format_of_its_facts(tmp_path: Path) -> None:
    """From the start."""
    url = sqlite_url(tmp_path)
    TuningStudy.open("study", url, create=True)
    assert optuna.load_study(study_name="study", storage=url).user_attrs["sktune:format"] == FORMAT


def test_facts_of_a_newer_sktune_are_refused_in_one_line(tmp_path: Path) -> None:
    """Instead of being misread."""
    url = sqlite_url(copied(tmp_path))
    stored(url, "format", FORMAT + 1)
    with one_line_error(StudyError, r"made by a newer sktune .* upgrade sktune"):
        stored_result("old", tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layout", {"units": 3}),
        ("final", {}),
        ("delivery", []),
        ("format", [2]),
        ("seconds", "long"),
        ("fingerprint", {"torch": 2}),
        ("final_trials", {}),
        ("verifications", [1]),
    ],
)
def test_a_damaged_fact_is_named_in_one_line(tmp_path: Path, name: str, value: Any) -> None:
    """Whatever the damage."""
    url = sqlite_url(copied(tmp_path))
    stored(url, name, value)
    with one_line_error(StudyError, f"its fact '{name}' cannot be read"):
        stored_result("old", tmp_path)


NO_UNIT = '{"plan": {"scopes": [{"first": "a", "last": "b"}]}, "origin": ""}'


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("outcome", '{"speedup": {"baseline_ms": 1, "latency_ms": 1, "ratio": -1}}',
         r"trial 1: 'sktune:outcome' cannot be read \(speedup.ratio: "),
        ("proposal", '{"plan": {"scopes": 3}, "origin": "tpe"}',
         r"trial 1: 'sktune:proposal' cannot be read \(a plan must be a mapping"),
        ("proposal", NO_UNIT, r"the plan of trial 1 does not fit its model \(the model has no unit 'a'"),
        ("proposal", "{", "a stored value is damaged"),
    ],
)  # fmt: skip
def test_a_damaged_value_of_a_trial_is_named_in_one_line(tmp_path: Path, key: str, text: str, message: str) -> None:
    """The trial, the value, and what is wrong with it."""
    with closing(sqlite3.connect(copied(tmp_path) / "study.db")) as connection:
        change = "UPDATE trial_user_attributes SET value_json = ? WHERE key = ? AND trial_id = 2"
        connection.execute(change, [text, f"sktune:{key}"])
        connection.commit()
    with pytest.raises(StudyError, match=message) as refused:
        stored_result("old", tmp_path)
    assert "\n" not in str(refused.value)


def test_damaged_claims_leases_and_workers_are_told_in_one_line(tmp_path: Path) -> None:
    """They are in tables of sktune's own, beside Optuna's."""
    url = sqlite_url(copied(tmp_path))
    study = TuningStudy.open("old", url, create=False)
    with study.claimed(study.facts.fingerprint) as leases:
        leases.workers.add("npu 0", "a", Fate.JOINED)
        leases.grant(0, 1, "npu 0")
    for change, message in (
        ("UPDATE sktune_claims SET holders = '{'", "who runs it cannot be read"),
        ("UPDATE sktune_trial_leases SET attempt = 'many'", "its leases cannot be read"),
        ("UPDATE sktune_workers SET fate = 'eaten'", "its workers cannot be read"),
    ):
        with closing(sqlite3.connect(tmp_path / "old" / "study.db")) as connection:
            connection.execute(change)
            connection.commit()
        with pytest.raises(StudyError, match=message):
            snapshot("old", url, tmp_path / "old")
        with closing(sqlite3.connect(tmp_path / "old" / "study.db")) as connection:
            connection.execute("UPDATE sktune_claims SET holders = '[]'")
            connection.execute("UPDATE sktune_trial_leases SET attempt = 1")
            connection.commit()


def test_facts_are_read_back_as_stored(tmp_path: Path) -> None:
    """Structured values, too; storing some facts does not change the others."""
    study = TuningStudy.open("study", sqlite_url(tmp_path), create=True)
    layout = decoder_layout(("dense", "moe"))
    failed = (FailedScope("0a1b", (("early-start", 0),)),)
    earlier = (EarlierStudy("small", 20, 9, ("dense.mlp",), {"unit: unit": 0.01}, failed=failed),)
    final = FinalComparison((), {}, 0.01, ("a",))
    study.remember(layout=layout, earlier=earlier, final=final, modules={"a.py": "ab"})
    study.remember(delivery=DeliveryRecord(4, problem="the disk is full"), uncompared=True)
    assert study.facts == StudyFacts(
        layout=layout, earlier=earlier, final=final, modules={"a.py": "ab"}, uncompared=True,
        delivery=DeliveryRecord(4, problem="the disk is full"),
    )  # fmt: skip


def test_only_facts_are_remembered(tmp_path: Path) -> None:
    """Nothing else can be stored."""
    study = TuningStudy.open("study", sqlite_url(tmp_path), create=True)
    with pytest.raises(TypeError, match="has no facts colour"):
        study.remember(colour="red")
