"""The engine of a Ray cluster: an actor for each die, or for a recipe for each host or group. Needs ``sktune[ray]``.

Ray starts the actors and says when they or their hosts are gone; it restarts nothing and retries nothing, and no state
of a search is in it.
"""

import os
import secrets
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from sktune.cluster.die_actor import DieActor
from sktune.cluster.host_group import KEEPERS_STAY, HostGroup, Slot, WorkerPlace, dies_of, free_places
from sktune.cluster.hosts import THREADS, HeadLostError, head_address, hosts, is_listening, on_host
from sktune.core.errors import BadInputError, first_line
from sktune.tuning.dies import WHOLE_HOST, kind_of
from sktune.tuning.local_engine import END_S
from sktune.tuning.scheduler import Share
from sktune.worker.jobs import (
    GIVEN_BACK,
    Lost,
    OnEvent,
    RunnerCall,
    RunnerFactory,
    RunnerSetup,
    Worker,
)

NEWS_S = 10.0
"""How long an actor waits for an event before it answers that there is none."""
LOOK_S = 5.0
"""Seconds between two looks for hosts that have come."""
HEAD_S = 20.0
"""How long the head may be out of reach. Ray gives up, and ends this process, after 60."""
MAX_LIVES = 3
"""Actors that are started on one die, or on a host; one that always dies is of no use."""


@dataclass(slots=True)
class _Actor:
    """An actor, and the answer that is awaited from it: of ``start`` while it has no worker, then of ``news``."""

    handle: Any
    place: WorkerPlace
    awaited: Any
    group: HostGroup | None = None
    worker: Worker | None = None

    def end(self) -> None:
        """Kill it; it may be alive, and only out of reach."""
        with suppress(RayError):
            ray.kill(self.handle)
        with suppress(RayError):
            if self.group:
                self.group.end()


