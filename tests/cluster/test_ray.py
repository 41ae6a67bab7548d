"""Searches on a real Ray cluster of nodes on this host, whose nodes and processes are killed."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from benchmarks import fault_campaign
from benchmarks.slow_factory import processes, sleeping, with_process
from sktune.cluster.hosts import connected, refuse_mixed, survey
from sktune.cluster.side_by_side import search_all
from sktune.core.errors import BadInputError, SktuneError, StudyError
from sktune.core.events.base import Event
from sktune.core.outcome import Reason
from sktune.core.space import SpaceSpec
from sktune.study.leases import Leases
from sktune.study.study import TuningStudy, sqlite_url
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from sktune.worker.process_tree import descendants, is_alive
from tests.builders import succeeded
from tests.cluster.local_cluster import add_host, local_cluster
from tests.recipes.reporting import REPORTING, reporting

pytestmark = pytest.mark.slow
DIES = 3
END_S = 90.0
"""How long processes may take to notice that they are not needed: Ray's workers, up to 40 s after the head is lost."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a cluster of hosts with a die each."""
    with local_cluster(DIES) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def all_dies(cluster: Any) -> Iterator[None]:
    """Replace the nodes that a test has removed."""
    yield
    missing = DIES + 1 - len(cluster.list_all_nodes())
    for _ in range(missing):
        add_host(cluster)


def prepared(runs: Path, cluster: Any, trials: int) -> Request:
    """Return the request of a search on the cluster, with an empty study and a small space."""
    request = fault_campaign.prepared(runs, trials)
    return replace(request, engine="ray", address=cluster.address)


def check_ended(folder: Path) -> None:
    """Fail unless all leases and all processes of the study's runners have ended."""
    study = TuningStudy.open("s", sqlite_url(folder), create=False)
    assert Leases(study.storage.engine, "s", "").all() == ()
    until_s = time.monotonic() + END_S
    while (left := [pid for pid in processes(folder) if is_alive(pid)]) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert not left


def test_losses_blame_no_plan(cluster: Any, tmp_path: Path) -> None:
    """A worker process, an actor and a node are killed while they judge; others go on, and all processes end."""
    listed = tmp_path / "s" / "runners"
    victim = next(node for node in cluster.list_all_nodes() if not node.head)
    below = victim.all_processes["raylet"][0].process.pid
    others: list[Path] = []
    events: list[Event] = []

    def kill_worker() -> None:
        # Not on the host that is removed later: without a worker, that would be no loss.
        others.extend(file for file in listed.glob("*.worker") if int(file.stem) not in descendants(below))
        os.kill(int(others[1].read_text().split()[0]), signal.SIGKILL)

    def kill_actor() -> None:
        os.kill(int(others[0].stem), signal.SIGKILL)

    def remove_node() -> None:
        cluster.remove_node(victim, allow_graceful=False)

    strikes = {2: kill_worker, 5: kill_actor, 8: remove_node}

    def listen(event: Event) -> None:
        events.append(event)
        finished = [event.to_dict()["trial"] for event in events if event.event == "trial_finished"]
        again = {event.to_dict()["trial"] for event in events if event.event == "trial_requeued"}
        # A plan that meets several losses is blamed, so one at a time.
        is_calm = again <= set(finished) and len(list(listed.glob("*.worker"))) >= DIES
        if event.event == "trial_finished" and is_calm and strikes and len(finished) >= min(strikes):
            strikes.pop(min(strikes))()

    result = run(prepared(tmp_path, cluster, 20), listen, runner_factory=with_process)
    told = [event.to_dict()["trial"] for event in events if event.event == "trial_finished"]
    assert sorted(told) == list(range(20))
    assert not strikes
    assert {record.outcome.reason for record in result.trials if record.outcome} <= {None, Reason.SLOWER}
    whys = [event.to_dict()["why"] for event in events if event.event == "worker_lost"]
    assert len(whys) == 2
    assert whys[1] in ("its host is gone", "it is out of reach")
    assert {file.read_text() for file in listed.glob("*.threads")} == {os.environ.get("OMP_NUM_THREADS", "not set")}
    check_ended(tmp_path / "s")


def test_check_shows_the_hosts(cluster: Any) -> None:
    """With their dies and what their figures depend on."""
    shown = succeeded("engine", "check", "--address", cluster.address, "--backend", "sim", "--json")
    assert f'"dies":{DIES}' in shown.stdout.replace(" ", "")
    assert all(f'"{key}":' in shown.stdout for key in ("torch", "cann", "cores", "clock_mhz", "free_disk_bytes"))


