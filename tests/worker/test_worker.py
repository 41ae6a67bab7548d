"""The worker runner: what it passes to workers, and how it handles their answers."""

import itertools
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sktune.backends.fingerprint import fingerprint
from sktune.core.errors import BackendError, TargetError
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.targets import PresetSpec, describe
from sktune.tuning.request import Request, bind_space, space_spec
from sktune.worker.jobs import Compare, Judge, NamedPlan, ProcessComparison, Report, RunnerSetup, silent
from sktune.worker.runner import WorkerProcess, WorkerRunner
from tests import warm
from tests.builders import TESTS
from tests.models import page_faults

MODELS = TESTS / "models"


@pytest.mark.parametrize(("variables", "keeps"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False)])
def test_a_worker_keeps_the_memory_that_it_frees(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], keeps: bool
) -> None:
    """Steps do not request it from the kernel again, unless the user's environment says so; studies record which."""
    monkeypatch.delenv(warm.ADDRESS)  # an allocator reads its variables when the process starts
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    request = Request(f"{page_faults.__file__}:target")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    assert all(f"{name}={value}" in fingerprint(spec, wanted)["memory"] for name, value in variables.items())
    with WorkerRunner(RunnerSetup(spec, wanted, tmp_path, compile_cache, 60)) as runner:
        faults = int(runner.open().description)
    again = page_faults.ROUNDS * page_faults.BLOCK_BYTES // resource.getpagesize()
    assert faults < again / 10 if keeps else faults > again


@pytest.mark.parametrize("place", ["prefill", "decode_step"])
def test_a_model_that_does_not_fit_into_memory_gets_one_line(tmp_path: Path, compile_cache: Path, place: str) -> None:
    """It says how to make the model smaller, wherever memory runs out."""
    (tmp_path / "large.py").write_text(
        "import torch\nimport sktune\n\n"
        "def fail(*arguments):\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 9 GiB')\n\n"
        "def target():\n"
        "    module = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
        "    prefill = lambda seed, steps: [(torch.ones(1, 4),)] * steps\n"
        f"    sound = dict(decode_step=module.forward, prefill=prefill)\n"
        f"    return sktune.Target(module, **{{**sound, {place!r}: fail}})\n"
    )
    request = Request(f"{tmp_path / 'large.py'}:target")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with (
        WorkerRunner(RunnerSetup(spec, wanted, tmp_path / "study", compile_cache, 60)) as runner,
        pytest.raises(TargetError, match=r"not fit into memory: CUDA out of memory.*; choose a smaller"),
    ):
        runner.open()


