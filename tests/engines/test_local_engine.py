"""Workers on this host: each has a die to itself, and all of them end with the search."""

import sys
import threading
import time
from pathlib import Path

import pytest

from sktune.core.errors import BackendError, BadInputError
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.engines.base import Answered, Began, Call, EngineEvent, Joined, StageBegan
from sktune.engines.dies import SIMULATED, Die, dies_here
from sktune.engines.local import LocalEngine
from sktune.runners.base import JudgeRequest, RunnerSetup
from sktune.targets import describe
from sktune.tuning.request import Request
from tests.engines.fault_campaign import LAYOUT
from tests.engines.slow_factory import JUDGE_S, SleepingRunner
from tests.fake_runner import FakeRunner


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
        began_s = time.monotonic()
        for number, worker in enumerate(workers):
            engine.submit(worker, Call(number, "judge", (JudgeRequest(Plan(), "trial-0000.log"),), reports=True))
        events = events_of(engine, 9)
        assert time.monotonic() - began_s < 2 * JUDGE_S
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


def test_a_die_is_held_by_one_search() -> None:
    """Others are refused in one line; afterwards it is free again."""
    die = Die("npu", 4321)
    with die.held(), pytest.raises(BackendError, match="another search measures on npu 4321"), die.held():
        pass
    with die.held():
        pass


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
    monkeypatch.setattr("sktune.engines.dies.core_groups", lambda: [(0, 4), (1, 5), (2, 6), (3, 7)])
    assert [die.cores for die in dies_here("cpu", 2, 2)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    with pytest.raises(BadInputError, match="3 workers need 2 cores each"):
        dies_here("cpu", 3, 2)


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
    for name in [name for name in sys.modules if name.startswith(("sktune.engines.", "sktune.tuning.ray_site"))]:
        if name.rpartition(".")[2] in ("cluster", "ray_engine", "die_actor", "ray_site"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    from sktune.tuning.site import site_of

    with pytest.raises(BadInputError, match=r"pip install 'sktune\[ray\]'"):
        site_of(Request("llama", engine="ray", runs=tmp_path))
