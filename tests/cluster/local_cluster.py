"""A real Ray cluster whose nodes are processes of this host."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.cluster_utils import Cluster


@contextmanager
def local_cluster(hosts: int, dies: int = 1) -> Iterator[Any]:
    """Run a cluster of a head without dies, which soon notices the loss of a host, and hosts with ``dies`` each."""
    before = signal.getsignal(signal.SIGTERM)  # Ray replaces the handler whenever this process starts a node
    quickly = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quickly}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(hosts):
            add_host(cluster, dies, wait=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()
        signal.signal(signal.SIGTERM, before)


def add_host(cluster: Any, dies: int = 1, *, wait: bool = True) -> None:
    """Add a host."""
    cluster.add_node(wait=wait, num_cpus=0, resources={"DIE": dies})
