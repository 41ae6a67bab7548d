"""Workers on this host: each has a die to itself, and all of them end with the search."""

import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.fault_campaign import LAYOUT, Site
from benchmarks.slow_factory import SleepingRunner
from sktune.cli.views.search import result_table
from sktune.core.codec import encoded
from sktune.core.errors import BackendError, BadInputError
from sktune.core.events.base import Event, Listener
from sktune.core.events.search import FinalStage
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.measure.machine import Placement
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.reports.outputs import PAGE
from sktune.study.result import SearchResult, stored_result
from sktune.targets import describe
from sktune.tuning.dies import SIMULATED, Die, die_alone, dies_here
from sktune.tuning.local_engine import LocalEngine
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from sktune.tuning.scheduler import Fleet
from sktune.tuning.site import local_engine
from sktune.worker.jobs import (
    Answered,
    Began,
    EngineEvent,
    Joined,
    Judge,
    Lost,
    OpenTarget,
    Report,
    RunnerCall,
    RunnerFactory,
    RunnerSetup,
    RunnerTraits,
    SampleNoiseFloor,
    StageBegan,
)
from tests.fake_runner import SPACE, FakeRunner, latency_by_units
from tests.fake_runner import search as search_alone


def setup(folder: Path) -> RunnerSetup:
    """Return what runners are made from."""
    spec, _ = describe("llama", backend="sim")
    return RunnerSetup(spec, SpaceSpec(), folder, folder / "cache")


def events_of(engine: LocalEngine, count: int) -> list[EngineEvent]:
    """Return the next events."""
    events: list[EngineEvent] = []
    until_s = time.monotonic() + 30
    while len(events) < count and time.monotonic() < until_s:
        engine.wait(0.1, events.append)
    return events


def test_workers_judge_at_the_same_time(tmp_path: Path) -> None:
    """Their events tell begin, stages and outcome, in this order for each."""
    dies = [Die(SIMULATED, number) for number in range(3)]
    with LocalEngine(setup(tmp_path), dies, lambda setup: SleepingRunner(layout=LAYOUT, setup=setup)) as engine:
        workers = [event.worker for event in events_of(engine, 3) if isinstance(event, Joined)]
        for number, worker in enumerate(workers):
            engine.submit(worker, RunnerCall(number, Judge(Plan(), "trial-0000.log")))
        events = events_of(engine, 9)
    firsts = [type(event) for event in events[:3]]
    assert Answered not in firsts  # each began before another had ended
    for worker in workers:
        assert [type(event) for event in events if event.worker == worker] == [Began, StageBegan, Answered]


def test_a_search_that_ends_leaves_no_thread(tmp_path: Path) -> None:
    """Each of them ends its own runner, and with it all processes."""
    closed: list[str] = []

    class Runner(FakeRunner):
        def close(self) -> None:
            closed.append(threading.current_thread().name)

    with LocalEngine(setup(tmp_path), [Die(SIMULATED, 0)], lambda setup: Runner()) as engine:
        events_of(engine, 1)
    assert closed == ["sktune simulated 0"]
    assert "sktune simulated 0" not in {thread.name for thread in threading.enumerate()}


class AllButOne:
    """A share of which one place is enough from now on."""

    def __init__(self) -> None:
        self.given_back: list[str] = []
        self.surplus = 0

    def of(self, places: Sequence[str], /) -> Sequence[str]:
        """See ``Share.of``."""
        return places

    def give_back(self, place: str, /) -> None:
        """See ``Share.give_back``."""
        self.given_back.append(place)
        self.surplus = 0


def test_a_die_that_is_given_back_may_come_again_and_one_that_was_discarded_is_kept(tmp_path: Path) -> None:
    """Another search shall not get a faulty die; a die that comes again has another worker, whose loss counts."""
    share, dies = AllButOne(), [Die(SIMULATED, number) for number in range(3)]
    with LocalEngine(setup(tmp_path), dies, lambda setup: FakeRunner(), share) as engine:
        by_die = {event.worker.die: event.worker for event in events_of(engine, 3) if isinstance(event, Joined)}
        engine.submit(by_die["simulated 0"], RunnerCall(1, OpenTarget()))
        engine.discard(by_die["simulated 1"])
        share.surplus = 2
        events = events_of(engine, 4)
    assert share.given_back == ["simulated 2"]
    assert [event.worker for event in events if isinstance(event, Lost)] == [by_die["simulated 2"]]
    (again,) = [event.worker for event in events if isinstance(event, Joined)]
    assert again.die == "simulated 2"
    assert again != by_die["simulated 2"]


class OnFourDies(Site):
    """Runs on four dies of a local engine."""

    def __init__(self) -> None:
        pass

    def engine(self, setup: RunnerSetup, factory: RunnerFactory, /) -> LocalEngine:  # type: ignore[override]
        """See ``Site.engine``."""
        return LocalEngine(setup, [Die(SIMULATED, number) for number in range(4)], factory)


