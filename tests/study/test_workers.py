"""The workers of a study: what became of them is stored, and who reads it neither writes nor waits."""

from pathlib import Path

import sqlalchemy

from sktune.core.codec import encoded
from sktune.core.events.studies import WorkerState
from sktune.core.outcome import Outcome, Speedup
from sktune.samplers import find_strategy
from sktune.study.leases import Leases
from sktune.study.result import result_of
from sktune.study.snapshot import snapshot, state_of
from sktune.study.study import Proposal, TuningStudy, sqlite_url
from sktune.study.worker_log import Fate
from sktune.study.workers import Workers, workers_of
from tests.builders import MADE_WITH, SPACE


def opened(folder: Path) -> TuningStudy:
    """Return a new study."""
    study = TuningStudy.open("s", sqlite_url(folder), create=True)
    study.remember(fingerprint=MADE_WITH)
    return study


def ask(study: TuningStudy) -> Proposal:
    """Return a trial to run."""
    return study.ask(SPACE, find_strategy("grid"), seed=0)


def on(die: str, baseline_ms: float) -> Outcome:
    """Return an outcome on a die."""
    return Outcome(None, "", Speedup(baseline_ms, 4.0, 2.0, (1.9, 2.1), 40), die=die)


def workers(study: TuningStudy) -> Workers:
    """Return the workers as a reader sees them."""
    return workers_of(study.storage.engine, study.name, study.records())


def test_while_a_search_runs_each_worker_has_its_trial(tmp_path: Path) -> None:
    """And trials without a lease wait, unless a free worker is about to take them."""
    study = opened(tmp_path)
    with study.claimed(MADE_WITH) as leases:
        for die in ("npu 10", "npu 2"):
            leases.workers.add(die, "a", Fate.JOINED)
        first, second, third = ask(study), ask(study), ask(study)
        lease = leases.grant(first.number, 2, "npu 10")
        two, ten = workers(study).all
        assert (two.worker, two.state, two.trial) == ("npu 2", WorkerState.FREE, None)
        assert (ten.worker, ten.state) == ("npu 10", WorkerState.RUNNING)
        assert (ten.trial, ten.attempt, ten.since) == (first.number, 2, lease.since)
        assert (workers(study).running, workers(study).queued) == (1, 1)
        assert encoded(ten).keys() >= {"trial", "attempt", "since"}
        leases.settle(lease)
        for number, proposal in enumerate((first, second, third)):
            study.tell(proposal, on("npu 10", 8.0 + number), 4.0)
    two, ten = workers(study).all
    assert (ten.state, ten.trials, ten.baseline_ms) == (WorkerState.ENDED, 3, 9.0)
    assert (two.trials, two.baseline_ms) == (0, None)
    assert (workers(study).running, workers(study).queued) == (0, 0)


def test_losses_and_quarantines_are_remembered(tmp_path: Path) -> None:
    """Also after the search, and when the die has a worker again."""
    study = opened(tmp_path)
    with study.claimed(MADE_WITH) as leases:
        for die in ("npu 0", "npu 1"):
            leases.workers.add(die, "a", Fate.JOINED)
        leases.workers.add("npu 0", "a", Fate.LOST, "its process died")
        leases.workers.add("npu 0", "a", Fate.JOINED)
        leases.workers.add("npu 1", "a", Fate.QUARANTINED, "its baseline has become slow")
        assert [worker.state for worker in workers(study).all] == [WorkerState.FREE, WorkerState.QUARANTINED]
    zero, one = result_of(study, tmp_path).workers.all
    assert [each.why for each in zero.mishaps] == ["its process died"]
    assert one.state is WorkerState.QUARANTINED
    assert encoded(one)["mishaps"][0]["fate"] == "quarantined"


def test_dies_of_one_name_on_two_hosts_are_two(tmp_path: Path) -> None:
    """Two searches that have joined a study each number the dies of their own host."""
    study, other = opened(tmp_path), TuningStudy.open("s", sqlite_url(tmp_path), create=False)
    with study.claimed(MADE_WITH) as leases, other.claimed(MADE_WITH, join=True) as leases_of_other:
        leases.workers.add("npu 0", "a", Fate.JOINED)
        leases_of_other.workers.add("npu 0", "b", Fate.JOINED)
        study.tell(ask(study), on("npu 0", 8.0), 4.0)
        other.tell(ask(other), on("npu 0", 9.0), 4.0)
    found = workers(study)
    assert [(each.host, each.baseline_ms) for each in found.all] == [("a", 8.0), ("b", 9.0)]
    assert [found.name_of(record) for record in study.records()] == ["npu 0 on a", "npu 0 on b"]


def test_a_reader_creates_no_tables(tmp_path: Path) -> None:
    """A study that never had several workers has none to show."""
    study = opened(tmp_path)
    study.tell(ask(study), on("", 8.0), 4.0)
    (record,) = study.records()
    found = snapshot("s", sqlite_url(tmp_path), tmp_path).workers
    assert not found.all
    assert found.name_of(record) == record.worker
    tables = sqlalchemy.inspect(study.storage.engine).get_table_names()
    assert not [name for name in tables if name.startswith("sktune_")]


def test_the_state_of_a_study_changes_with_its_workers(tmp_path: Path) -> None:
    """So a live page shows a lease before its trial ends."""
    study = opened(tmp_path)
    before = state_of(sqlite_url(tmp_path))
    Leases(study.storage.engine, "s", "token").grant(0, 1, "npu 0")
    assert state_of(sqlite_url(tmp_path)) != before
