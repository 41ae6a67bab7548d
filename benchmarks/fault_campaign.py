"""Searches on machines that fail, in virtual time: each trial is told once, and no plan is blamed for a machine."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.faulty_engine import START_S, Fault, FaultyEngine, KilledError, VirtualTime
from sktune.backends.fingerprint import fingerprint
from sktune.core.events.base import Event, Listener
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.measure.machine import Placement
from sktune.study.leases import Leases
from sktune.study.result import SearchResult
from sktune.study.study import Proposal, TuningStudy, sqlite_url
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from sktune.tuning.scheduler import Coordinator
from sktune.worker.jobs import Judge
from tests.builders import decoder_layout
from tests.fake_runner import SPACE, FakeRunner, _empty_database, latency_by_units

LAYOUT = decoder_layout(("dense", "moe", "dense", "sliding"), ("self_attn", "mlp"), outside=False)
TRIALS = 40
LEASE_S = 60.0
LASTING = ("partition", "slow die", "bit flips", "die hangs", "die hangs its plans")
"""A schedule has them on two dies at most."""
PASSING = (
    "node lost while judging", "node lost after the result", "actor killed", "subprocess killed", "coordinator killed",
    "results twice",
)  # fmt: skip


def truth(plan: Plan) -> Outcome | None:
    """Return the failure of a plan that is not innocent."""
    if len(plan.scopes) == 4:
        return Outcome(Reason.CRASHED, "the worker was killed by SIGSEGV", stage=Stage.MEASURE)
    if len(plan.scopes) == 5:
        return Outcome(Reason.MISMATCH, "seed 0, step 1: logits[0]", stage=Stage.VERIFY)
    return None


def schedule(seed: int, dies: int) -> list[Fault]:
    """Return random faults."""
    rng = random.Random(seed)
    ill = rng.sample(range(dies), 2)
    faults = [Fault(rng.choice(LASTING), die, rng.uniform(25, 60)) for die in ill[: rng.randint(0, 2)]]
    passing = [Fault(rng.choice(PASSING), rng.randrange(dies), rng.uniform(1, 60)) for _ in range(rng.randint(1, 4))]
    return faults + passing


def prepared(runs: Path, trials: int) -> Request:
    """Return the request of a search with an empty study and a small space."""
    (runs / "s").mkdir(parents=True)
    shutil.copy(_empty_database(), runs / "s" / "study.db")
    (runs / "space.yaml").write_text(SPACE)
    return Request("llama", study="s", backend="sim", runs=runs, trials=trials, space=runs / "space.yaml",
                   strategy="random")  # fmt: skip


class Site:
    """Runs on an engine that is given; a ``Site``."""

    def __init__(self, engine: FaultyEngine) -> None:
        self._engine = engine

    def fingerprint(self, spec: Any, space: Any, /) -> dict[str, str]:
        """See ``Site.fingerprint``."""
        return fingerprint(spec, space)

    def fingerprint_of_answer(self, spec: Any, space: Any, stored: Any, /) -> dict[str, str]:
        """See ``Site.fingerprint_of_answer``."""
        return fingerprint(spec, space)

    def placed(self, spec: Any, stored: Any, /) -> tuple[Placement, None]:
        """See ``Site.placed``."""
        return Placement(), None

    def engine(self, setup: Any, factory: Any, /) -> FaultyEngine:
        """See ``Site.engine``."""
        return self._engine


@dataclass
class Campaign:
    """One search, continued whenever its coordinator is killed.

    Attributes:
        result: of the search.
        told: how often each trial was told.
        events: all events.
        coordinators: how many there were.
        seconds: in virtual time.
        leases: that are left.
        trial_seconds: from the first trial's beginning to the last one's end, in virtual time.
    """

    result: SearchResult
    told: Counter[int]
    events: list[Event]
    coordinators: int
    seconds: float
    leases: tuple[Any, ...]
    trial_seconds: float


def search(
    runs: Path,
    faults: Sequence[Fault],
    *,
    dies: int = 4,
    seed: int = 0,
    strategy: str = "random",
    trials: int = TRIALS,
    request_seed: int = 0,
    deadly: Collection[int] = (),
    fault: Callable[[Plan], Outcome | None] = truth,
    listener: Listener = lambda event: None,
) -> Campaign:
    """Search with these faults of machines; ``fault`` is of plans, and ``deadly`` trials end their machine."""
    folder = runs / "s"
    if not folder.exists():
        folder.mkdir(parents=True)
        shutil.copy(_empty_database(), folder / "study.db")
        (runs / "space.yaml").write_text(SPACE)
    clock, told, events, left = VirtualTime(), Counter[int](), list[Event](), list(faults)
    active, spared, coordinators = set[tuple[str, int]](), set[Plan](), 0
    times: list[float] = []

    def listen(event: Event) -> None:
        events.append(event)
        if event.event in ("trial_started", "trial_finished"):
            times.append(clock.now_s)
        listener(event)

    request = Request("llama", study="s", runs=runs, trials=trials, space=runs / "space.yaml", strategy=strategy,
                      seed=request_seed, workers=max(2, dies))  # fmt: skip
    tell, leave = TuningStudy.tell, Coordinator.__exit__

    def counted(study: TuningStudy, proposal: Proposal, *rest: Any) -> None:
        tell(study, proposal, *rest)
        told[proposal.number] += 1

    def killed(coordinator: Coordinator, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not KilledError:
            leave(coordinator, kind, *rest)

    with ExitStack() as stack:
        stack.enter_context(patch("sktune.tuning.scheduler.time", clock))
        stack.enter_context(patch("sktune.tuning.loop.lease_s", lambda opened, limit_s: LEASE_S))
        stack.enter_context(patch.object(TuningStudy, "tell", counted))
        stack.enter_context(patch.object(Coordinator, "__exit__", killed))
        while True:
            coordinators += 1
            engine = FaultyEngine(
                lambda: FakeRunner(fault=fault, layout=LAYOUT),
                [f"host {die}" for die in range(dies)],
                left,
                clock,
                seed + coordinators,
                spared,
                active,
                deadly,
            )
            try:
                result = run(request, listen, site=Site(engine))
                break
            except KilledError:
                continue
    study = TuningStudy.open("s", sqlite_url(folder), create=False)
    leases = Leases(study.storage.engine, "s", "").all()
    return Campaign(result, told, events, coordinators, clock.now_s - START_S, leases, times[-1] - times[0])


def problems(campaign: Campaign, trials: int = TRIALS) -> list[str]:
    """Return what is wrong with a search, in one line each."""
    found = []
    result = campaign.result
    if sorted(campaign.told) != list(range(trials)) or set(campaign.told.values()) != {1}:
        found.append(f"told: {[(number, times) for number, times in campaign.told.items() if times != 1]}")
    if len(result.trials) != trials or any(record.outcome is None for record in result.trials):
        found.append(f"{len(result.trials)} trials")
    if campaign.leases:
        found.append(f"leases left: {campaign.leases}")
    sound = FakeRunner(fault=truth, layout=LAYOUT)
    for record in result.trials:
        if record.outcome is None or record.plan.is_baseline:
            continue
        expected = sound.run(Judge(record.plan, ""), lambda stage: None)
        reasons = {outcome.reason if outcome.reason is not Reason.SLOWER else None
                   for outcome in (expected, record.outcome)}  # fmt: skip
        if len(reasons) > 1:
            found.append(f"trial {record.number} is {record.outcome.reason}: {record.outcome.detail}")
        if record.outcome.speedup and expected.speedup and record.outcome.speedup.ratio != expected.speedup.ratio:
            found.append(f"trial {record.number} has a wrong figure")
    innocent = [record.plan for record in result.trials if truth(record.plan) is None]
    if result.winner is None or latency_by_units(result.winner.plan) > min(map(latency_by_units, innocent)) + 1e-9:
        found.append("the winner is not the fastest plan")
    return found