def latency_on(number: int, plan: Plan) -> float:
    """Return a plan's latency on the die with this number: dies differ by 8%, and gains on them by 1%."""
    return (1 + 0.08 * number) * latency_by_units(plan) * (1 + 0.01 * number * bool(plan.scopes))


def search_on_four_dies(runs: Path, losses: int = 0, listener: Listener = lambda event: None) -> SearchResult:
    """Search with four workers, of which the first to compare are lost."""
    (runs / "space.yaml").write_text(SPACE)
    numbers, left = itertools.count(), ["the host is gone"] * losses

    def factory(setup: RunnerSetup) -> FakeRunner:
        number = next(numbers)

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare" and left:
                raise RuntimeError(left.pop())

        return FakeRunner(latency_ms=partial(latency_on, number), layout=LAYOUT, setup=setup, breaks=breaks)

    request = Request("llama", study="s", runs=runs, trials=12, space=runs / "space.yaml", workers=4)
    return run(request, listener, runner_factory=factory, site=OnFourDies())


def test_the_final_comparison_is_on_three_dies_and_names_them(tmp_path: Path) -> None:
    """Each process measures a plan and its baseline on one die; the study, its report, page and table say which."""
    events: list[Event] = []
    result = search_on_four_dies(tmp_path, listener=events.append)
    comparison = stored_result("s", tmp_path).comparison
    assert comparison == result.comparison
    assert comparison and result.winner
    assert len(comparison.dies) == len({*comparison.dies}) == 3
    plan = result.winner.plan
    of_one_die = [latency_on(number, Plan()) / latency_on(number, plan) for number in range(4)]
    measured = [speedup.ratio for speedup in comparison.speedups[str(result.winner.number)]]
    assert len({*measured} & {*of_one_die}) == 3
    assert result.winner.dies == comparison.dies
    low, high = result.ci95 or (0, 0)
    assert low < min(measured) < max(measured) < high
    names = ", ".join(comparison.dies)
    assert f"Compared on 3 dies: {names}; the winner's ratio differs by " in (tmp_path / "s" / "report.md").read_text()
    assert f"The processes ran on these dies, in this order: {names}." in (tmp_path / "s" / PAGE).read_text()
    console = Console(width=200)
    with console.capture() as captured:
        console.print(result_table(result))
    assert f"Compared on 3 dies: {names};" in captured.get()
    assert result.summary()["dies"] == list(comparison.dies)
    stages = [event for event in events if isinstance(event, FinalStage) and event.stage == "measure"]
    assert {stage.worker for stage in stages} >= {*comparison.dies}


def test_a_die_that_is_lost_while_it_compares_is_replaced(tmp_path: Path) -> None:
    """Its process runs again on another one, and the study remembers why."""
    result = search_on_four_dies(tmp_path, losses=1)
    comparison = result.comparison
    assert comparison
    ((host, lost),) = [(worker.host, mishap) for worker in result.workers.all for mishap in worker.mishaps]
    assert lost.fate == "lost"
    assert host == socket.gethostname()
    assert "the host is gone" in lost.why
    assert len({*comparison.dies}) == len(comparison.noise) == 3


def test_trials_go_on_while_one_worker_samples_the_noise_floor(tmp_path: Path) -> None:
    """Only the first sample is waited for, as the first trials are judged by it."""
    (tmp_path / "space.yaml").write_text(SPACE)
    events: list[Event] = []
    sampled, leased_again = threading.Event(), threading.Event()

    class Runner(FakeRunner):
        def sample_noise_floor(self, job: SampleNoiseFloor, report: Report, /) -> NoiseFloorSample | None:
            if job.before_trial:
                sampled.set()
                assert leased_again.wait(30)
            return super().sample_noise_floor(job, report)

    def listen(event: Event) -> None:
        events.append(event)
        if event.event == "trial_leased" and sampled.is_set():
            leased_again.set()

    request = Request("llama", study="s", runs=tmp_path, trials=16, space=tmp_path / "space.yaml", workers=4)
    result = run(request, listen, runner_factory=lambda setup: Runner(layout=LAYOUT, setup=setup), site=OnFourDies())
    assert len(result.trials) == 16
    names = [event.event for event in events if event.event in ("noise_floor", "trial_leased")]
    assert names[0] == "noise_floor"
    assert names.count("noise_floor") >= 2
    assert leased_again.is_set()


