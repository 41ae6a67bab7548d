"""Searches for programs that run on several hosts, on a real Ray cluster of nodes on this host, which are killed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from sktune.core.errors import BadInputError
from sktune.core.events import Event
from sktune.core.outcome import Reason
from sktune.engines.cluster import Host
from sktune.engines.host_group import free_places
from sktune.runners.process_tree import is_alive
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from tests.runners.host_group import write_program

HOSTS = 4
END_S = 30.0
"""How long processes may take to notice that they are not needed any more."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a cluster whose head has no die."""
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(HOSTS):
        cluster.add_node(wait=False, num_cpus=0, resources={"DIE": 2})
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


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


@pytest.mark.slow
def test_a_search_over_two_groups_finds_the_plan(cluster: Any, tmp_path: Path) -> None:
    """The ranks of every host are compared, and the slowest counts."""
    events: list[Event] = []
    result = run(request_on(cluster, tmp_path, 7, environment={"FAULT": "bits"}), events.append)
    leased = [event.to_dict() for event in events if event.event == "trial_leased"]
    groups = {event["worker"] for event in leased}
    assert len(groups) == 2 and max(event["running"] for event in leased) == 2
    assert all(name.count("+") == 1 and name.endswith(" all dies") for name in groups)
    reasons = {record.plan.scopes: record.outcome for record in result.trials if record.outcome}
    wrong = [outcome for outcome in reasons.values() if outcome.reason is Reason.MISMATCH]
    assert wrong and all("rank 3 on " in outcome.detail for outcome in wrong)
    summary = result.summary()
    print(summary)
    check_ended(tmp_path)