def test_hosts_that_differ_are_refused_by_name(cluster: Any) -> None:
    """In one line with both values."""
    spec, _ = Request("llama", backend="sim").target()
    with connected(cluster.address):
        first, second, *_ = survey(spec, SpaceSpec())
    other = replace(second, fingerprint={**first.fingerprint, "torch": "1.0"})
    refuse_mixed([first, first])
    with pytest.raises(BadInputError, match=rf"hosts {first.name} and {second.name} differ in torch: .* and '1.0'"):
        refuse_mixed([first, other])


def test_a_cluster_that_is_not_there_gets_one_line(tmp_path: Path) -> None:
    """It says how to start one."""
    with pytest.raises(BadInputError, match=r"there is no Ray cluster at 127\.0\.0\.1:1 .*start one with `ray start`"):
        run(Request("llama", backend="sim", runs=tmp_path, engine="ray", address="127.0.0.1:1"))


def test_an_answered_study_needs_no_cluster(tmp_path: Path) -> None:
    """Its result is returned, and only another model or other options are refused."""
    request = fault_campaign.prepared(tmp_path, 2)
    answered = run(request, runner_factory=sleeping)
    gone = replace(request, engine="ray", address="127.0.0.1:1")
    again = run(gone)
    assert again.summary() == answered.summary()
    with pytest.raises(StudyError, match="was made with batch"):
        run(replace(gone, batch=3))


def test_the_loss_of_the_head_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says to run the same command again; trials that were running are postponed, and no plan is blamed."""
    monkeypatch.setattr("sktune.cluster.ray_engine.HEAD_S", 0.0)
    with local_cluster(1) as cluster:

        def listen(event: Event) -> None:
            if event.event == "trial_finished" and event.to_dict()["trial"] == 1:
                cluster.head_node.kill_gcs_server(check_alive=False)

        with pytest.raises(
            SktuneError, match=r"the head of the Ray cluster at .* run the same command again"
        ) as failed:
            run(prepared(tmp_path, cluster, 200), listen, runner_factory=sleeping)
        for node in cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False)
    assert failed.value.exit_code != 0
    assert "\n" not in str(failed.value)
    study = TuningStudy.open("s", sqlite_url(tmp_path / "s"), create=False)
    assert not any(record.outcome and "lost" in record.outcome.detail for record in study.records())
    check_ended(tmp_path / "s")


def test_two_studies_divide_the_dies(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one connection; no die works for both at the same time."""
    monkeypatch.setattr("sktune.tuning.loop.run", partial(run, runner_factory=sleeping))
    base = replace(prepared(tmp_path, cluster, 3), workers=2)
    for study in ("one", "two"):
        (tmp_path / study / "runners").mkdir(parents=True)
    dies: dict[str, set[str]] = {"one": set(), "two": set()}

    def listen(study: str, event: Event) -> None:
        if event.event == "worker_joined" and not dies[study]:
            dies[study].add(event.to_dict()["worker"])

    answers = search_all([replace(base, study=study) for study in dies], listen)
    assert [len(answer.result.trials) for answer in answers if answer.result] == [3, 3]
    assert dies["one"] and dies["two"] and dies["one"].isdisjoint(dies["two"])


def test_programs_of_several_hosts_run_side_by_side(cluster: Any, tmp_path: Path) -> None:
    """A recipe's program has all dies of its host, and the others run other plans."""
    program = tmp_path / "program"
    reporting(program)
    lines = REPORTING.replace('[{"name": "a", "key": "a"}]', '[{"name": name, "key": name} for name in "abc"]')
    (program / "program.py").write_text(lines.replace("steps = int(sys", "time.sleep(0.3); steps = int(sys"))
    request = Request("", recipe=program / "recipe.yaml", runs=tmp_path, trials=4, strategy="grid",
                      engine="ray", address=cluster.address, study="s")  # fmt: skip
    leased: list[dict[str, Any]] = []
    result = run(request, lambda event: leased.append(event.to_dict()) if event.event == "trial_leased" else None)
    assert [record.number for record in result.trials] == [0, 1, 2, 3]
    assert all(record.outcome and record.outcome.speedup for record in result.trials)
    assert max(event["running"] for event in leased) == DIES
    names = {event["worker"] for event in leased}
    assert len(names) == DIES and all(name.endswith(" all dies") for name in names)
    with pytest.raises(BadInputError, match=r"uses all dies of its host; leave out --workers, or add --engine ray"):
        replace(request, engine="local", address=None, workers=2)
