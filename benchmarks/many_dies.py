"""Searches on many dies, in virtual time: ``python -m benchmarks.many_dies --dies 128 --studies 8``.

The real coordinator, study and sampler run on an engine in virtual time (``benchmarks/faulty_engine.py``). Dies
differ by 8% in speed, some are 1.5 times slower; a trial takes a lognormal time around three minutes; hosts of 16 dies
are lost at random, and come back ten minutes later. All processor time that the coordinator really spends, proposals
and storage included, is added to virtual time, during which it hands out nothing. Results come from a landscape.

Studies share the dies evenly and for good: the first has dies 0, n, 2n and so on, so that losing a host costs each
study little. Each has a coordinator of its own, on a core of its own, so they are simulated one after the other.
"""

import argparse
import logging
import math
import random
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Self
from unittest.mock import patch

from optuna.trial import TrialState

from benchmarks.fault_campaign import Site
from benchmarks.faulty_engine import START_S, FaultyEngine, VirtualTime
from benchmarks.landscape import Landscape, gain, measured
from benchmarks.search import landscape_source
from sktune.core.outcome import Outcome
from sktune.core.space import SearchSpace
from sktune.study.strategy import Strategy
from sktune.study.study import Proposal, TuningStudy, sqlite_url
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from sktune.tuning.scheduler import WorkerLostError
from sktune.tuning.trials import Trials
from sktune.worker.jobs import Began, EngineEvent, Judge, OnEvent, Report, RunnerCall, Worker
from tests.fake_runner import SPACE, FakeRunner, _empty_database

TRIAL_S, TRIAL_SPREAD = 180.0, 0.4
OPEN_S = 60.0
"""Of any other call, too, also of a comparison of the baseline with itself."""
SPEED_SD, OUTLIER_SHARE, OUTLIER = 0.08, 0.02, 1.5
DIES_PER_HOST = 16
HOST_LOST_EVERY_S, HOST_BACK_S = 8 * 3600.0, 600.0
PENDING = (48, 80)
"""Trials that run during a proposal which counts as one with 64 of them."""


@dataclass
class Account:
    """What one search took, in virtual time.

    Attributes:
        asks: trials that ran during each proposal, its processor time in ms, storage included, and when it ended.
        spans: beginning and end of each trial's attempt that gave a result, on its die.
        away: from when until when each die was lost with its host.
    """

    asks: list[tuple[int, float, float]] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first trial's beginning to the last one's end."""
        return max(end for _, end in self.spans) - self.spans[0][0]

    def utilisation(self, dies: int, *, to_the_end: bool) -> float:
        """Return the share of the dies' time, without that of lost hosts, in which trials ran that gave a result:
        until the last proposal, or until the last trial's end."""
        from_s = min(begin for begin, _ in self.spans)
        until_s = max(end for _, end in self.spans) if to_the_end else self.asks[-1][2]
        busy_s = sum(max(0.0, min(end, until_s) - begin) for begin, end in self.spans)
        away_s = sum(max(0.0, min(end, until_s) - max(begin, from_s)) for begin, end in self.away)
        return busy_s / (dies * (until_s - from_s) - away_s)


class DieRunner(FakeRunner):
    """A runner that looks plans up in a landscape."""

    def __init__(self, land: Landscape, seed: int) -> None:
        super().__init__(layout=land.space.layout, latency_ms=lambda plan: land.evaluate(plan).latency_ms or 1e3)
        self._land, self._seed = land, seed

    def judge(self, request: Judge, report: Report, /) -> Outcome:  # noqa: ARG002
        """Return the outcome of a plan; the log's number makes the noise of a repeat another one."""
        truth = self._land.evaluate(request.plan)
        return measured(self._land, request.plan, truth, self._seed, repeat=int(request.log[6:-4]))


@dataclass
class ManyDies(FaultyEngine):
    """An engine with dies of several speeds, whose hosts are lost and come back; see the module.

    Attributes:
        slowness: the factor of each die's time.
        losses: hosts, and when they are lost.
        account: that is kept.
    """

    slowness: Sequence[float] = ()
    losses: Sequence[tuple[str, float]] = ()
    account: Account = field(default_factory=Account)

    def __enter__(self) -> Self:
        self._due: dict[Worker, tuple[float, float]] = {}
        self._spent_s = time.process_time()
        super().__enter__()
        for host, at_s in self.losses:
            if at_s >= self.clock.now_s:
                self._at(at_s - self.clock.now_s, None, partial(self._lose_host, host))
        return self

    def submit(self, worker: Worker, call: RunnerCall, /) -> None:
        """See ``Engine.submit``."""
        self.advance()
        seconds = OPEN_S
        if isinstance(call.job, Judge):
            slowness = self.slowness[self._index(worker)]
            seconds = slowness * TRIAL_S * self._random.lognormvariate(0.0, TRIAL_SPREAD)
            self._due[worker] = self.clock.now_s, self.clock.now_s + seconds
            self._at(0.0, worker, lambda: [Began(worker, call.number)])
        self._at(seconds, worker, lambda: self._answer(worker, call))

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:
        """See ``Engine.wait``."""
        self.advance()
        super().wait(timeout_s, on_event)

    def advance(self) -> None:
        """Let the processor time pass that was spent since the last call."""
        now_s = time.process_time()
        self.clock.now_s += now_s - self._spent_s
        self._spent_s = now_s

    def _answer(self, worker: Worker, call: RunnerCall) -> Sequence[EngineEvent]:
        began_s = time.process_time()
        if isinstance(call.job, Judge):
            self.account.spans.append(self._due.pop(worker))
        events = super()._answer(worker, call)
        self._spent_s += time.process_time() - began_s  # what dies do takes the coordinator no time
        return events

    def _lose_host(self, host: str) -> Sequence[EngineEvent]:
        events: list[EngineEvent] = []
        for die in (die for die, its_host in enumerate(self.hosts) if its_host == host):
            self.account.away.append((self.clock.now_s, self.clock.now_s + HOST_BACK_S))
            events += self._lose(die, f"{host} is out of reach")
            self._start(die, HOST_BACK_S)
        return events