def test_one_worker_compares_as_ever(tmp_path: Path) -> None:
    """Neither the study nor the report mentions dies."""
    result = search_alone(tmp_path, FakeRunner(traits=RunnerTraits(final_processes=3)), trials=12)
    assert result.comparison
    assert result.dies == ()
    assert "dies" not in encoded(result.comparison)
    assert "dies" not in result.summary()
    assert "Compared on" not in (tmp_path / "s" / "report.md").read_text()


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep locks apart from those of searches on this machine."""
    monkeypatch.setattr("sktune.tuning.dies.LOCKS", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("locks")
def test_a_die_is_held_by_one_search(tmp_path: Path) -> None:
    """Others are refused in one line; afterwards it is free again."""
    die = Die("npu", 4321)
    told = rf"process {os.getpid()} for the study in {tmp_path}/one measures on npu 4321 .*; wait for it, or stop it"
    with die.held(tmp_path / "one"), pytest.raises(BackendError, match=told), die.held(tmp_path / "two"):
        pass
    with die.held(tmp_path / "two"):
        pass


def test_workers_that_share_a_core_share_a_lock(locks: Path) -> None:
    """However many cores each of them has."""
    with Die("cpu", 1, (2, 3)).held(locks), pytest.raises(BackendError, match="cpu 3"), Die("cpu", 3, (3,)).held(locks):
        pass


def test_the_only_worker_holds_its_die(monkeypatch: pytest.MonkeyPatch, locks: Path) -> None:
    """On a device, or on cores that it is kept to."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    spec, _ = describe("llama", backend="inductor", device="cuda")
    on_gpu = replace(setup(locks), spec=spec)
    refused = pytest.raises(BackendError, match="measures on cuda 3")
    with local_engine(on_gpu, 1, lambda setup: FakeRunner()), refused, Die("cuda", 3).held(locks):
        pass
    with Die("cuda", 3).held(locks):
        pass
    cpu, _ = describe("llama", backend="inductor", device="cpu")
    assert die_alone(replace(on_gpu, spec=cpu)) is None
    assert die_alone(replace(on_gpu, spec=cpu, placement=Placement(1, (1,), 1))) == Die("cpu", 0, (1,))
    assert die_alone(setup(locks)) is None


def test_a_search_whose_dies_are_all_taken_ends(monkeypatch: pytest.MonkeyPatch, locks: Path) -> None:
    """In one line that says by whom."""
    monkeypatch.setattr("sktune.tuning.scheduler.REJOIN_S", 0.0)
    dies = [Die("npu", 1), Die("npu", 2)]
    told = rf"no worker is left.* process {os.getpid()} for the study in"
    engine = LocalEngine(setup(locks), dies, lambda setup: FakeRunner())
    with dies[0].held(locks), dies[1].held(locks), engine, pytest.raises(BackendError, match=told):
        Fleet(engine, lambda event: None, is_shared=True).open()


def test_dies_are_those_that_the_user_may_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each worker sees one of them."""
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,12")
    dies = dies_here("npu", 2)
    assert [str(die) for die in dies] == ["npu 4", "npu 12"]
    assert dies[1].setup(setup(tmp_path)).variables == {"ASCEND_RT_VISIBLE_DEVICES": "12"}
    with pytest.raises(BadInputError, match=r"3 workers need a device of type npu each, .* enough for 2"):
        dies_here("npu", 3)


def test_workers_on_a_cpu_share_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardware threads of one core stay together."""
    monkeypatch.setattr("sktune.tuning.dies.core_groups", lambda: [(0, 4), (1, 5), (2, 6), (3, 7)])
    assert [die.cores for die in dies_here("cpu", 2, 2)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    with pytest.raises(BadInputError, match="3 workers need 2 cores each"):
        dies_here("cpu", 3, 2)


def test_workers_on_devices_share_no_core_of_the_host(monkeypatch: pytest.MonkeyPatch, locks: Path) -> None:
    """One compiles while another is measured; their locks are those of the devices. One alone may use all cores."""
    monkeypatch.setattr("sktune.tuning.dies.core_groups", lambda: [(0, 4), (1, 5), (2, 6), (3, 7)])
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1,2,3,4,5")
    dies = dies_here("npu", 2)
    assert [die.cores for die in dies] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert dies[1].setup(setup(locks)).placement.cores == (2, 3, 6, 7)
    assert [die.cores for die in dies_here("npu", 1)] == [()]
    assert {die.cores for die in dies_here("npu", 5)} == {()}
    with Die("cpu", 0, dies[0].cores).held(locks), dies[0].held(locks):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "dask"}, "--engine must be local or ray; got 'dask'"),
        ({"workers": 0}, "--workers must be at least 1; got 0"),
        ({"address": "host:6379"}, "add --engine ray"),
    ],
)
def test_bad_options_get_one_line(options: dict[str, object], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(BadInputError, match=message):
        Request("llama", **options)  # type: ignore[arg-type]


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing else needs it."""
    for name in [name for name in sys.modules if name.startswith("sktune.cluster.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    from sktune.tuning.loop import site_of

    with pytest.raises(BadInputError, match=r"pip install 'sktune\[ray\]'"):
        site_of(Request("llama", engine="ray", runs=tmp_path))
