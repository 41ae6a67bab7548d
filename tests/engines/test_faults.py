"""Searches on machines that fail: no trial is lost or told twice, and no plan is blamed for a machine."""

import os
import signal
from pathlib import Path

import pytest

from benchmarks import fault_campaign
from benchmarks.fault_campaign import LAYOUT, problems, schedule, truth
from benchmarks.faulty_engine import FAULTS, Fault
from sktune.core.errors import InterruptedSearchError
from sktune.core.events.base import Event
from sktune.core.outcome import Reason
from sktune.study.leases import Leases
from sktune.study.study import TuningStudy, sqlite_url
from tests.fake_runner import FakeRunner
from tests.fake_runner import search as search_alone

DIES = 5
SEEDS = (119, 159, 1000, 1003, 1005, 1006, 1009, 1010, 1013, 1016)
"""Of schedules with faults of every kind; in two of them different kinds last at the same time."""


@pytest.mark.parametrize("kind", FAULTS)
def test_no_single_fault_changes_the_result(tmp_path: Path, kind: str) -> None:
    """Each kind, in the middle of the trials."""
    campaign = fault_campaign.search(tmp_path, [Fault(kind, 1, 31.0)], dies=4, trials=24)
    assert not problems(campaign, 24)


@pytest.mark.parametrize("first", ["actor killed", "node lost after the result"])
@pytest.mark.parametrize("second", ["subprocess killed", "bit flips"])
def test_a_die_that_is_being_replaced_is_awaited_before_a_plan_is_blamed(
    tmp_path: Path, first: str, second: str
) -> None:
    """Nobody else is there to disagree with the other die, but somebody will be."""
    faults = [Fault(first, 0, 31.0), Fault(second, 1, 31.5)]
    campaign = fault_campaign.search(tmp_path, faults, dies=2, trials=24, fault=lambda plan: None)
    assert {each.outcome.reason for each in campaign.result.trials if each.outcome} <= {None, Reason.SLOWER}
    assert len(campaign.told) == 24


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_schedule_of_faults_changes_the_result(tmp_path: Path, seed: int) -> None:
    """A few of those of ``benchmarks/faults.py``."""
    campaign = fault_campaign.search(tmp_path, schedule(seed, DIES), dies=DIES, seed=seed)
    assert not problems(campaign), schedule(seed, DIES)


def test_the_schedules_have_faults_of_every_kind() -> None:
    """Whatever seeds are chosen."""
    assert {fault.kind for seed in SEEDS for fault in schedule(seed, DIES)} == set(FAULTS)


@pytest.mark.parametrize("strategy", ["partition", "random"])
def test_one_worker_tries_what_a_search_alone_tries(tmp_path: Path, strategy: str) -> None:
    """In the same order, with the same outcomes, whatever the engine."""
    alone = search_alone(
        tmp_path / "alone", FakeRunner(fault=truth, layout=LAYOUT), strategy=strategy, trials=12, seed=3
    )
    shared = fault_campaign.search(tmp_path / "shared", [], dies=1, strategy=strategy, trials=12, request_seed=3)
    expected, got = (
        [(record.plan, record.origin, record.outcome and record.outcome.reason) for record in result.trials]
        for result in (alone, shared.result)
    )
    assert got == expected
    assert alone.winner and shared.result.winner and alone.winner.plan == shared.result.winner.plan


def test_a_die_that_is_slow_or_wrong_is_quarantined_and_told(tmp_path: Path) -> None:
    """Its trials are done again elsewhere."""
    for kind in ("slow die", "bit flips", "die hangs", "die hangs its plans"):
        campaign = fault_campaign.search(tmp_path / kind, [Fault(kind, 1, 31.0)], dies=4, trials=24)
        events = [event.to_dict() for event in campaign.events]
        (quarantined,) = [event for event in events if event["event"] == "worker_quarantined"]
        assert quarantined["worker"] == "die 1"
        again = {event["trial"] for event in events if event["event"] == "trial_requeued"}
        leased = [event for event in events if event["event"] == "trial_leased" and event["trial"] in again]
        assert {event["worker"] for event in leased if event["attempt"] > 1} - {"die 1"}


def test_a_plan_that_always_takes_its_machine_along_is_blamed(tmp_path: Path) -> None:
    """Once two machines were lost with it: the search goes on."""
    campaign = fault_campaign.search(tmp_path, [], dies=4, deadly=[7])
    outcome = campaign.result.trials[7].outcome
    assert outcome and outcome.reason is Reason.CRASHED
    assert outcome.detail.startswith("2 workers on 2 machines were lost while they ran it")
    assert campaign.told[7] == 1
    assert len(campaign.result.trials) == fault_campaign.TRIALS


def test_ctrl_c_stops_after_the_trials_that_run(tmp_path: Path) -> None:
    """They are stored, and the same command continues."""

    def stop(event: Event) -> None:
        if event.to_dict().get("trial") == 5 and event.event == "trial_finished":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedSearchError, match=r"stopped after \d+ of 40 trials; run the same command"):
        fault_campaign.search(tmp_path, [], listener=stop)
    study = TuningStudy.open("s", sqlite_url(tmp_path / "s"), create=False)
    assert all(record.outcome for record in study.records()[:5])
    assert Leases(study.storage.engine, "s", "").all() == ()
    finished = study.finished()
    assert 6 <= finished <= 9
    again = fault_campaign.search(tmp_path, [])
    assert len(again.result.trials) == 40
    assert sum(again.told.values()) == 40 - finished


def test_four_workers_take_a_quarter_of_the_time(tmp_path: Path) -> None:
    """For the trials: opening and the final comparison take the same. Plans that fail are tried twice."""
    seconds = [
        fault_campaign.search(tmp_path / str(dies), [], dies=dies, fault=lambda plan: None).trial_seconds
        for dies in (1, 4)
    ]
    assert seconds[1] <= 0.3 * seconds[0]
