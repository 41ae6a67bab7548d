"""What the runner gives its workers, and what it makes of their answers."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sktune.backends.fingerprint import fingerprint
from sktune.core.errors import BackendError, TargetError
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.runners.base import CompareRequest, JudgeRequest, NamedPlan, Report, RunnerSetup
from sktune.runners.worker.client import WorkerRunner
from sktune.targets import PresetSpec, describe
from sktune.tuning.prepare import bind_space, space_spec
from sktune.tuning.request import Request
from tests.builders import TESTS
from tests.models import page_faults

MODELS = TESTS / "models"


@pytest.mark.parametrize(("own", "keeps"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False)])
def test_a_worker_keeps_the_memory_that_it_frees(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], keeps: bool
) -> None:
    """Steps do not take it from the kernel again and again, unless the user wants it so; studies say which."""
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    request = Request(f"{page_faults.__file__}:target")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    assert all(f"{name}={value}" in fingerprint(spec, wanted)["memory"] for name, value in own.items())
    with WorkerRunner(RunnerSetup(spec, wanted, tmp_path, compile_cache, 60)) as runner:
        faults = int(runner.open().description)
    again = page_faults.ROUNDS * page_faults.BLOCK_BYTES // resource.getpagesize()
    assert faults < again / 10 if keeps else faults > again


@pytest.mark.parametrize("place", ["prefill", "decode_step"])
def test_memory_that_is_lacking_is_told_from_a_mistake(tmp_path: Path, compile_cache: Path, place: str) -> None:
    """The line says what makes the model smaller, wherever it first takes the memory."""
    (tmp_path / "large.py").write_text(
        "import torch\nimport sktune\n\n"
        "def lacking(*arguments):\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 9 GiB')\n\n"
        "def target():\n"
        "    module = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
        "    prefill = lambda seed, steps: [(torch.ones(1, 4),)] * steps\n"
        f"    sound = dict(decode_step=module.forward, prefill=prefill)\n"
        f"    return sktune.Target(module, **{{**sound, {place!r}: lacking}})\n"
    )
    request = Request(f"{tmp_path / 'large.py'}:target")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with (
        WorkerRunner(RunnerSetup(spec, wanted, tmp_path / "study", compile_cache, 60)) as runner,
        pytest.raises(TargetError, match=r"not fit into memory: CUDA out of memory.*; choose a smaller"),
    ):
        runner.open()


@pytest.fixture
def runner(tmp_path: Path, compile_cache: Path) -> Iterator[tuple[WorkerRunner, Plan]]:
    """Return the runner of a sound model, and a plan."""
    request = Request(f"{MODELS / 'faulty.py'}:flips_a_bit", space=MODELS / "faulty.yaml")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with WorkerRunner(RunnerSetup(spec, wanted, tmp_path, compile_cache, 60)) as own:
        space = bind_space(wanted, own.open().layout, spec)
        yield own, next(space.plan(point.values) for point in space.starting_points if point.name == "sound")


def test_measuring_may_take_longer_than_a_stage_while_the_worker_is_alive(
    runner: tuple[WorkerRunner, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of many plans, or of slow ones, is no process that hangs."""
    own, plan = runner
    monkeypatch.setattr("sktune.runners.worker.client.LEAST_RUN_TIMEOUT_S", 0.5)

    def report(stage: str) -> None:
        if stage == "verify":
            own._compile_timeout_s = 0.5  # of the next stage, which takes seconds

    rows = own.compare(CompareRequest([("1", plan)]), report).rows
    assert [row.name for row in rows] == ["baseline", "baseline again", "1"]


def test_a_score_is_kept_where_the_budget_ends_while_scopes_are_observed(
    runner: tuple[WorkerRunner, Plan],
) -> None:
    """What was measured in time counts."""
    own, plan = runner

    def report(stage: str) -> None:
        if stage == "observe":
            own.deadline_s = 0.0

    outcome = own.judge(JudgeRequest(plan, "trial-0000.log"), report)
    assert outcome.speedup is not None
    assert outcome.scope_times == ()


def test_two_searches_of_one_process_have_their_own_work_folders(tmp_path: Path) -> None:
    """So do two containers, in which process numbers begin anew."""
    spec = PresetSpec("llama", scale="tiny", backend="npu", device="npu")
    for _ in range(2):
        own = WorkerRunner(RunnerSetup(spec, SpaceSpec(), tmp_path, tmp_path / "cache"))
        own._start()
        own.close()
    assert len(list((tmp_path / "work").iterdir())) == 2


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[tuple[WorkerRunner, list[NamedPlan]]]:
    """Return the runner of a simulated model, and two plans."""
    spec, _ = describe("llama", backend="sim")
    with WorkerRunner(RunnerSetup(spec, SpaceSpec(), tmp_path, tmp_path / "cache")) as own:
        units = [unit.name for unit in own.open().layout.units]
        yield own, [("1", Plan((Scope(units[1], units[1]),))), ("2", Plan((Scope(units[1], units[2]),)))]


def test_plans_that_do_not_fit_one_process_are_compared_one_by_one(
    simulated: tuple[WorkerRunner, list[NamedPlan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same figures as side by side; without the references first, which are no fault of a plan's."""
    own, plans = simulated
    together = own.compare(CompareRequest(plans), silent)
    answer, asked = WorkerRunner._answer, list[tuple[int, bool]]()

    def mortal(self: WorkerRunner, key: str, report: Report, *, log: str, **request: Any) -> dict[str, Any]:
        asked.append((len(request["plans"]), request["references"]))
        if len(request["plans"]) > 1:
            raise BackendError(f"the comparison failed: the worker was killed; see logs/{log}")
        return answer(self, key, report, log=log, **request)

    monkeypatch.setattr(WorkerRunner, "_answer", mortal)
    apart = own.compare(CompareRequest(plans, references=True), silent)
    assert asked == [(2, True), (2, False), (1, False), (1, False)]
    figures = [{row.name: row.speedup and row.speedup.ratio for row in one.rows} for one in (together, apart)]
    assert set(figures[0]) == {"baseline", "1", "2"}
    assert figures[0] == figures[1]


def test_a_process_in_which_every_plan_dies_has_the_baseline(
    simulated: tuple[WorkerRunner, list[NamedPlan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured alone, and comes first; where it dies, too, there is nothing to compare with."""
    own, plans = simulated
    answer = WorkerRunner._answer

    def mortal(self: WorkerRunner, key: str, report: Report, *, log: str, **request: Any) -> dict[str, Any]:
        if request["plans"] or not spares_baseline:
            raise BackendError("the worker was killed")
        return answer(self, key, report, log=log, **request)

    monkeypatch.setattr(WorkerRunner, "_answer", mortal)
    spares_baseline = True
    rows = own.compare(CompareRequest(plans), silent).rows
    assert [(row.name, row.speedup is None) for row in rows] == [("baseline", False), ("1", True), ("2", True)]
    spares_baseline = False
    with pytest.raises(BackendError, match="was killed"):
        own.compare(CompareRequest(plans), silent)


def silent(stage: str) -> None:
    """Ignore a stage."""