def losses(dies: int, rng: random.Random) -> list[tuple[str, float]]:
    """Return when hosts are lost, within two days."""
    found = []
    for host in range(math.ceil(dies / DIES_PER_HOST)):
        at_s = rng.expovariate(1 / HOST_LOST_EVERY_S)
        while at_s < 48 * 3600:
            found.append((f"host {host}", START_S + at_s))
            at_s += HOST_BACK_S + rng.expovariate(1 / HOST_LOST_EVERY_S)
    return found


def search(land: Landscape, hosts: Sequence[str], slowness: Sequence[float], lost: Sequence[tuple[str, float]],
           trials: int, seed: int) -> tuple[Account, float]:  # fmt: skip
    """Return the account of a search with these dies, and the share of the gain that its expected best plan has."""
    clock, account, propose = VirtualTime(), Account(), Trials.propose

    def timed(self: Trials, space: SearchSpace, strategy: Strategy) -> Proposal | None:
        began_s = time.process_time()
        proposal = propose(self, space, strategy)
        spent_s = time.process_time() - began_s
        engine.advance()
        running = sum(trial.state is TrialState.RUNNING for trial in self._study.trials()) - 1
        account.asks.append((running, 1e3 * spent_s, clock.now_s))
        return proposal

    with ExitStack() as stack:
        stack.enter_context(patch("sktune.tuning.scheduler.time", clock))
        stack.enter_context(patch("sktune.tuning.loop.bind_space", lambda *_: land.space))
        stack.enter_context(patch.object(Trials, "propose", timed))
        runs = Path(stack.enter_context(TemporaryDirectory()))
        (runs / "s").mkdir()
        shutil.copy(_empty_database(), runs / "s" / "study.db")
        (runs / "space.yaml").write_text(SPACE)
        request = Request("llama", study="s", runs=runs, trials=trials, space=runs / "space.yaml",
                          strategy="partition", seed=seed, workers=max(2, len(hosts)))  # fmt: skip
        while True:
            engine = ManyDies(lambda: DieRunner(land, seed), hosts, [], clock, seed,
                              slowness=slowness, losses=lost, account=account)  # fmt: skip
            try:
                run(request, lambda event: None, site=Site(engine))
                break
            except WorkerLostError:  # the user's script waits for the host, and gives the same command again
                clock.now_s = max(clock.now_s, account.away[-1][1])
        first = TuningStudy.open("s", sqlite_url(runs / "s"), create=False).best_first(land.space)[0]
    return account, gain(land, land.evaluate(first.plan).latency_ms or land.baseline_ms)


def main() -> None:
    """Run the searches, and print a row of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dies", type=int, default=16, metavar="N")
    parser.add_argument("--studies", type=int, default=8, metavar="N")
    parser.add_argument("--simulate", type=int, metavar="N", help="only the first N studies")
    parser.add_argument("--trials", type=int, default=40, metavar="N", help="of each study")
    parser.add_argument("--landscape", default="synthetic", metavar="NAME")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    rng = random.Random(0)
    slowness = [rng.gauss(1.0, SPEED_SD) * (OUTLIER if rng.random() < OUTLIER_SHARE else 1.0)
                for _ in range(arguments.dies)]  # fmt: skip
    lost = losses(arguments.dies, rng)
    accounts, gains, counts = [], [], []
    for study in range(arguments.simulate or arguments.studies):
        mine = range(study, arguments.dies, arguments.studies)
        hosts = [f"host {die // DIES_PER_HOST}" for die in mine]
        land = landscape_source(arguments.landscape)(study)
        account, reached = search(land, hosts, [slowness[die] for die in mine], lost, arguments.trials, study)
        accounts.append(account)
        gains.append(reached)
        counts.append(len(hosts))
    pairs = list(zip(accounts, counts, strict=True))
    asks = [ask for account in accounts for ask in account.asks]
    busy = [ms for running, ms, _ in asks if PENDING[0] <= running <= PENDING[1]]
    row = [
        arguments.landscape, arguments.dies, arguments.studies, len(accounts), arguments.trials,
        f"{fmean(account.utilisation(count, to_the_end=False) for account, count in pairs):.1%}",
        f"{fmean(account.utilisation(count, to_the_end=True) for account, count in pairs):.1%}",
        f"{fmean(account.seconds for account in accounts) / 60:.0f}",
        f"{1 - median(gains):.3f} ({1 - min(gains):.3f})",
        f"{median(ms for _, ms, _ in asks):.0f} ({max(ms for _, ms, _ in asks):.0f})",
        f"{median(busy):.0f} ({max(busy):.0f})" if busy else "",
        max(running for running, _, _ in asks), sum(len(account.away) for account in accounts),
    ]  # fmt: skip
    print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
