"""Groups of hosts for programs that run on several: Ray reserves all dies of a group at once. Needs ``sktune[ray]``."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from sktune.cluster.hosts import THREADS, Host, restore_threads
from sktune.core.errors import PeerLostError
from sktune.recipes.peers import HostCommand, HostState, LocalPeer

ANSWER_S = 120.0
"""How long another host may take to answer; the first time its actor may still be importing."""
KEEPERS_STAY = {"runtime_env": {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}}
"""Option of an actor: when it ends, Ray does not kill its child processes. They are keepers (``process_tree``), which
notice that themselves and kill all that the program has started; Ray knows nothing of grandchildren."""
NODE_LABEL = "ray.io/node-id"
"""Ray's own label of each node."""

Slot = tuple[str, int]
"""ID of a host, and number of one of its dies, or 0 for all of them."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where one worker runs: a die, all dies of a host, or all dies of several hosts, the leading one first."""

    hosts: tuple[Host, ...]
    number: int

    def __str__(self) -> str:
        return f"{'+'.join(host.node for host in self.hosts)} {self.number}"

    @property
    def name(self) -> str:
        """Names of the hosts."""
        return "+".join(host.name for host in self.hosts)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What is in use if a worker is here."""
        return tuple((host.node, self.number) for host in self.hosts)


def free_places(
    found: Iterable[tuple[Host, int]], held: Iterable[WorkerPlace], worn: Collection[Slot], size: int
) -> list[WorkerPlace]:
    """Return the places, of ``size`` hosts each, that can be made of what is neither held nor worn out.

    Args:
        found: hosts with the numbers of their slots.
        held: places in use.
        worn: slots on which too many workers died.
        size: number of hosts of a place.
    """
    taken = {slot for place in held for slot in place.slots} | set(worn)
    free = [(host, number) for host, number in found if (host.node, number) not in taken]
    groups = [free[first : first + size] for first in range(0, len(free) - size + 1, size)]
    return [WorkerPlace(tuple(host for host, _ in group), group[0][1]) for group in groups]


def dies_of(host: Host, count: int) -> dict[str, Any]:
    """Return the options of an actor that has ``count`` of a host's dies."""
    return {"num_gpus": count} if host.resource == "GPU" else {"resources": {host.resource: count}}


class PeerActor(LocalPeer):
    """What runs on a host of a group that does not lead it.

    Args:
        host: this one.
        threads: the user's ``OMP_NUM_THREADS``.
    """

    def __init__(self, host: Host, threads: str | None) -> None:
        restore_threads(threads)
        super().__init__(host.name, host.address)


class RayPeer:
    """Another host of a group; a ``Peer``.

    Args:
        host: that one.
        actor: its ``PeerActor``.
    """

    def __init__(self, host: Host, actor: Any) -> None:
        self.name, self.address, self._actor = host.name, host.address, actor

    def start(self, command: HostCommand, /) -> None:
        """See ``Peer.start``."""
        self._answer(self._actor.start.remote(command))

    def poll(self, pids: Collection[int], /) -> HostState:
        """See ``Peer.poll``."""
        state: HostState = self._answer(self._actor.poll.remote(pids))
        return state

    def stop(self) -> None:
        """See ``Peer.stop``."""
        self._answer(self._actor.stop.remote())

    def other_inference(self, pattern: str, /) -> tuple[int, str] | None:
        """See ``Peer.other_inference``."""
        other: tuple[int, str] | None = self._answer(self._actor.other_inference.remote(pattern))
        return other

    def reads(self, path: Path, text: str, /) -> bool:
        """See ``Peer.reads``."""
        return bool(self._answer(self._actor.reads.remote(path, text)))

    def _answer(self, answer: Any) -> Any:
        try:
            return ray.get(answer, timeout=ANSWER_S)
        except RayTaskError as failure:
            raise failure.cause from failure
        except RayError as failure:
            raise PeerLostError(f"its host {self.name} does not answer") from failure


class HostGroup:
    """All dies of several hosts, reserved together, and an actor on each host but the leading one.

    Attributes:
        peers: these actors.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        bundles = [{host.resource: float(host.dies)} for host in hosts]
        labels: list[Mapping[str, str]] = [{NODE_LABEL: host.node} for host in hosts]
        self._reserved = placement_group(bundles, strategy="STRICT_SPREAD", bundle_label_selector=labels)
        actor: Any = ray.remote(PeerActor)
        self.peers = tuple(
            actor.options(
                num_cpus=0, max_restarts=0, **KEEPERS_STAY, **dies_of(host, host.dies), **self.on_host(number)
            ).remote(host, os.environ.get(THREADS))
            for number, host in enumerate(hosts)
            if number
        )

    def on_host(self, number: int) -> dict[str, Any]:
        """Return the option of an actor that runs on one of the hosts."""
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._reserved, number)}

    def end(self) -> None:
        """Give the hosts back; Ray kills all actors on them."""
        remove_placement_group(self._reserved)
