"""The engine of a Ray cluster: an actor for each die, or for a recipe for each host. Needs ``sktune[ray]``.

Ray starts the actors and says when they or their hosts are gone; it restarts nothing and retries nothing, and no state
of a search is in it.
"""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from sktune.core.errors import BadInputError, first_line
from sktune.engines.base import Call, Lost, OnEvent, Worker
from sktune.engines.cluster import THREADS, HeadLostError, Host, head_address, hosts, is_listening, on_host
from sktune.engines.die_actor import DieActor
from sktune.engines.dies import WHOLE_HOST, kind_of
from sktune.engines.runner_thread import END_S
from sktune.engines.share import GIVEN_BACK, Share
from sktune.runners.base import DurationEstimates, Opened, RunnerFactory, RunnerSetup

NEWS_S = 10.0
"""How long an actor waits for an event before it answers that there is none."""
LOOK_S = 5.0
"""Seconds between two looks for hosts that have come."""
HEAD_S = 20.0
"""How long the head may be out of reach. Ray gives up, and ends this process, after 60."""
MAX_LIVES = 3
"""Actors that are started on one die; one that always dies is of no use."""

Slot = tuple[str, int]
"""ID of a host, and number among its actors."""


def _place(slot: Slot) -> str:
    return f"{slot[0]} {slot[1]}"


@dataclass(slots=True)
class _Actor:
    """An actor, and the answer that is awaited from it: of ``start`` while it has no worker, then of ``news``."""

    handle: Any
    slot: Slot
    host: Host
    awaited: Any
    worker: Worker | None = None


class RayEngine:
    """Runs an actor for each die of a connected cluster; an ``Engine``.

    A recipe's program uses all dies of its host, which has one actor.

    Args:
        setup: of the search.
        factory: makes a runner; found by its name on all hosts.
        share: which of the dies to use.
    """

    def __init__(self, setup: RunnerSetup, factory: RunnerFactory, share: Share) -> None:
        self._setup, self._factory, self._share = setup, factory, share
        self._kind = kind_of(setup.spec)
        self._called: Worker | None = None
        self._discarded: set[Worker] = set()
        self._actors: dict[Slot, _Actor] = {}
        self._lives: dict[Slot, int] = {}
        self._looked_s = 0.0
        self._head, self._head_seen_s = head_address(), time.monotonic()

    def __enter__(self) -> Self:
        self._look()
        if not any(host.dies for host in hosts(self._setup.spec.device)):
            raise BadInputError("no host of the cluster has dies; see `sktune engine check`")
        return self

    def __exit__(self, *_: object) -> None:
        if not is_listening(self._head):
            return  # actors end with their hosts, which miss the head, too
        ends = [actor.handle.join.remote(END_S) for actor in self._actors.values()]
        with suppress(RayError):
            ray.wait(ends, num_returns=len(ends), timeout=END_S)
        for actor in self._actors.values():
            ray.kill(actor.handle)

    def submit(self, worker: Worker, call: Call, /) -> None:
        """See ``Engine.submit``."""
        self._called = worker
        handle = next(actor.handle for actor in self._actors.values() if actor.worker == worker)
        handle.submit.remote(call, call.deadline_s - time.monotonic())

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:
        """See ``Engine.wait``."""
        if time.monotonic() - self._looked_s > LOOK_S:
            self._look()
        self._give_back(on_event)
        awaited = {actor.awaited: actor for actor in self._actors.values()}
        if not awaited:
            time.sleep(timeout_s)
            return
        ready, _ = ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
        for answer in ready:
            self._take(awaited[answer], answer, on_event)

    def discard(self, worker: Worker, /) -> None:
        """See ``Engine.discard``: the actor stays, and keeps its die from others."""
        self._discarded.add(worker)
        for actor in self._actors.values():
            if actor.worker == worker:
                actor.handle.end.remote()

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Engine.pace``."""
        return self._factory(self._setup).pace(opened, trials)

    def _take(self, actor: _Actor, answer: Any, on_event: OnEvent) -> None:
        try:
            value = ray.get(answer)
        except RayError as failure:
            self._take_loss(actor, failure, on_event)
            return
        actor.awaited = actor.handle.news.remote(NEWS_S)
        if actor.worker is None:
            actor.worker = value
            return
        for event in value:
            on_event(event)

    def _take_loss(self, actor: _Actor, failure: RayError, on_event: OnEvent) -> None:
        if not self._has_head():
            time.sleep(1.0)  # no call of Ray would return
            return
        with suppress(RayError):
            ray.kill(actor.handle)  # it may be alive, and only out of reach
        del self._actors[actor.slot]
        worker = actor.worker or Worker(f"{actor.host.name} {actor.slot[1]}", actor.host.name)
        on_event(Lost(worker, self._why(actor, failure)))
        self._looked_s = 0.0

    def _why(self, actor: _Actor, failure: RayError) -> str:
        """Return in a few words what happened to an actor. Ray knows only later if its host is gone."""
        if actor.host.node not in {host.node for host in hosts(self._setup.spec.device)}:
            return "its host is gone"
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

    def _look(self) -> None:
        """Start an actor on each die that has none, as far as more workers are wanted."""
        self._looked_s = time.monotonic()
        if not self._has_head():
            return
        there = [(host, (host.node, number)) for host in hosts(self._setup.spec.device)
                 for number in range(1 if self._kind == WHOLE_HOST else host.dies)]  # fmt: skip
        usable = {_place(slot): (host, slot) for host, slot in there
                  if slot in self._actors or self._lives.get(slot, 0) < MAX_LIVES}  # fmt: skip
        for host, slot in (usable[place] for place in self._share.of(list(usable))):
            if slot not in self._actors:
                self._lives[slot] = self._lives.get(slot, 0) + 1
                self._actors[slot] = self._started(host, slot)

    def _give_back(self, on_event: OnEvent) -> None:
        """Give back dies that are not needed any more; never that of the worker that was called last."""
        kept = {self._called, *self._discarded}
        others = [(slot, actor) for slot, actor in self._actors.items() if actor.worker not in kept]
        for slot, actor in others[: self._share.surplus]:
            ray.kill(actor.handle)
            del self._actors[slot]
            if actor.worker:
                on_event(Lost(actor.worker, GIVEN_BACK))
            self._share.give_back(_place(slot))

    def _started(self, host: Host, slot: Slot) -> _Actor:
        dies = host.dies if self._kind == WHOLE_HOST else 1
        amount = {"num_gpus": dies} if host.resource == "GPU" else {"resources": {host.resource: dies}}
        actor: Any = ray.remote(DieActor)
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 3, **amount}
        handle = actor.options(**options, scheduling_strategy=on_host(host)).remote(
            self._kind, slot[1], os.environ.get(THREADS), Path.cwd()
        )
        started = handle.start.remote(host, secrets.token_hex(8), self._setup, self._factory)
        return _Actor(handle, slot, host, started)
