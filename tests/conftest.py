"""What all tests share: one folder of compiled code for the session, and layouts made by hand."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from sktune.backends.info import FINAL_PROCESSES
from sktune.measure.machine import Machine
from tests import empty_studies, warm

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that rewrites what tests/golden compares with."""
    parser.addoption("--rewrite-golden", action="store_true", help="write tests/golden/files anew")


def pytest_configure(config: pytest.Config) -> None:
    """Keep each process of ``pytest -n`` to a core of its own: many tests measure."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, children would ignore it
    gc.set_threshold(50_000, 20, 50)  # compilers make so many objects that walking over them is a tenth of their time
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker["workerid"].removeprefix("gw")) % len(cores)]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have the most slow tests.

    ``pytest -n`` gives whole files to its processes, in this order: a long one at the end would leave the others idle.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep compiled code of the session in one fresh folder, which the processes of ``pytest -n`` share."""
    session = tmp_path_factory.getbasetemp()
    folder = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "compiled"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    yield folder
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one runs folder for all searches of the session, so that they share compiled code."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session", autouse=True)
def quick_searches(compile_cache: Path) -> Iterator[None]:
    """Start warm, find what other tests have compiled, time and verify few steps, compare in one fresh process.

    Each start, first compile and measurement costs seconds, the thousands of steps of a real search half a minute.
    """
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path))  # for workers, wherever they run
        patch.setattr("sktune.worker.runner.SERVER", "tests.quick_server")
        steps = property(lambda finals: min(finals._request.verify_steps, 320))
        patch.setattr("sktune.tuning.finals.Finals._verify_steps", steps)
        patch.setattr("sktune.tuning.request.Request.cache", property(lambda request: compile_cache))
        patch.setattr("sktune.backends.info.FINAL_PROCESSES", 1)
        patch.setattr("sktune.targets.tracing.TIMED_STEPS", 2)
        patch.setenv(empty_studies.EMPTY, str(compile_cache.with_name("empty.db")))
        patch.setattr("sktune.study.study.open_storage", empty_studies.open_storage)
        with warm.sitting():
            yield


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search as on an idle machine, whatever other tests run at the same time."""
    monkeypatch.setattr("sktune.measure.machine.Machine.look", lambda: Machine({(0,): 0.0}))


@pytest.fixture
def all_final_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare finalists in as many fresh processes as users do, where a test is about that: each costs many seconds."""
    monkeypatch.setattr("sktune.backends.info.FINAL_PROCESSES", FINAL_PROCESSES)