def test_temporary_files_of_a_killed_compiler_are_deleted(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that is killed cannot delete them. Precompiled headers stay, as later workers use them."""
    (tmp_path / "compiles.py").write_text(
        "import subprocess, tempfile\nfrom pathlib import Path\nfrom torch._inductor import codecache\n\n"
        "def target():\n"
        "    made = subprocess.run(['mktemp'], check=True, capture_output=True, text=True).stdout.strip()\n"
        "    Path('made').write_text(made)\n"
        "    Path(tempfile.mkdtemp(), 'header.i').touch()\n"
        "    Path('headers').write_text(codecache._HEADER_DIR)\n"
        "    raise ValueError('killed before it deletes its file')\n"
    )
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    request = Request(f"{tmp_path / 'compiles.py'}:target")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with (
        WorkerRunner(RunnerSetup(spec, wanted, tmp_path / "study", compile_cache, 60)) as runner,
        pytest.raises(TargetError),
    ):
        runner.open()
    assert Path((tmp_path / "made").read_text()).is_relative_to(tmp_path / "tmp")
    assert not list((tmp_path / "tmp").iterdir())
    assert not Path((tmp_path / "headers").read_text()).is_relative_to(Path((tmp_path / "made").read_text()).parent)


def test_memory_is_limited_when_the_target_is_opened(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To what is available then: when its process was started, another worker may still have held a model."""
    monkeypatch.delenv(warm.ADDRESS)
    monkeypatch.setattr("sktune.worker.runner.SERVER", "sktune.worker.server")  # imports torch last
    request = Request("llama")
    spec, preset = request.target()
    with WorkerRunner(RunnerSetup(spec, space_spec(request, spec, preset), tmp_path, compile_cache, 60)) as worker:
        assert worker._worker
        process = Path(f"/proc/{worker._worker._tree.pid}")

        def limit() -> str:
            return (process / "limits").read_text().partition("Max data size")[2].split()[0]

        until_s = time.monotonic() + 60
        while "libtorch" not in (process / "maps").read_text() and time.monotonic() < until_s:
            time.sleep(0.1)
        assert limit() == "unlimited"
        worker.open()
        assert int(limit()) > 0


@pytest.fixture
def runner(tmp_path: Path, compile_cache: Path) -> Iterator[tuple[WorkerRunner, Plan]]:
    """Return the runner of a model, and a plan whose scopes have no fault."""
    request = Request(f"{MODELS / 'faulty.py'}:flips_a_bit", space=MODELS / "faulty.yaml")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with WorkerRunner(RunnerSetup(spec, wanted, tmp_path, compile_cache, 60)) as worker:
        space = bind_space(wanted, worker.open().layout, spec)
        yield worker, next(space.plan(point.values) for point in space.starting_points if point.name == "sound")


def test_measuring_may_take_longer_than_a_stage_while_the_worker_is_alive(
    runner: tuple[WorkerRunner, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of many or slow plans is not a process that hangs."""
    worker, plan = runner
    monkeypatch.setattr("sktune.worker.runner.MIN_RUN_TIMEOUT_S", 0.5)

    def report(stage: str) -> None:
        if stage == "verify":
            worker._compile_timeout_s = 0.5  # of the next stage, which takes seconds

    rows = worker.run(Compare([("1", plan)]), report).rows
    assert [row.name for row in rows] == ["baseline", "baseline again", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cannot be started", "ends early"])
def test_a_comparison_does_not_depend_on_the_next_worker(
    runner: tuple[WorkerRunner, Plan], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """It is started while plans are compiled; if that fails, or it dies, another one is started in time."""
    worker, plan = runner
    started, starts = worker._started, itertools.count(1)

    def start() -> WorkerProcess:
        if next(starts) == 2 and fault == "cannot be started":
            raise BackendError("the worker cannot be started: Too many open files")
        return started()

    def report(stage: str) -> None:
        if fault == "ends early" and stage == "measure" and worker._next:
            os.kill(worker._next._tree.pid, signal.SIGKILL)
            worker._next._tree.wait(10)

    monkeypatch.setattr(worker, "_started", start)
    for number in (1, 2):
        rows = worker.run(Compare([("1", plan)], number, is_followed=number == 1), report).rows
        assert [row.name for row in rows] == ["baseline", "baseline again", "1"]
        assert not (worker._folder / "logs" / f"final-{number}-1.log").exists()  # nothing had to be compared again
    assert next(starts) == 4


def test_a_trial_keeps_its_figure_if_time_runs_out_while_scopes_are_timed(runner: tuple[WorkerRunner, Plan]) -> None:
    """As it was measured in time."""
    worker, plan = runner

    def report(stage: str) -> None:
        if stage == "observe":
            worker.deadline_s = 0.0

    outcome = worker.run(Judge(plan, "trial-0000.log"), report)
    assert outcome.speedup is not None
    assert outcome.scope_times == ()


def test_two_searches_of_one_process_have_their_own_work_folders(tmp_path: Path) -> None:
    """So do two containers, where process ids may be equal."""
    spec = PresetSpec("llama", scale="tiny", backend="npu", device="npu")
    for _ in range(2):
        worker = WorkerRunner(RunnerSetup(spec, SpaceSpec(), tmp_path, tmp_path / "cache"))
        worker._start()
        worker.close()
    assert len(list((tmp_path / "work").iterdir())) == 2


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[tuple[WorkerRunner, list[NamedPlan]]]:
    """Return the runner of a simulated model, and two plans for it."""
    spec, _ = describe("llama", backend="sim")
    with WorkerRunner(RunnerSetup(spec, SpaceSpec(), tmp_path, tmp_path / "cache")) as worker:
        units = [unit.name for unit in worker.open().layout.units]
        yield worker, [("1", Plan((Scope(units[1], units[1]),))), ("2", Plan((Scope(units[1], units[2]),)))]


def test_plans_that_do_not_fit_one_process_are_compared_one_by_one(
    simulated: tuple[WorkerRunner, list[NamedPlan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same figures as side by side, after a first attempt without the references."""
    worker, plans = simulated
    together = worker.run(Compare(plans), silent)
    answer, requests = WorkerRunner._answer, list[tuple[int, bool]]()

    def mortal(self: WorkerRunner, job: Compare, report: Report) -> ProcessComparison:
        requests.append((len(job.plans), job.references))
        if len(job.plans) > 1:
            raise BackendError(f"the comparison failed: the worker was killed; see logs/{job.log}")
        return answer(self, job, report)

    monkeypatch.setattr(WorkerRunner, "_answer", mortal)
    separately = worker.run(Compare(plans, references=True), silent)
    assert requests == [(2, True), (2, False), (1, False), (1, False)]
    figures = [{row.name: row.speedup and row.speedup.ratio for row in each.rows} for each in (together, separately)]
    assert set(figures[0]) == {"baseline", "1", "2"}
    assert figures[0] == figures[1]


def test_if_every_plan_kills_the_process_the_baseline_is_measured_alone(
    simulated: tuple[WorkerRunner, list[NamedPlan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes first; if it kills the process too, there is nothing to compare with."""
    worker, plans = simulated
    answer = WorkerRunner._answer

    def mortal(self: WorkerRunner, job: Compare, report: Report) -> ProcessComparison:
        if job.plans or not spares_baseline:
            raise BackendError("the worker was killed")
        return answer(self, job, report)

    monkeypatch.setattr(WorkerRunner, "_answer", mortal)
    spares_baseline = True
    rows = worker.run(Compare(plans), silent).rows
    assert [(row.name, row.speedup is None) for row in rows] == [("baseline", False), ("1", True), ("2", True)]
    spares_baseline = False
    with pytest.raises(BackendError, match="was killed"):
        worker.run(Compare(plans), silent)


WORKS = "wait(lambda: sum(range(100_000))), wait(lambda: (time.sleep(0.01), Path('large').read_bytes()))"


@pytest.mark.parametrize(
    ("does", "message"),
    [("threading.Event().wait(60)", "did nothing for 1 s before the baseline was ready"), (WORKS, "")],
    ids=["nothing", "computes, then reads"],
)
def test_only_a_model_that_does_nothing_while_it_is_opened_is_killed(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch, does: str, message: str
) -> None:
    """One that computes or reads may take longer than the limit for one that hangs."""
    monkeypatch.delenv(warm.ADDRESS)  # what starts warm is no descendant
    monkeypatch.setattr("sktune.worker.runner.MIN_RUN_TIMEOUT_S", 1.0)
    monkeypatch.setattr("sktune.worker.runner.WATCH_S", 0.2)
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    (tmp_path / "slow.py").write_text(
        "import threading, time\nfrom pathlib import Path\n\n"
        "def wait(work):\n"
        "    until_s = time.monotonic() + 1.5\n"
        "    while time.monotonic() < until_s:\n        work()\n\n"
        f"def target():\n    {does}\n    raise ValueError('it has ended')\n"
    )
    monkeypatch.chdir(tmp_path)
    request = Request(f"{tmp_path / 'slow.py'}:target")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with WorkerRunner(RunnerSetup(spec, wanted, tmp_path / "study", compile_cache, 1)) as runner:
        runner._start()
        with pytest.raises(BackendError if message else TargetError, match=message or "it has ended"):
            runner.open()
