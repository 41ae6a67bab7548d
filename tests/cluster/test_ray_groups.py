"""Searches for programs that run on several hosts, on a real Ray cluster of nodes on this host, which are killed."""

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from sktune.cluster.host_group import free_places
from sktune.cluster.hosts import Host
from sktune.core.errors import BadInputError
from sktune.core.events.base import Event
from sktune.core.outcome import Reason
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from sktune.worker.process_tree import is_alive
from tests.cluster.local_cluster import local_cluster
from tests.recipes.host_group import write_program

HOSTS = 4
END_S = 30.0
"""How long processes may take to notice that they are not needed any more."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a cluster."""
    with local_cluster(HOSTS, dies=2) as cluster:
        yield cluster


def request_on(cluster: Any, folder: Path, trials: int, **keys: object) -> Request:
    """Return the request of a search for the program on two hosts."""
    recipe = write_program(folder / "program", **keys)
    return Request("", recipe=recipe, runs=folder, trials=trials, strategy="grid", engine="ray",
                   address=cluster.address, study="s")  # fmt: skip


def check_ended(folder: Path) -> None:
    """Fail unless all processes of the program have ended."""
    pids = [int(file.name.removeprefix("pid-")) for file in (folder / "program").glob("pid-*")]
    until_s = time.monotonic() + END_S
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert pids and not left


def lose_one_of_each(cluster: Any, groups: Collection[str]) -> None:
    """Kill the second host of one group and the leading one of another."""
    first, second = (group.partition(" ")[0].split("+") for group in groups)
    lost = [name.rpartition("-")[2] for name in (first[1], second[0])]
    for node in [node for node in cluster.list_all_nodes() if node.node_id.startswith(tuple(lost))]:
        cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_a_search_over_two_groups_finds_the_plan(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of every host are compared. Each group loses a host, which blames no plan; the others go on as one."""
    events: list[dict[str, Any]] = []
    groups: list[str] = []

    def listen(event: Event) -> None:
        events.append(event.to_dict())
        if event.event == "trial_leased" and events[-1]["running"] == 2 and not groups:
            groups.extend(event["worker"] for event in events if event["event"] == "worker_joined")
            time.sleep(1.0)  # both run a plan then
            lose_one_of_each(cluster, groups)
            (tmp_path / "program" / "go-on").touch()

    monkeypatch.setattr("sktune.cluster.ray_engine.LOOK_S", 1.0)
    result = run(request_on(cluster, tmp_path, 6, environment={"FAULT": "hangs at first"}), listen)
    lost = [event for event in events if event["event"] == "worker_lost"]
    joined = [event["worker"] for event in events if event["event"] == "worker_joined"]
    assert joined[:2] == groups and {event["worker"] for event in lost} >= set(groups)
    assert all("gone" in event["why"] or "answer" in event["why"] or "reach" in event["why"] for event in lost), lost
    assert len(joined) == 3 and all(name.count("+") == 1 and name.endswith(" all dies") for name in joined)
    outcomes = [record.outcome for record in result.trials]
    assert len(outcomes) == 6
    wrong = [outcome for outcome in outcomes if outcome and outcome.reason]
    assert {outcome.reason for outcome in wrong} == {Reason.MISMATCH}
    assert all("rank 3 on " in outcome.detail for outcome in wrong)
    summary = result.summary()
    assert summary["best_ms"] == pytest.approx(6.51) and summary["baseline_ms"] == pytest.approx(10.51)
    check_ended(tmp_path)


@pytest.mark.slow
def test_too_few_hosts_are_refused(cluster: Any, tmp_path: Path) -> None:
    """In one line with both numbers."""
    with pytest.raises(
        BadInputError, match=r"needs 9 hosts, and \d of the cluster's hosts have dies; start Ray on more"
    ):
        run(request_on(cluster, tmp_path, 1, hosts=9))


def test_groups_are_made_of_what_is_left() -> None:
    """A worker that dies again and again wears its hosts out; one host is no group."""
    slots = [(Host(name, name, "DIE", 2, name), 0) for name in "abcde"]
    both = free_places(slots, [], (), 2)
    assert [place.name for place in both] == ["a+b", "c+d"]
    (place,) = free_places([slot for slot in slots if slot[0].name != "b"], both[1:], (), 2)
    assert place.name == "a+e" and place.slots == (("a", 0), ("e", 0))
    assert [place.name for place in free_places(slots, [], {("a", 0), ("b", 0)}, 2)] == ["c+d"]
    assert len(free_places([(slots[0][0], number) for number in range(2)], [], (), 1)) == 2