class RayEngine:
    """Runs an actor for each die of a connected cluster; an ``Engine``.

    A recipe's program uses all dies of its host, which has one actor. If it needs several hosts, the actor is on the
    first of a group, and when one host of a group is lost, the group is; the others then form new groups.

    Args:
        setup: of the search.
        factory: makes a runner; found by its name on all hosts.
        share: which of the dies to use.
    """

    def __init__(self, setup: RunnerSetup, factory: RunnerFactory, share: Share) -> None:
        self._setup, self._factory, self._share = setup, factory, share
        self._kind, self._size = kind_of(setup.spec), setup.spec.hosts
        self._called: Worker | None = None
        self._discarded: set[Worker] = set()
        self._actors: dict[str, _Actor] = {}
        self._deaths: Counter[Slot] = Counter()
        self._looked_s = 0.0
        self._head, self._head_seen_s = head_address(), time.monotonic()

    def __enter__(self) -> Self:
        there = len(hosts(self._setup.spec.device))
        if not there:
            raise BadInputError("no host of the cluster has dies; see `sktune engine check`")
        if there < self._size:
            raise BadInputError(
                f"one run of the program needs {self._size} hosts, and {there} of the cluster's hosts have dies; start "
                "Ray on more, or set fewer `hosts` in the recipe"
            )
        self._look(lambda event: None)
        return self

    def __exit__(self, *_: object) -> None:
        if not is_listening(self._head):
            return  # actors end with their hosts, which miss the head, too
        ends = [actor.handle.join.remote(END_S) for actor in self._actors.values()]
        with suppress(RayError):
            ray.wait(ends, num_returns=len(ends), timeout=END_S)
        for actor in self._actors.values():
            actor.end()

    def submit(self, worker: Worker, call: RunnerCall, /) -> None:
        """See ``Engine.submit``."""
        self._called = worker
        handle = next(actor.handle for actor in self._actors.values() if actor.worker == worker)
        handle.submit.remote(call, call.deadline_s - time.monotonic())

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:
        """See ``Engine.wait``."""
        if time.monotonic() - self._looked_s > LOOK_S:
            self._look(on_event)
        self._give_back(on_event)
        awaited = {actor.awaited: actor for actor in self._actors.values()}
        if not awaited:
            time.sleep(timeout_s)
            return
        ready, others = ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
        if ready and others:  # of a thousand dies, dozens answer at a time
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        for answer in ready:
            self._take(awaited[answer], answer, on_event)

    def discard(self, worker: Worker, /) -> None:
        """See ``Engine.discard``: the actor stays, and keeps its die from others."""
        self._discarded.add(worker)
        for actor in self._actors.values():
            if actor.worker == worker:
                actor.handle.end.remote()

    def _take(self, actor: _Actor, answer: Any, on_event: OnEvent) -> None:
        try:
            value = ray.get(answer)
        except RayError as failure:
            if self._has_head():
                self._lose(actor, self._why(failure), on_event)
            else:
                time.sleep(1.0)  # no call of Ray would return
            return
        actor.awaited = actor.handle.news.remote(NEWS_S)
        if actor.worker is None:
            actor.worker = value
            return
        for event in value:
            if actor.group and isinstance(event, Lost):  # such as that another host does not answer
                self._lose(actor, event.why, on_event)
            else:
                on_event(event)

    def _lose(self, actor: _Actor, why: str, on_event: OnEvent) -> None:
        """Forget an actor and its group. A host that is gone is not counted against the others."""
        actor.end()
        del self._actors[str(actor.place)]
        place, there = actor.place, {host.node for host in hosts(self._setup.spec.device)}
        gone = [host.name for host in place.hosts if host.node not in there]
        if gone:
            why = "its host is gone" if actor.group is None else f"its host {' and '.join(gone)} is gone"
        else:
            self._deaths.update(place.slots)
        if actor.worker or not gone:  # else none was there yet, and none will be
            on_event(Lost(actor.worker or Worker(f"{place.name} {place.number}", place.name), why))
        self._looked_s = 0.0

    def _why(self, failure: RayError) -> str:
        """Return in a few words what happened to an actor."""
        if isinstance(failure, ActorUnavailableError):
            return "it is out of reach"
        if isinstance(failure, RayTaskError):
            return first_line(failure.cause)
        return "its process died" if isinstance(failure, RayActorError) else first_line(failure)

    def _has_head(self) -> bool:
        """Whether the head is there.

        Raises:
            HeadLostError: it has not been for a while.
        """
        now_s = time.monotonic()
        if is_listening(self._head):
            self._head_seen_s = now_s
            return True
        if now_s - self._head_seen_s > HEAD_S:
            raise HeadLostError(self._head)
        return False

    def _look(self, on_event: OnEvent) -> None:
        """Start an actor in each place that has none, as far as more workers are wanted."""
        self._looked_s = time.monotonic()
        if not self._has_head():
            return
        there = hosts(self._setup.spec.device)
        nodes = {host.node for host in there}
        for actor in [one for one in self._actors.values() if one.group]:
            if any(host.node not in nodes for host in actor.place.hosts):
                self._lose(actor, "", on_event)
        slots = [(host, number) for host in there for number in range(1 if self._kind == WHOLE_HOST else host.dies)]
        held = [actor.place for actor in self._actors.values()]
        worn = {slot for slot, deaths in self._deaths.items() if deaths >= MAX_LIVES}
        places = {str(place): place for place in (*held, *free_places(slots, held, worn, self._size))}
        for name in self._share.of(list(places)):
            if name not in self._actors:
                self._actors[name] = self._started(places[name])

    def _give_back(self, on_event: OnEvent) -> None:
        """Give back dies that are not needed any more; never that of the worker that was called last."""
        kept = {self._called, *self._discarded}
        others = [(place, actor) for place, actor in self._actors.items() if actor.worker not in kept]
        for place, actor in others[: self._share.surplus]:
            actor.end()
            del self._actors[place]
            if actor.worker:
                on_event(Lost(actor.worker, GIVEN_BACK))
            self._share.give_back(place)

    def _started(self, place: WorkerPlace) -> _Actor:
        host = place.hosts[0]
        group = HostGroup(place.hosts) if self._size > 1 else None
        where = group.on_host(0) if group else {"scheduling_strategy": on_host(host)}
        actor: Any = ray.remote(DieActor)
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 3}
        is_program = self._kind == WHOLE_HOST
        options |= dies_of(host, host.dies if is_program else 1) | where | (KEEPERS_STAY if is_program else {})
        handle = actor.options(**options).remote(self._kind, place.number, os.environ.get(THREADS), Path.cwd())
        peers = group.peers if group else ()
        started = handle.start.remote(place, peers, secrets.token_hex(8), self._setup, self._factory)
        return _Actor(handle, place, started, group)
